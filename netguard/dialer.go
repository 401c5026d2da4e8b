package netguard

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// fallbackDelay is the head start of each address over the next (RFC 8305,
// 5, "Connection Attempt Delay").
const fallbackDelay = 250 * time.Millisecond

// dialVetted connects to the first of the vetted addresses that answers. Each
// gets a head start; the losers are closed before it returns.
func (e *Egress) dialVetted(ctx context.Context, p *Policy, m match, t Target, addrs []netip.Addr) (net.Conn, error) {
	if len(addrs) == 0 {
		return nil, errDial
	}
	ctx, cancel := e.bound(ctx)
	defer cancel()
	if len(addrs) == 1 {
		return e.dialOne(ctx, p, m, t, addrs[0])
	}
	type result struct {
		conn net.Conn
		err  error
	}
	results := make(chan result)
	next, running := 0, 0
	launch := func() {
		addr := addrs[next]
		next++
		running++
		go func() {
			c, err := e.dialOne(ctx, p, m, t, addr)
			results <- result{c, err}
		}()
	}
	var won net.Conn
	var firstErr error
	timer := time.NewTimer(fallbackDelay)
	defer timer.Stop()
	launch()
	for running > 0 {
		select {
		case <-timer.C:
			if won == nil && next < len(addrs) {
				launch()
				timer.Reset(fallbackDelay)
			}
		case r := <-results:
			running--
			switch {
			case r.err == nil && won == nil:
				won = r.conn
				cancel() // the others stop; wait for them
			case r.err == nil:
				_ = r.conn.Close()
			case won == nil:
				if firstErr == nil {
					firstErr = r.err
				}
				if next < len(addrs) && ctx.Err() == nil {
					launch()
					timer.Reset(fallbackDelay)
				}
			}
		}
	}
	if won == nil {
		return nil, firstErr
	}
	return won, nil
}

// dialOne dials one literal address. The check is repeated on the socket,
// just before the kernel connects it: whatever lies between the verdict and
// here, nothing but this address is dialled, and only while policy allows it.
func (e *Egress) dialOne(ctx context.Context, p *Policy, m match, t Target, addr netip.Addr) (net.Conn, error) {
	want := netip.AddrPortFrom(addr, t.Port)
	control := func(_ context.Context, _, address string, _ syscall.RawConn) error {
		got, err := netip.ParseAddrPort(address)
		if err != nil || netip.AddrPortFrom(got.Addr().Unmap(), got.Port()) != want {
			return &DeniedError{Request: t.String(), Addr: got.Addr(), Reason: ReasonAddress, Rule: m.Rule}
		}
		again := m
		if t.Name == "" {
			again = e.guard.judge(p, e.subject.Registry, t)
		} else {
			one := [1]netip.Addr{addr}
			again = e.guard.vet(p, e.subject.Registry, m, t, one[:])
		}
		if !again.Allow {
			return &DeniedError{Request: t.String(), Addr: addr, Reason: again.Reason, Rule: again.Rule}
		}
		return nil
	}
	c, err := e.guard.dial(ctx, "tcp", want, control)
	if err != nil {
		return nil, err
	}
	if c == nil {
		return nil, errors.New("dial hook returned no connection")
	}
	return c, nil
}
