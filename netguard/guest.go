package netguard

import (
	"context"
	"net"
	"net/netip"
)

// guestConn is a guest's end of a connection whose name has yet to be proven.
type guestConn struct {
	net.Conn
	local, remote net.Addr
}

func (c *guestConn) LocalAddr() net.Addr  { return c.local }
func (c *guestConn) RemoteAddr() net.Addr { return c.remote }

// CloseWrite half-closes the connection, where its kind can.
func (c *guestConn) CloseWrite() error { return closeWrite(c.Conn) }

// needsProof reports whether the bytes of a guest's own connection have to be
// looked at: a name rule opens TLS or HTTP for that name, and no other site
// that happens to share the address; and a deny rule covers names on any
// connection.
func (m match) needsProof(p *Policy, t Target) bool {
	return !m.permits(ProtocolTCP, t) || p.deniesNames()
}

// proving puts the gateway's session between a guest and a connection that is
// already open, so that the same code proves the name for WASM host calls and
// for containers. It returns the guest's end.
func (e *Egress) proving(p *Policy, a *attempt, m match, origin net.Conn) (net.Conn, error) {
	near, far, err := connPair()
	if err != nil {
		_ = origin.Close()
		a.finish(0, 0)
		return nil, err
	}
	remote := remoteAddr(origin)
	if !remote.IsValid() {
		remote = netip.AddrPortFrom(m.Addrs[0], a.target.Port)
	}
	t, raw := a.target, m.permits(ProtocolTCP, a.target)
	if t.Name != "" {
		e.gw.pins.add(t.Name, m.Addrs, p.PinTTL())
	}
	s := &session{e: e, a: a, p: p, guest: far, dst: remote, door: door{
		match: m, target: t, raw: raw, named: !raw,
		tls: m.permits(ProtocolTLS, t), http: m.permits(ProtocolHTTP, t),
	}}
	b := &e.budget
	s.relay = relay{
		guest: far, origin: origin, pipes: &e.gw.pipes,
		up:   byteCounter{spend: func(n int64) bool { return b.take(n, 0) }},
		down: byteCounter{spend: func(n int64) bool { return b.take(0, n) }},
	}
	if !e.hold() {
		return nil, s.unstarted(near)
	}
	if !a.start(remote, s.relay.abort) {
		e.sessions.Done()
		return nil, s.unstarted(near)
	}
	go func() {
		defer e.sessions.Done()
		s.serveDialled(e.ctx)
	}()
	return &guestConn{Conn: near, local: origin.LocalAddr(), remote: origin.RemoteAddr()}, nil
}

// hold keeps Close waiting until sessions.Done, unless it has begun already.
func (e *Egress) hold() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.sessions.Add(1)
	}
	return !e.closed
}

// unstarted undoes a session that the Egress's end, or a new policy, overtook.
func (s *session) unstarted(near net.Conn) error {
	s.relay.abort()
	_ = near.Close()
	s.a.finish(0, 0)
	return &DeniedError{Request: s.a.host, Reason: ReasonClosed}
}

// serveDialled is serve for a connection that is open and admitted.
func (s *session) serveDialled(ctx context.Context) {
	err := s.proveDialled(ctx)
	if err != nil {
		s.relay.abort()
	}
	_ = s.guest.Close()
	_ = s.relay.origin.Close()
	s.a.finish(s.relay.up.n.Load(), s.relay.down.n.Load())
}

func (s *session) proveDialled(ctx context.Context) error {
	proto := ProtocolTCP
	if !s.door.raw {
		m, target, spoken := s.prove(ctx)
		if !m.Allow {
			if len(s.buf) == 0 {
				return s.fail(m.Reason, net.ErrClosed) // the guest said nothing and left
			}
			return s.refuse(m)
		}
		proto = spoken
		s.retarget(target, proto)
	}
	return s.run(ctx, proto)
}
