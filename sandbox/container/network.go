//go:build linux

package container

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The addresses on the link between a sandbox and its gateway. Each pair of
// namespaces is a world of its own, so that all boxes use the same ones. The
// IPv4 range is one for benchmarks, which no destination is in.
var (
	gatewayV4 = netip.MustParsePrefix("198.18.0.1/30")
	guestV4   = netip.MustParsePrefix("198.18.0.2/30")
	gatewayV6 = netip.MustParsePrefix("fd73:616e:6462::1/126")
	guestV6   = netip.MustParsePrefix("fd73:616e:6462::2/126")
)

const (
	guestLink   = "eth0"
	gatewayLink = "gw0"
	// noAddress is IN6_ADDR_GEN_MODE_NONE: no address that nobody gave.
	noAddress = 1
)

// network is a box's two network namespaces. They have no name on the host:
// they exist through these descriptors, the container's processes and the
// gateway's sockets, and go with the last of them, whatever dies when.
type network struct {
	guest   *os.File
	gateway *os.File // nil where the box has no gateway
	rules   *ruleset
}

// newNetwork makes the namespaces and, with a gateway, the link and the rules,
// which let nothing through yet.
func newNetwork(gateway bool) (_ *network, err error) {
	n := &network{}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	if n.guest, err = newNetns(loopbackUp); err != nil {
		return nil, err
	}
	if !gateway {
		return n, nil
	}
	if n.gateway, err = newNetns(gatewaySysctls, loopbackUp); err != nil {
		return nil, err
	}
	if err := n.connect(); err != nil {
		return nil, err
	}
	if n.rules, err = newRuleset(n.gateway); err != nil {
		return nil, err
	}
	return n, nil
}

// serve lets through what is open from the start, and puts the sockets of the
// gateway, if there is one, into files.
func (n *network) serve(openings []Opening, files *Files) error {
	if n.gateway == nil {
		return nil
	}
	if err := n.rules.open(openings); err != nil {
		return err
	}
	if err := leadLocal(n.guest, localPorts(openings)); err != nil {
		return err
	}
	return listen(n.gateway, files)
}

// path names the guest's namespace for the runtime, as long as this process
// holds it.
func (n *network) path() string {
	return filepath.Join("/proc", fmt.Sprint(os.Getpid()), "fd", fmt.Sprint(n.guest.Fd()))
}

// open lets more endpoints through.
func (n *network) open(openings []Opening) error {
	if n.rules == nil {
		return errors.New("container: the sandbox has no gateway")
	}
	return n.rules.open(openings)
}

func (n *network) close() error {
	var errs []error
	if n.rules != nil {
		errs = append(errs, n.rules.close())
	}
	for _, f := range []*os.File{n.guest, n.gateway} {
		if f != nil {
			errs = append(errs, ignoreClosed(f.Close()))
		}
	}
	return errors.Join(errs...)
}

func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// onThread runs f on an operating system thread that ends with it, so that
// what f does to the thread's namespaces reaches nobody else.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends here
		done <- f()
	}()
	return <-done
}

// newNetns returns a new network namespace in which each of setup has run.
func newNetns(setup ...func() error) (*os.File, error) {
	var ns *os.File
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("new network namespace: %w", err)
		}
		for _, f := range setup {
			if err := f(); err != nil {
				return err
			}
		}
		var err error
		ns, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	return ns, err
}

// inNetns runs f on a thread in the namespace.
func inNetns(ns *os.File, f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return f()
	})
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	return nil
}

// gatewaySysctls make sure that the gateway forwards nothing and configures
// nothing by itself, whatever the host's defaults are.
func gatewaySysctls() error {
	for name, value := range map[string]string{
		"ipv4/ip_forward":                "0",
		"ipv4/conf/all/rp_filter":        "0",
		"ipv4/conf/default/rp_filter":    "0",
		"ipv6/conf/all/forwarding":       "0",
		"ipv6/conf/default/accept_ra":    "0",
		"ipv6/conf/default/accept_dad":   "0",
		"ipv6/conf/default/autoconf":     "0",
		"ipv6/conf/default/disable_ipv6": "0",
	} {
		if err := os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0); err != nil {
			return fmt.Errorf("gateway settings: %w", err)
		}
	}
	return nil
}

// connect joins the namespaces by a veth pair, with addresses on both ends
// and the guest's default routes leading to the gateway, which has none.
func (n *network) connect() error {
	err := inNetns(n.gateway, func() error {
		veth := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: gatewayLink}, PeerName: guestLink,
			PeerNamespace: netlink.NsFd(n.guest.Fd()),
		}
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("add veth: %w", err)
		}
		return linkUp(gatewayLink, gatewayV4, gatewayV6)
	})
	if err != nil {
		return err
	}
	return inNetns(n.guest, func() error {
		if err := linkUp(guestLink, guestV4, guestV6); err != nil {
			return err
		}
		for _, gw := range []netip.Prefix{gatewayV4, gatewayV6} {
			if err := netlink.RouteAdd(&netlink.Route{Gw: gw.Addr().AsSlice()}); err != nil {
				return fmt.Errorf("add default route: %w", err)
			}
		}
		return nil
	})
}

// linkUp gives a link its addresses, without waiting for the detection of
// duplicates: there is nobody else on it.
func linkUp(name string, addrs ...netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	if err := netlink.LinkSetIP6AddrGenMode(link, noAddress); err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	for _, p := range addrs {
		a, err := netlink.ParseAddr(p.String())
		if err != nil {
			return fmt.Errorf("link %s: %w", name, err)
		}
		if p.Addr().Is6() {
			a.Flags |= unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, a); err != nil {
			return fmt.Errorf("link %s: add %s: %w", name, p, err)
		}
	}
	return nil
}
