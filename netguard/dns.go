package netguard

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// pinGrace is how much longer a pin lives than the answer that a guest was
// told to keep, where the policy names no time: a client may connect in the
// last moment of its cache.
const pinGrace = time.Minute

// lookupGate bounds the look-ups of one sandbox that are under way.
type lookupGate struct{ n atomic.Int32 }

func (g *lookupGate) enter() bool { return g.n.Add(1) <= maxLookups }
func (g *lookupGate) leave()      { g.n.Add(-1) }

// Resolve answers one DNS message. A name that the policy refuses is answered
// at once and no query leaves for it; an allowed one is looked up afresh, and
// the answer is built here from addresses that were all vetted. Before it
// returns an address it calls pin with each of them and the ports that the
// policy opens there: port 0 stands for every port. If pin fails, the look-up
// does. A nil result with an error means that nothing may be sent.
func (e *Egress) Resolve(ctx context.Context, query []byte, pin func([]netip.AddrPort, time.Duration) error) ([]byte, error) {
	q, err := parseDNSQuery(query)
	a := e.begin(ViaDNS, "udp", q.name)
	if errors.Is(err, errDNSSilent) {
		return nil, e.refuse(gateLookup, a, deny(ReasonDNSMalformed, nil))
	}
	r := e.resolveQuery(ctx, q, err)
	a.target.Name = r.name
	if r.Allow && len(r.endpoints) > 0 {
		if err := pin(r.endpoints, r.pinFor); err != nil {
			e.guard.log.Warn("gateway took no address pin", "error", err)
			r = r.refused(deny(ReasonPin, r.rule), dnsServFail)
		}
	}
	if !r.Allow {
		_ = e.refuse(gateLookup, a, r.match)
		return q.answer(r.answer), nil
	}
	if e.gw.pins.lookup(r.name) == nil {
		a.allow(r.match) // once while its pins live, not once a query
	}
	if len(r.answer.addrs) > 0 {
		e.gw.pins.add(r.name, r.Addrs, r.pinFor)
	}
	return q.answer(r.answer), nil
}

// CheckName says whether the policy opens a name on any port at all. It is the
// look-up of guests that dial by name, a WASM guest's: nothing is sent, and
// the dial judges again, with its port and the addresses. A refusal is a
// *DeniedError and is recorded like that of a query.
func (e *Egress) CheckName(host string) error {
	a := e.begin(ViaDNS, "ip", host)
	if e.ctx.Err() != nil {
		return e.refuse(gateLookup, a, deny(ReasonClosed, nil))
	}
	name, addr, reason := ParseHost(host)
	if addr.IsValid() {
		reason = ReasonHostNumeric
	}
	if reason != "" {
		return e.refuse(gateLookup, a, deny(reason, nil))
	}
	a.target.Name = name
	if _, m := e.openPorts(e.Policy(), name); !m.Allow {
		return e.refuse(gateLookup, a, m)
	}
	return nil
}

// resolution is the outcome of one query.
type resolution struct {
	match
	name      string // canonical; empty where the question holds none
	answer    dnsAnswer
	endpoints []netip.AddrPort
	pinFor    time.Duration
}

func (r resolution) refused(m match, rcode dnsRCode) resolution {
	return resolution{match: m, name: r.name, answer: dnsAnswer{rcode: rcode, blocked: m.Reason != ReasonResolve}}
}

