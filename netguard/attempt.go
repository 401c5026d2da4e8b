package netguard

import (
	"net/netip"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/netguard/iana"
)

// attempt is one thing that a sandbox tried: begin, then deny or allow, and
// for a connection admit, start and finish. Its records share one id.
type attempt struct {
	e       *Egress
	id      string
	via     Via
	network string
	host    string // as asked for, cut
	began   time.Time

	target Target
	proto  Protocol       // what the connection speaks, for a later SetPolicy
	remote netip.AddrPort // where it went
	end    func()         // ends the connection; set by start

	suppressed int64 // refusals left out of the records before this one
	once       sync.Once
	allowed    match
}

// begin opens an attempt on what was asked for, in the asker's own text.
func (e *Egress) begin(via Via, network, request string) *attempt {
	return &attempt{e: e, id: e.guard.nextID(), via: via, network: network, host: cut(request), began: time.Now()}
}

// deny writes the decision and returns the error for the sandbox.
func (a *attempt) deny(m match) error {
	a.write(EventDecision, m, 0, 0)
	return &DeniedError{Request: a.host, Addr: m.addr, Reason: m.Reason, Rule: m.Rule}
}

// allow writes the decision.
func (a *attempt) allow(m match) {
	a.allowed = m
	a.write(EventDecision, m, 0, 0)
}

// start registers the open connection: end is called, from any goroutine and
// perhaps more than once, when the Egress closes or a new policy forbids it.
// It is false where that has already happened.
func (a *attempt) start(remote netip.AddrPort, end func()) bool {
	e := a.e
	e.mu.Lock()
	defer e.mu.Unlock()
	a.remote, a.end = remote, end
	return !e.closed && e.stillAllowed(e.Policy(), a)
}

// finish gives back what admit took and, where the attempt was allowed,
// writes the close line. Idempotent.
func (a *attempt) finish(up, down int64) {
	a.once.Do(func() {
		e := a.e
		e.mu.Lock()
		delete(e.open, a)
		e.mu.Unlock()
		if a.allowed.Allow {
			a.write(EventClose, a.allowed, up, down)
		}
	})
}

// admit counts a connection against the policy's limits before any packet
// leaves. It returns m, or a denial.
func (e *Egress) admit(a *attempt, m match) match {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.closed:
		return deny(ReasonClosed, nil)
	case len(e.open) >= e.budget.connections:
		return deny(ReasonConnections, nil)
	case !e.budget.rate.Allow():
		return deny(ReasonRate, nil)
	case e.budget.spent():
		return deny(ReasonBytes, nil)
	}
	e.open[a] = struct{}{}
	return m
}

func (a *attempt) write(ev Event, m match, up, down int64) {
	s := a.e.subject
	r := Record{
		ID: a.id, Event: ev, Time: time.Now(), Tenant: s.Tenant, Sandbox: s.Sandbox,
		Via: a.via, Network: a.network, Host: a.host, Port: a.target.Port,
		Rule: m.Rule, Allow: m.Allow, Reason: m.Reason, Up: up, Down: down,
		Suppressed: a.suppressed,
	}
	if a.target.Name != "" || a.target.Addr.IsValid() {
		r.Host = a.target.Host()
	}
	if m.Class != iana.Class(0) {
		r.Class = m.Class.String()
	}
	if s.InFlight != nil {
		r.InFlight = s.InFlight()
	}
	if ev == EventClose {
		r.Duration = time.Since(a.began)
	}
	a.e.guard.record(r)
}
