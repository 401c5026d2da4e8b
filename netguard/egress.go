package netguard

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// Egress is one sandbox's only way out. It is safe for concurrent use; Close
// ends every connection that it opened.
type Egress struct {
	guard   *Guard
	subject Subject
	policy  atomic.Pointer[Policy]
	budget  budget
	gw      gatewayState

	// ctx ends with Close, and every dial and look-up with it.
	ctx    context.Context
	cancel context.CancelFunc

	mu     sync.Mutex
	closed bool
	open   map[*attempt]struct{} // admitted, not yet finished
	names  map[string]map[string]struct{}
	idle   func() // closes the HTTP clients' idle connections; may be nil

	sessions sync.WaitGroup // relays of guests' connections; Close waits
}

// For makes the Egress of one sandbox. A nil policy denies everything.
func (g *Guard) For(subject Subject, policy *Policy) *Egress {
	ctx, cancel := context.WithCancel(context.Background())
	e := &Egress{
		guard:   g,
		subject: subject,
		ctx:     ctx,
		cancel:  cancel,
		open:    map[*attempt]struct{}{},
		names:   map[string]map[string]struct{}{},
	}
	e.SetPolicy(policy)
	return e
}

// Policy is the policy in force; nil denies everything.
func (e *Egress) Policy() *Policy { return e.policy.Load() }

// SetPolicy puts another policy in force. New attempts see it at once, and
// open connections that it forbids are ended.
func (e *Egress) SetPolicy(p *Policy) {
	e.mu.Lock()
	e.policy.Store(p)
	e.budget.set(p.Limits())
	var doomed []func()
	for a := range e.open {
		if a.end != nil && !e.stillAllowed(p, a) {
			doomed = append(doomed, a.end)
		}
	}
	idle := e.idle
	e.mu.Unlock()
	for _, end := range doomed {
		end()
	}
	if idle != nil {
		idle()
	}
}

// stillAllowed judges an open connection by another policy: its target, and
// the address that it went to.
func (e *Egress) stillAllowed(p *Policy, a *attempt) bool {
	m := e.guard.judge(p, e.subject.Registry, a.target)
	if m.Allow && a.target.Name != "" {
		m = e.guard.vet(p, e.subject.Registry, m, a.target, []netip.Addr{a.remote.Addr()})
	}
	return m.Allow && (a.proto == "" || m.permits(a.proto, a.target))
}

// Close ends all connections, waits for the relays of guests' own ones and
// makes every later call fail. Idempotent.
func (e *Egress) Close() error {
	e.mu.Lock()
	e.closed = true
	ends := make([]func(), 0, len(e.open))
	for a := range e.open {
		if a.end != nil {
			ends = append(ends, a.end)
		}
	}
	idle := e.idle
	e.mu.Unlock()
	e.cancel()
	for _, end := range ends {
		end()
	}
	if idle != nil {
		idle()
	}
	e.sessions.Wait()
	e.gw.pipes.close()
	e.flushRefusals()
	return nil
}

// DialContext opens a checked connection for a guest's host call. network is
// tcp, tcp4 or tcp6, address is host:port with a name or a literal. A refusal
// is a *DeniedError.
func (e *Egress) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return e.dial(ctx, ViaDial, "", network, address)
}

// dial opens one connection. proto is what the caller will speak, and empty
// for a guest, whose first bytes will show it.
func (e *Egress) dial(ctx context.Context, via Via, proto Protocol, network, address string) (net.Conn, error) {
	a := e.begin(via, network, address)
	if network != "tcp" && network != "tcp4" && network != "tcp6" {
		return nil, a.deny(deny(ReasonNetwork, nil))
	}
	t, reason := ParseTarget(address)
	if reason != "" {
		return nil, a.deny(deny(reason, nil))
	}
	a.target, a.proto = t, proto
	p := e.Policy()
	m := e.guard.judge(p, e.subject.Registry, t)
	if m.Allow && proto != "" && !m.permits(proto, t) {
		m = deny(ReasonProtocol, m.rule)
	}
	if !m.Allow {
		return nil, a.deny(m)
	}
	if m = e.admit(a, m); !m.Allow {
		return nil, a.deny(m)
	}
	m = e.resolve(ctx, p, m, t)
	if !m.Allow {
		a.finish(0, 0)
		return nil, a.deny(m)
	}
	return e.connect(ctx, p, a, m, family(network, m.Addrs))
}

// connect writes the decision, dials the vetted addresses and hands out a
// counted connection under the attempt's id.
func (e *Egress) connect(ctx context.Context, p *Policy, a *attempt, m match, addrs []netip.Addr) (net.Conn, error) {
	a.allow(m)
	raw, err := e.dialVetted(ctx, p, m, a.target, addrs)
	if err != nil {
		a.finish(0, 0)
		var denied *DeniedError
		if errors.As(err, &denied) {
			return nil, denied
		}
		return nil, &net.OpError{Op: "dial", Net: a.network, Err: dialCause(err)}
	}
	if a.proto == "" && m.needsProof(p, a.target) {
		return e.proving(p, a, m, raw)
	}
	c := newConn(a, raw)
	if !a.start(remoteAddr(raw), c.abort) {
		c.abort()
		_ = c.Close()
		return nil, &DeniedError{Request: a.host, Reason: ReasonClosed}
	}
	return c, nil
}

// resolve turns an allowed target into vetted addresses: a literal is its own,
// a name is looked up once.
func (e *Egress) resolve(ctx context.Context, p *Policy, m match, t Target) match {
	if t.Name == "" || !m.Allow {
		if m.Allow {
			m.Addrs = []netip.Addr{t.Addr}
		}
		return m
	}
	m, _, _ = e.lookup(ctx, p, m, t)
	return m
}

// lookup resolves the name of an allowed target once and vets every answer.
func (e *Egress) lookup(ctx context.Context, p *Policy, m match, t Target) (match, Answer, error) {
	if !e.countName(p, m, t.Name) {
		return deny(ReasonNames, m.rule), Answer{}, nil
	}
	ctx, cancel := e.bound(ctx)
	defer cancel()
	ans, err := e.guard.resolver.Lookup(ctx, t.Name)
	switch {
	case errors.Is(err, ErrChain):
		return deny(ReasonChain, m.rule), Answer{}, err
	case err != nil:
		return deny(ReasonResolve, m.rule), Answer{}, err
	case ans.Chain > MaxChain:
		return deny(ReasonChain, m.rule), Answer{}, err
	}
	return e.guard.vet(p, e.subject.Registry, m, t, ans.Addrs), ans, nil
}

// bound ties ctx to the Egress's life.
func (e *Egress) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, e.guard.timeout)
	stop := context.AfterFunc(e.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// family keeps the addresses that network may use, in their order.
func family(network string, addrs []netip.Addr) []netip.Addr {
	if network == "tcp" {
		return addrs
	}
	kept := make([]netip.Addr, 0, len(addrs))
	for _, a := range addrs {
		if a.Is4() == strings.HasSuffix(network, "4") {
			kept = append(kept, a)
		}
	}
	return kept
}

// dialCause keeps the kernel's error number and drops the text around it,
// which names addresses.
func dialCause(err error) error {
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno):
		return errno
	case errors.Is(err, context.DeadlineExceeded):
		return context.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return context.Canceled
	}
	return errDial
}

var errDial = errors.New("no vetted address answered")

func remoteAddr(c net.Conn) netip.AddrPort {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		ap := a.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	return netip.AddrPort{}
}