// resolveQuery judges a parsed query and resolves it where that is allowed. A
// refused name does not exist for the guest: NXDOMAIN fails a look-up at once
// in every stub resolver, where some wait out their time-out on REFUSED, and
// without a SOA record nobody caches it (RFC 2308, section 5).
func (e *Egress) resolveQuery(ctx context.Context, q dnsQuery, parseErr error) resolution {
	var r resolution
	switch {
	case parseErr != nil:
		return r.refused(deny(ReasonDNSMalformed, nil), dnsFormErr)
	case q.opcode() != 0:
		return r.refused(deny(ReasonDNSOp, nil), dnsNotImp)
	case q.version != 0:
		return r.refused(deny(ReasonDNSMalformed, nil), dnsBadVers)
	case q.class != dnsClassIN:
		return r.refused(deny(ReasonDNSClass, nil), dnsRefused)
	}
	name, addr, reason := ParseHost(q.name)
	if addr.IsValid() {
		reason = ReasonHostNumeric
	}
	if reason != "" {
		return r.refused(deny(reason, nil), dnsNXDomain)
	}
	r.name = name
	p := e.Policy()
	ports, first := e.openPorts(p, name)
	if !first.Allow {
		return r.refused(first, dnsNXDomain)
	}
	switch q.qtype {
	case dnsTypeA, dnsTypeAAAA:
	case dnsTypeHTTPS, dnsTypeSVCB:
		// "No data" makes a client use the addresses, and leaves it without
		// the key that it would need for an encrypted hello.
		return r.refused(deny(ReasonDNSType, first.rule), dnsNoError)
	default:
		return r.refused(deny(ReasonDNSType, first.rule), dnsRefused)
	}
	defer e.gw.lookups.leave()
	if !e.gw.lookups.enter() || !e.budget.lookups.Allow() {
		return r.refused(deny(ReasonRate, nil), dnsServFail)
	}
	return e.resolveName(ctx, p, r, first, ports)
}

// openPorts lists the ports on which the policy may open a name, and the
// verdict on the first that it does open, or else on the first at all.
func (e *Egress) openPorts(p *Policy, name string) (open []portRange, first match) {
	var ports []portRange
	if p != nil {
		for key := range p.local {
			if key.name == name {
				ports = append(ports, portRange{key.port, key.port})
			}
		}
		p.allow.each(name, func(r *rule) bool {
			ports = append(ports, r.ports...)
			return true
		})
		if p.mode == ModePublic {
			ports = append(ports, portRange{1, 65535})
		}
	}
	if len(ports) == 0 {
		return nil, e.guard.judge(p, e.subject.Registry, Target{Name: name, Port: 443})
	}
	for _, pr := range ports {
		m := e.guard.judge(p, e.subject.Registry, Target{Name: name, Port: pr.first})
		if m.Allow {
			open = append(open, pr)
		}
		if m.Allow && !first.Allow || first.Reason == "" {
			first = m
		}
	}
	return open, first
}

// resolveName makes the one look-up and vets its answer for each of the ports
// on which the policy may open the name: a local endpoint and a public rule
// accept different addresses.
func (e *Egress) resolveName(ctx context.Context, p *Policy, r resolution, first match, ports []portRange) resolution {
	t := Target{Name: r.name, Port: ports[0].first}
	m, ans, err := e.lookup(ctx, p, first, t)
	if len(ans.Addrs) == 0 {
		rcode := dnsNoError // the name exists, without an address
		switch {
		case errors.Is(err, errRcode):
			rcode = dnsNXDomain
		case m.Reason != ReasonResolve:
			rcode = dnsNXDomain
		case err != nil:
			rcode = dnsServFail
		}
		return r.refused(m, rcode)
	}
	for _, pr := range ports {
		t.Port = pr.first
		one := e.guard.vet(p, e.subject.Registry, e.guard.judge(p, e.subject.Registry, t), t, slices.Clone(ans.Addrs))
		if !one.Allow {
			continue
		}
		if !m.Allow {
			m = one
		}
		if one.rule != nil { // else mode public, whose literals are open already
			r.endpoints = appendEndpoints(r.endpoints, one.Addrs, pr)
		}
	}
	if !m.Allow {
		return r.refused(m, dnsNXDomain)
	}
	r.match = m
	ttl := ans.TTL
	if p.pinTTL > 0 {
		ttl, r.pinFor = min(ttl, p.pinTTL), p.pinTTL
	} else {
		ttl = min(ttl, DefaultPinTTL-pinGrace)
		r.pinFor = ttl + pinGrace
	}
	r.answer = dnsAnswer{addrs: m.Addrs, ttl: ttl}
	return r
}

// appendEndpoints adds each address with each port of a range, or with port 0
// for a range too long to list.
func appendEndpoints(to []netip.AddrPort, addrs []netip.Addr, ports portRange) []netip.AddrPort {
	listed := listPorts([]portRange{ports})
	if listed == nil {
		listed = []uint16{0}
	}
	for _, a := range addrs {
		for _, port := range listed {
			if ap := netip.AddrPortFrom(a, port); !slices.Contains(to, ap) {
				to = append(to, ap)
			}
		}
	}
	return to
}
