package netguard

import (
	"context"
	"fmt"
	"strings"

	"github.com/sandboxd/sandboxd/netguard/iana"
)

// Step is one check of an explanation, in the order in which they are made.
type Step struct {
	Check  string `json:"check"`
	Passed bool   `json:"passed"`
	Detail string `json:"detail"`
}

// Explanation says why a target is allowed or refused.
type Explanation struct {
	Target string `json:"target"`
	Allow  bool   `json:"allow"`
	Reason Reason `json:"reason,omitempty"`
	Rule   string `json:"rule,omitempty"`
	Steps  []Step `json:"steps"`
	// Change says which rule would have to change for the opposite verdict.
	Change string `json:"change"`
}

// stage is a check that can end an explanation.
type stage int

const (
	stageSyntax stage = iota
	stagePolicy
	stageScheme
	stagePort
	stageDeny
	stageLocal
	stageSpecial
	stageAllow
	stageLookup
	stageAddresses
)

// stageOf is the check that gives a reason.
func stageOf(r Reason) stage {
	switch r {
	case ReasonNoPolicy:
		return stagePolicy
	case ReasonScheme:
		return stageScheme
	case ReasonPortRange:
		return stagePort
	case ReasonDenyRule:
		return stageDeny
	case ReasonSpecialName, ReasonAddress:
		return stageSpecial
	case ReasonNotAllowed, ReasonPort, ReasonLiteral, ReasonProtocol:
		return stageAllow
	default:
		return stageSyntax
	}
}

// Explain judges target, a URL or host:port or a host (then port 443), as a
// connection would be judged, and says what each check found. With lookup it
// resolves the name once, where the policy lets the question out. It opens no
// connection and writes no record. Unlike a denial it may show addresses: it
// is for whoever writes the policy.
func (g *Guard) Explain(ctx context.Context, p *Policy, target string, lookup bool) Explanation {
	x := explainer{p: p, out: Explanation{Target: cut(target)}}
	m, reason := x.read(g, target)
	if reason != "" {
		x.out.Reason = reason
		x.step(stageSyntax, false, "")
		return x.done(deny(reason, nil))
	}
	x.judged(m)
	if m.Allow && x.t.Name != "" && lookup {
		m = x.resolve(ctx, g, m)
	}
	return x.done(m)
}

// Explain explains a target without an operator's settings and without a
// look-up.
func Explain(p *Policy, target string) Explanation {
	return new(Guard).Explain(context.Background(), p, target, false)
}

type explainer struct {
	p   *Policy
	t   Target
	url *URL
	out Explanation
}

// read parses the target and judges it.
func (x *explainer) read(g *Guard, s string) (match, Reason) {
	if strings.Contains(s, "://") {
		u, reason := ParseURL(s)
		if reason == ReasonScheme {
			return deny(reason, nil), ""
		}
		x.t, x.url = u.Target, &u
		if reason != "" {
			return match{}, reason
		}
		return g.judgeURL(x.p, "", u), ""
	}
	var reason Reason
	if name, addr, r := ParseHost(s); r == "" {
		x.t = Target{Name: name, Addr: addr, Port: 443}
	} else if x.t, reason = ParseTarget(s); reason != "" {
		return match{}, reason
	}
	return g.judge(x.p, "", x.t), ""
}

// judged lists the checks up to the one that decided.
func (x *explainer) judged(m match) {
	last := stageAllow
	if !m.Allow {
		last = stageOf(m.Reason)
	}
	if m.local {
		last = stageLocal
	}
	for s := stageSyntax; s <= last; s++ {
		if s == stageScheme && x.url == nil && m.Reason != ReasonScheme {
			continue
		}
		passed := s < last || m.Allow
		rule := ""
		if s == last {
			rule = m.Rule
		}
		if s == stageLocal && !m.local {
			x.add("local endpoint", true, "no allow_local_endpoint entry is exactly this one; public rules apply")
			continue
		}
		x.step(s, passed, rule)
	}
}

func (x *explainer) add(check string, passed bool, detail string) {
	x.out.Steps = append(x.out.Steps, Step{check, passed, detail})
}

func (x *explainer) step(s stage, passed bool, rule string) {
	pick := func(yes, no string) string {
		if passed {
			return yes
		}
		return no
	}
	switch s {
	case stageSyntax:
		x.add("syntax", passed, pick("reads as "+x.t.Host(), "is malformed ("+string(x.out.Reason)+"), and refused before the policy is asked"))
	case stagePolicy:
		x.add("policy", passed, pick("there is one", "there is none, so nothing goes out"))
	case stageScheme:
		x.add("scheme", passed, pick("is one of the policy's schemes", "is not one of the policy's schemes"))
	case stagePort:
		x.add("port", passed, pick(fmt.Sprintf("%d", x.t.Port), "0 is no port"))
	case stageDeny:
		x.add("deny rules", passed, pick("none covers it", rule+" covers it, and deny always wins"))
	case stageLocal:
		x.add("local endpoint", true, rule+" opens exactly this")
	case stageSpecial:
		x.special(passed)
	case stageAllow:
		x.allow(passed, rule)
	case stageLookup, stageAddresses: // added by resolve
	}
}

