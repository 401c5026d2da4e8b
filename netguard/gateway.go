package netguard

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"time"
)

// helloTimeout bounds the wait for what proves a name: a ClientHello or one
// complete request head, from its first byte or from the connection's start.
const helloTimeout = 10 * time.Second

// readSize is the least room a read from a guest gets, in bytes.
const readSize = 2 << 10

// gatewayState is what an Egress keeps for its transparent gateway. The zero
// value works.
type gatewayState struct {
	pins    pinTable
	pipes   pipePool
	lookups lookupGate
	gates   [gateCount]floodGate
	// wait is helloTimeout but in tests.
	wait time.Duration
}

// helloDeadline is when the wait for a hello or a head that began now ends.
func (g *gatewayState) helloDeadline() time.Time {
	if g.wait > 0 {
		return time.Now().Add(g.wait)
	}
	return time.Now().Add(helloTimeout)
}

// ServeConn takes over a connection that a guest made to dst, proves which
// allowed name it is for where the policy needs one, opens the connection to
// a vetted address and relays until both sides are done. A refusal resets
// conn. It closes conn in any case.
func (e *Egress) ServeConn(ctx context.Context, conn net.Conn, dst netip.AddrPort) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.ctx, cancel)() //nolint:contextcheck // the Egress's end ends it too
	dst = unmapDst(dst)
	s := &session{e: e, a: e.begin(ViaGateway, "tcp", dst.String()), guest: conn, dst: dst}
	s.a.target = Target{Addr: dst.Addr(), Port: dst.Port()}
	if err := s.serve(ctx); err != nil {
		reset(conn)
		return
	}
	_ = conn.Close()
}

// session is one connection at the gateway.
type session struct {
	e     *Egress
	a     *attempt
	p     *Policy // in force when the connection came
	guest net.Conn
	dst   netip.AddrPort
	door  door
	buf   []byte // read from the guest and not yet passed on

	relay relay
	hello clientHello // set by proof through TLS
	head  httpHead    // set by proof through HTTP, with headLen
	// headLen is the length of the judged head at the start of buf, 0 where
	// there is none.
	headLen int
}

// serve runs the connection. An error asks for a reset.
func (s *session) serve(ctx context.Context) error {
	s.p = s.e.Policy()
	s.door = s.e.door(s.p, s.dst)
	m := s.door.match
	if m.Allow {
		m = s.e.admit(s.a, m)
	}
	if !m.Allow {
		return s.refuse(m)
	}
	defer func() { s.a.finish(s.relay.up.n.Load(), s.relay.down.n.Load()) }()
	target, proto := s.door.target, ProtocolTCP
	if !s.door.raw {
		m, target, proto = s.prove(ctx)
	}
	s.retarget(target, proto) // a refusal names what the guest asked for, too
	if !m.Allow {
		return s.refuse(m)
	}
	s.a.allow(m)
	origin, err := s.e.dialVetted(ctx, s.p, m, target, m.Addrs)
	if err != nil {
		return s.fail(ReasonDial, err)
	}
	defer func() { _ = origin.Close() }()
	b := &s.e.budget
	s.relay = relay{
		guest: s.guest, origin: origin, pipes: &s.e.gw.pipes,
		up:   byteCounter{spend: func(n int64) bool { return b.take(n, 0) }},
		down: byteCounter{spend: func(n int64) bool { return b.take(0, n) }},
	}
	if !s.a.start(remoteAddr(origin), s.relay.abort) {
		return s.fail(ReasonClosed, net.ErrClosed)
	}
	err = s.run(ctx, proto)
	if errors.Is(err, errBudget) {
		return s.fail(ReasonBytes, err)
	}
	return err
}

// run relays, with the look at the guest's bytes that the protocol needs.
func (s *session) run(ctx context.Context, proto Protocol) error {
	switch {
	case s.door.raw && s.p.deniesNames():
		s.relay.inspect = s.watchRaw
	case proto == ProtocolTLS:
		s.relay.inspect = s.watchTLS
	case proto == ProtocolHTTP:
		s.relay.inspect = s.serveHTTP
		if s.head.websocket {
			stop := context.AfterFunc(ctx, s.relay.abort)
			switched, err := s.upgrade()
			stop()
			if err != nil {
				s.relay.abort()
				return err
			}
			if switched {
				s.relay.inspect = s.passAll
			}
		}
	}
	return s.relay.run(ctx)
}

