package netguard

import (
	"cmp"
	"net/netip"

	"github.com/sandboxd/sandboxd/netguard/iana"
)

// match is a verdict on a target with the rule that gave it, as the later
// steps need it. The zero value denies.
type match struct {
	Verdict
	rule  *rule      // nil in mode public without a rule
	local bool       // an exact local endpoint
	addr  netip.Addr // the answer that refused a name, for the error's field
}

// permits reports whether proto may be spoken. Where no rule says more, mode
// public opens TLS, and HTTP on any port, but no raw bytes on a name; a local
// endpoint is exact and opens any bytes.
func (m match) permits(proto Protocol, t Target) bool {
	switch {
	case !m.Allow:
		return false
	case m.local:
		return true
	case m.rule != nil:
		return m.rule.permits(proto, t.Port)
	default:
		return t.Name == "" || proto == ProtocolTLS || proto == ProtocolHTTP
	}
}

// ech reports whether Encrypted Client Hello may pass.
func (m match) ech(t Target) bool {
	return m.Allow && (m.local || t.Name == "" || m.rule != nil && m.rule.ech)
}

func deny(reason Reason, r *rule) match {
	m := match{Verdict: Verdict{Reason: reason}, rule: r}
	if r != nil {
		m.Rule = r.id
	}
	return m
}

func denyAddr(reason Reason, r *rule, c iana.Class, a netip.Addr) match {
	m := deny(reason, r)
	m.Class, m.addr = c, a
	return m
}

func allow(r *rule) match {
	m := match{Verdict: Verdict{Allow: true}, rule: r}
	if r != nil {
		m.Rule = r.id
	}
	return m
}

// judge is steps 2 to 6 of the order of checks, all that needs no look-up. It
// does not allocate.
func (g *Guard) judge(p *Policy, registry string, t Target) match {
	if p == nil || p.mode == "" {
		return deny(ReasonNoPolicy, nil)
	}
	if t.Port == 0 {
		return deny(ReasonPortRange, nil)
	}
	if t.Name != "" {
		return g.judgeName(p, t)
	}
	return g.judgeLiteral(p, registry, t)
}

func (g *Guard) judgeName(p *Policy, t Target) match {
	if r := p.deny.first(t.Name); r != nil {
		return deny(ReasonDenyRule, r)
	}
	if r := p.local[localKey{name: t.Name, port: t.Port}]; r != nil {
		m := allow(r)
		m.local = true
		return m
	}
	if specialName(t.Name) {
		return deny(ReasonSpecialName, nil)
	}
	r, seen := p.nameRule(t.Name, t.Port)
	switch {
	case r != nil:
		return allow(r)
	case p.mode == ModePublic:
		return allow(nil)
	case seen != nil:
		return deny(ReasonPort, seen)
	}
	return deny(ReasonNotAllowed, nil)
}

// nameRule is the first allow rule for name that opens port. Where none does,
// seen is one that covers the name on other ports.
func (p *Policy) nameRule(name string, port uint16) (found, seen *rule) {
	p.allow.each(name, func(r *rule) bool {
		if r.hasPort(port) {
			found = r
			return false
		}
		if seen == nil {
			seen = r
		}
		return true
	})
	return found, seen
}

func (g *Guard) judgeLiteral(p *Policy, registry string, t Target) match {
	if n := p.denyNets.find(t.Addr); n != nil {
		return deny(ReasonDenyRule, n.rules[0])
	}
	if r := p.local[localKey{addr: t.Addr, port: t.Port}]; r != nil {
		m := g.vetLocal(r, t)
		m.local = m.Allow
		return m
	}
	class, ok := g.classify(p, registry, t.Addr)
	if !ok {
		return denyAddr(ReasonAddress, nil, class, t.Addr)
	}
	var seen *rule
	for n := p.allowNets.find(t.Addr); n != nil; n = n.parent {
		for _, r := range n.rules {
			if r.hasPort(t.Port) {
				m := allow(r)
				m.Class = class
				return m
			}
			seen = r
		}
	}
	switch {
	case p.mode == ModePublic:
		m := allow(nil)
		m.Class = class
		return m
	case seen != nil:
		return deny(ReasonPort, seen)
	}
	return deny(ReasonLiteral, nil)
}

