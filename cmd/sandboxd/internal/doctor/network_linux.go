package doctor

import (
	"context"
	"fmt"
	"os"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// nftablesWork installs, in a network namespace that goes with its thread,
// each kind of thing that a gateway is made of.
func nftablesWork(context.Context) Check {
	if os.Geteuid() != 0 {
		return rootOnly()
	}
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("a network namespace: %w", err)
		}
		ns, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		defer ns.Close() //nolint:errcheck // only read from
		return installRules(int(ns.Fd()))
	})
	if err != nil {
		return fail(err.Error(), "load the kernel's modules: modprobe -a nf_tables nft_redir nft_reject_inet nft_log")
	}
	return ok("sets with time-outs, log, reject and redirect were installed in a namespace")
}

func installRules(ns int) error {
	conn, err := nftables.New(nftables.WithNetNSFd(ns))
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "sandboxd-doctor"})
	set := &nftables.Set{Table: table, ID: 1, Name: "pins", KeyType: nftables.TypeIPAddr, HasTimeout: true}
	if err := conn.AddSet(set, nil); err != nil {
		return fmt.Errorf("a set: %w", err)
	}
	guard := conn.AddChain(&nftables.Chain{
		Name: "guard", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityMangle,
	})
	conn.AddRule(&nftables.Rule{Table: table, Chain: guard, Exprs: []expr.Any{
		&expr.Log{Key: 1 << unix.NFTA_LOG_GROUP, Group: 1},
		&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH},
	}})
	redirect := conn.AddChain(&nftables.Chain{
		Name: "redirect", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
	})
	conn.AddRule(&nftables.Rule{Table: table, Chain: redirect, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(1)},
		&expr.Redir{RegisterProtoMin: 1, Flags: unix.NF_NAT_RANGE_PROTO_SPECIFIED},
	}})
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	return nil
}