// retarget says what the connection turned out to be for.
func (s *session) retarget(t Target, proto Protocol) {
	s.e.mu.Lock()
	s.a.target, s.a.proto = t, proto
	s.e.mu.Unlock()
}

// refuse records the refusal and returns it.
func (s *session) refuse(m match) error {
	return s.e.refuse(gateConn, s.a, m)
}

// fail notes for the close line why an allowed connection ended early.
func (s *session) fail(reason Reason, err error) error {
	s.a.allowed.Reason = reason
	return err
}

// prove reads until the connection's name is proven or refused.
func (s *session) prove(ctx context.Context) (match, Target, Protocol) {
	stop := context.AfterFunc(ctx, func() { _ = s.guest.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	_ = s.guest.SetReadDeadline(s.e.gw.helloDeadline())
	m, t, proto := s.proveName()
	if stop() {
		_ = s.guest.SetReadDeadline(time.Time{})
	}
	if ctx.Err() != nil {
		m = deny(ReasonClosed, nil)
	}
	return m, t, proto
}

func (s *session) proveName() (match, Target, Protocol) {
	if err := s.more(maxHelloWire); err != nil {
		return deny(ReasonTLSTruncated, nil), s.a.target, ""
	}
	if looksLikeTLS(s.buf) {
		for {
			m, t, err := s.proveHello()
			if !errors.Is(err, errIncomplete) {
				return m, t, ProtocolTLS
			}
			if s.more(maxHelloWire) != nil {
				return m, s.a.target, ProtocolTLS
			}
		}
	}
	if !s.door.http {
		return deny(ReasonProtocol, nil), s.a.target, ""
	}
	var scan headScanner
	for {
		n, err := scan.end(s.buf)
		if errors.Is(err, errIncomplete) {
			if s.more(maxHTTPHead) == nil {
				continue
			}
			return deny(ReasonHTTPSyntax, nil), s.a.target, ProtocolHTTP
		}
		m, t := s.judgeFirst(n, err)
		return m, t, ProtocolHTTP
	}
}

// proveHello keeps the hello that it proved, for the watch over a second one.
func (s *session) proveHello() (match, Target, error) {
	m, t, err := s.e.proveTLS(s.p, s.door, s.dst, s.buf)
	if err == nil && m.Allow {
		s.hello, _, err = parseClientHello(s.buf)
	}
	if t == (Target{}) {
		t = s.a.target
	}
	return m, t, err
}

// more reads once from the guest into buf, which may grow to limit.
func (s *session) more(limit int) error {
	if len(s.buf) >= limit {
		return errHeadTooLarge
	}
	if cap(s.buf)-len(s.buf) < readSize {
		grown := make([]byte, len(s.buf), max(2*cap(s.buf), 2*readSize))
		copy(grown, s.buf)
		s.buf = grown
	}
	n, err := s.guest.Read(s.buf[len(s.buf):cap(s.buf)])
	s.buf = s.buf[:len(s.buf)+n]
	if n > 0 {
		return nil
	}
	return err
}

// pass forwards the first n bytes of buf to the origin.
func (s *session) pass(n int) error {
	if n == 0 {
		return nil
	}
	err := s.relay.forward(s.relay.origin, s.buf[:n], &s.relay.up)
	s.buf = s.buf[:copy(s.buf, s.buf[n:])]
	return err
}

// passAll forwards buf and frees it: the rest of the connection is copied by
// the kernel.
func (s *session) passAll() (raw bool, err error) {
	err = s.pass(len(s.buf))
	s.buf = nil
	return true, err
}

// isEnd reports the orderly end of a guest's bytes.
func isEnd(err error) bool { return errors.Is(err, io.EOF) }

// isTimeout reports a deadline that passed.
func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// take counts bytes about to pass and reports whether the budget holds them.
func (b *budget) take(up, down int64) bool {
	u, d := b.up.Add(up), b.down.Add(down)
	maxUp, maxDown := b.maxUp.Load(), b.maxDown.Load()
	return (maxUp == 0 || u <= maxUp) && (maxDown == 0 || d <= maxDown)
}