// vetLocal re-checks a literal local endpoint against what the operator
// refuses; Compile has checked its class.
func (g *Guard) vetLocal(r *rule, t Target) match {
	class := iana.Lookup(t.Addr)
	if !class.Local() || iana.Metadata(t.Addr) || g.refused.find(t.Addr) != nil {
		return denyAddr(ReasonAddress, r, class, t.Addr)
	}
	m := allow(r)
	m.Class = class
	return m
}

// classify says what kind of address a is and whether it may be dialled at
// all. For NAT64 it is the embedded address that counts, where the policy
// opted in (RFC 6052, 3.1).
func (g *Guard) classify(p *Policy, registry string, a netip.Addr) (iana.Class, bool) {
	class := iana.Lookup(a)
	if g.refused.find(a) != nil || iana.Metadata(a) {
		return class, false
	}
	if class == iana.V6Nat64 && p.nat64 {
		inner, _ := iana.Embedded4(a)
		innerClass := iana.Lookup(inner)
		ok := innerClass.Public() && !iana.Metadata(inner) && g.refused.find(inner) == nil && p.denyNets.find(inner) == nil
		if ok {
			return class, true
		}
		return innerClass, false
	}
	if class.Public() {
		return class, true
	}
	t := g.trusted[registry]
	return class, registry != "" && t != nil && t.find(a) != nil
}

// vet is step 7: it unmaps every answer in place and checks it; one bad answer
// refuses the name. m must be an allowing match for t. It does not allocate:
// the verdict's Addrs are the given slice.
func (g *Guard) vet(p *Policy, registry string, m match, t Target, addrs []netip.Addr) match {
	if !m.Allow || len(addrs) == 0 {
		if m.Allow {
			m = deny(ReasonResolve, m.rule)
		}
		return m
	}
	if len(addrs) > MaxAnswers {
		return deny(ReasonAnswers, m.rule)
	}
	var first iana.Class
	for i, a := range addrs {
		a = a.Unmap()
		addrs[i] = a
		if n := p.denyNets.find(a); n != nil {
			return denyAddr(ReasonDenyRule, n.rules[0], iana.Lookup(a), a)
		}
		if m.local {
			class := iana.Lookup(a)
			bad := !class.Local() || iana.Metadata(a) || g.refused.find(a) != nil
			if bad || localhostName(t.Name) && !class.Loopback() {
				return denyAddr(ReasonLocal, m.rule, class, a)
			}
			first = cmp.Or(first, class)
			continue
		}
		class, ok := g.classify(p, registry, a)
		if !ok && !g.trustsHost(t.Name, a) {
			return denyAddr(ReasonAddress, m.rule, class, a)
		}
		first = cmp.Or(first, class)
	}
	if m.rule != nil && !m.rule.holds(addrs) {
		r := p.ruleWithin(t, addrs)
		if r == nil {
			return denyAddr(ReasonWithin, m.rule, first, addrs[0])
		}
		m.rule, m.Rule = r, r.id
	}
	m.Addrs = addrs
	m.Class = first
	return m
}

// ruleWithin is the first rule for the target whose resolve_within holds
// every address, since host, port and range must come from one rule.
func (p *Policy) ruleWithin(t Target, addrs []netip.Addr) (found *rule) {
	p.allow.each(t.Name, func(r *rule) bool {
		if !r.hasPort(t.Port) || !r.holds(addrs) {
			return true
		}
		found = r
		return false
	})
	return found
}

// holds reports whether every address lies in the rule's resolve_within.
func (r *rule) holds(addrs []netip.Addr) bool {
	if r.within == nil {
		return true
	}
	for _, a := range addrs {
		if r.within.find(a) == nil {
			return false
		}
	}
	return true
}
