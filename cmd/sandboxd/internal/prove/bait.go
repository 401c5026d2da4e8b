package prove

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
)

// Bait is a set of listeners on this host that only a leak would reach.
type Bait struct {
	targets []netip.AddrPort
	closers []func() error
	reached atomic.Int64
	serving sync.WaitGroup
}

// unrouted are addresses of the documentation ranges: nothing answers there,
// and a sandbox without network says so at once instead of waiting.
var unrouted = []netip.AddrPort{
	netip.MustParseAddrPort("192.0.2.1:443"), netip.MustParseAddrPort("[2001:db8::1]:443"),
	netip.MustParseAddrPort("169.254.169.254:80"),
}

// Lay listens on every address of this host, TCP and UDP. Close ends it.
func Lay(ctx context.Context) (*Bait, error) {
	b := &Bait{}
	addrs, err := hostAddrs()
	if err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	for _, a := range addrs {
		ln, err := lc.Listen(ctx, "tcp", netip.AddrPortFrom(a, 0).String())
		if err != nil {
			continue // an address that cannot be listened on cannot be reached either
		}
		b.closers = append(b.closers, ln.Close)
		at := ln.Addr().(*net.TCPAddr).AddrPort() //nolint:forcetypeassert // a TCP listener's
		b.targets = append(b.targets, netip.AddrPortFrom(at.Addr().Unmap(), at.Port()))
		b.serving.Go(func() { b.accept(ln) })
		if pc, err := lc.ListenPacket(ctx, "udp", at.String()); err == nil {
			b.closers = append(b.closers, pc.Close)
			b.serving.Go(func() { b.receive(pc) })
		}
	}
	if len(b.targets) == 0 {
		return nil, fmt.Errorf("no address of this host can be listened on")
	}
	return b, nil
}

// Targets are what a guest should try: the bait, and what no network routes.
func (b *Bait) Targets() []netip.AddrPort {
	return append(append([]netip.AddrPort(nil), b.targets...), unrouted...)
}

// Reached counts connections and datagrams that got here.
func (b *Bait) Reached() int64 { return b.reached.Load() }

// Close ends the listeners and waits for them.
func (b *Bait) Close() {
	for _, c := range b.closers {
		_ = c()
	}
	b.serving.Wait()
}

func (b *Bait) accept(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		b.reached.Add(1)
		_ = c.Close()
	}
}

func (b *Bait) receive(pc net.PacketConn) {
	buf := make([]byte, 16)
	for {
		if _, _, err := pc.ReadFrom(buf); err != nil {
			return
		}
		b.reached.Add(1)
	}
}

func hostAddrs() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, a := range list {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && !p.Addr().IsLinkLocalUnicast() {
			out = append(out, p.Addr())
		}
	}
	return out, nil
}