func (x *explainer) special(passed bool) {
	if x.t.Name != "" {
		detail := "is an ordinary name"
		if !passed {
			detail = "is a special-use, metadata or single-label name, which is never looked up"
		}
		x.add("special names", passed, detail)
		return
	}
	x.add("address class", passed, "is "+iana.Lookup(x.t.Addr).String())
}

func (x *explainer) allow(passed bool, rule string) {
	what := "cidr"
	if x.t.Name != "" {
		what = "host"
	}
	switch {
	case passed && rule == "":
		x.add("allow rules", true, "mode public opens every public address")
	case passed:
		x.add("allow rules", true, rule+" opens it")
	case rule != "":
		x.add("allow rules", false, fmt.Sprintf("%s covers it, and not port %d or what is spoken there", rule, x.t.Port))
	default:
		x.add("allow rules", false, "no "+what+" rule covers it")
	}
}

// resolve adds the look-up and the vetting of its answers.
func (x *explainer) resolve(ctx context.Context, g *Guard, m match) match {
	if g.resolver == nil {
		return m
	}
	ans, err := g.resolver.Lookup(ctx, x.t.Name)
	if err != nil || len(ans.Addrs) == 0 {
		x.add("look-up", false, "no address came back")
		return deny(ReasonResolve, m.rule)
	}
	shown := make([]string, 0, len(ans.Addrs))
	for _, a := range ans.Addrs {
		shown = append(shown, a.Unmap().String()+" ("+iana.Lookup(a.Unmap()).String()+")")
	}
	x.add("look-up", true, strings.Join(shown, ", "))
	m = g.vet(x.p, "", m, x.t, ans.Addrs)
	if m.Allow {
		x.add("addresses", true, "every one may be dialled")
	} else {
		x.add("addresses", false, "one that may not be dialled refuses the name: "+string(m.Reason))
	}
	return m
}

func (x *explainer) done(m match) Explanation {
	x.out.Allow, x.out.Reason, x.out.Rule = m.Allow, m.Reason, m.Rule
	x.out.Change = x.change(m)
	return x.out
}

// change says what would have to be different.
func (x *explainer) change(m match) string {
	host, rule := x.t.Host(), m.Rule
	switch {
	case m.Allow && rule == "":
		return fmt.Sprintf("to refuse it, add a deny rule for %s", host)
	case m.Allow:
		return fmt.Sprintf("to refuse it, remove or narrow %s, or add a deny rule", rule)
	case m.Reason.Malformed():
		return "nothing in a policy: write the target in canonical form"
	}
	switch m.Reason {
	case ReasonNoPolicy:
		return "give the sandbox a policy with an egress section"
	case ReasonScheme:
		return "list the scheme under schemes; only http, https, ws and wss can be listed"
	case ReasonDenyRule:
		return "remove or narrow " + rule
	case ReasonNotAllowed:
		return fmt.Sprintf("add to allow: {host: %s, ports: [%d]}", host, x.t.Port)
	case ReasonLiteral:
		return fmt.Sprintf("add to allow: {cidr: %s/%d, ports: [%d]}, or connect by a name that a rule covers", host, x.t.Addr.BitLen(), x.t.Port)
	case ReasonPort:
		return fmt.Sprintf("add port %d to %s", x.t.Port, rule)
	case ReasonProtocol:
		return "set protocol on " + rule
	case ReasonWithin:
		return "widen resolve_within of " + rule + ", if the new addresses are the host's own"
	case ReasonSpecialName, ReasonAddress, ReasonLocal:
		return x.changeLocal(m)
	case ReasonResolve, ReasonAnswers, ReasonChain:
		return "nothing in the policy: ask whoever runs the name or the resolver"
	default:
		return "nothing in the policy can open it"
	}
}

// changeLocal is about what only allow_local_endpoint can open, or nothing.
func (x *explainer) changeLocal(m match) string {
	switch {
	case m.local || m.Reason == ReasonLocal:
		return "nothing: a local endpoint must answer loopback, private, CGNAT or ULA addresses only"
	case x.t.Name != "" && metadataName(x.t.Name), x.t.Name == "" && !m.Class.Local(), m.Class != 0 && !m.Class.Local(), iana.Metadata(x.t.Addr):
		return "nothing in a policy can open it"
	}
	return fmt.Sprintf("if it is meant, add to allow_local_endpoint: %q", x.t.String())
}
