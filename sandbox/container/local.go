//go:build linux

package container

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Policy can open ports of the host's loopback. An ordinary client then asks
// for 127.0.0.1, which its own loopback would answer. So packets to exactly
// those ports are marked, a routing rule sends marked ones to the gateway
// instead, and the gateway sees the very destination that was asked for.
const (
	localMark  = 1
	localTable = 100
	// The rule for marked packets has to come before that of the table of
	// local addresses, which therefore moves from preference 0.
	markedPref, localPref = 5, 10
)

// localPorts are the ports of IPv4's loopback that the openings name. There
// is no such way for ::1, which the kernel takes from nowhere but itself.
func localPorts(openings []Opening) []netip.AddrPort {
	var out []netip.AddrPort
	for _, o := range openings {
		if a := o.Prefix.Addr(); a.Is4() && a.IsLoopback() && o.Prefix.IsSingleIP() && o.TTL == 0 {
			for _, p := range o.Ports {
				out = append(out, netip.AddrPortFrom(a, p))
			}
		}
	}
	return out
}

// leadLocal sets up the guest's namespace so that the given endpoints of its
// loopback lead to the gateway.
func leadLocal(guest *os.File, ends []netip.AddrPort) error {
	if len(ends) == 0 {
		return nil
	}
	if err := inNetns(guest, routeMarked); err != nil {
		return fmt.Errorf("local endpoints: %w", err)
	}
	conn, err := nftables.New(nftables.WithNetNSFd(int(guest.Fd())), nftables.WithSockOptions(roomForBatch))
	if err != nil {
		return fmt.Errorf("local endpoints: nftables: %w", err)
	}
	r := &ruleset{conn: conn, table: conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "local"})}
	mark := conn.AddChain(&nftables.Chain{
		Name: "mark", Table: r.table, Type: nftables.ChainTypeRoute,
		Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityMangle,
	})
	for _, e := range ends {
		r.rule(mark, family(unix.NFPROTO_IPV4), destination(hostPrefix(e.Addr())), transport(unix.IPPROTO_TCP),
			port(e.Port(), e.Port()), []expr.Any{
				&expr.Immediate{Register: 1, Data: binaryutil.NativeEndian.PutUint32(localMark)},
				&expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: true},
			})
	}
	leave := conn.AddChain(&nftables.Chain{
		Name: "leave", Table: r.table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	r.rule(leave, []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(localMark)},
		&expr.Masq{},
	})
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("local endpoints: nftables: %w", err)
	}
	return nil
}

// routeMarked has marked packets take the link to the gateway, and lets the
// answers in, which bear loopback addresses.
func routeMarked() error {
	for _, name := range []string{"route_localnet", "accept_local"} {
		if err := os.WriteFile(filepath.Join("/proc/sys/net/ipv4/conf", guestLink, name), []byte("1"), 0); err != nil {
			return err
		}
	}
	link, err := netlink.LinkByName(guestLink)
	if err != nil {
		return err
	}
	marked := netlink.NewRule()
	marked.Family, marked.Priority, marked.Mark, marked.Table = unix.AF_INET, markedPref, localMark, localTable
	local := netlink.NewRule()
	local.Family, local.Priority, local.Table = unix.AF_INET, localPref, unix.RT_TABLE_LOCAL
	first := netlink.NewRule()
	first.Family, first.Priority, first.Table = unix.AF_INET, 0, unix.RT_TABLE_LOCAL
	return errors.Join(
		netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gatewayV4.Addr().AsSlice(), Table: localTable}),
		netlink.RuleAdd(local), netlink.RuleAdd(marked), netlink.RuleDel(first))
}
