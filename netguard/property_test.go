package netguard

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sandboxd/sandboxd/netguard/iana"
)

// genAddr draws addresses with a liking for the edges of special blocks.
func genAddr() *rapid.Generator[netip.Addr] {
	var edges []netip.Addr
	for p := range iana.Blocks() {
		end := lastAddr(p)
		for _, a := range []netip.Addr{p.Addr(), end, p.Addr().Prev(), end.Next()} {
			if a.IsValid() {
				edges = append(edges, a)
			}
		}
	}
	// A few public ones come often, so that rules and answers meet.
	usual := addrs("8.8.8.8", "8.8.4.4", "9.9.9.9", "2606:4700::1", "::ffff:8.8.8.8")
	return rapid.OneOf(
		rapid.SampledFrom(usual),
		rapid.SampledFrom(usual),
		rapid.SampledFrom(edges),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 4, 4), func(b []byte) netip.Addr { return netip.AddrFrom4([4]byte(b)) }),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 4, 4), func(b []byte) netip.Addr {
			return netip.AddrFrom16(netip.AddrFrom4([4]byte(b)).As16())
		}),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 16, 16), func(b []byte) netip.Addr {
			b[0] = 0x20 | b[0]&0x1f
			return netip.AddrFrom16([16]byte(b))
		}),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 16, 16), func(b []byte) netip.Addr { return netip.AddrFrom16([16]byte(b)) }),
	)
}

func genName() *rapid.Generator[string] {
	label := rapid.SampledFrom([]string{"a", "b", "api", "www", "x-1", "_s", "0x7f", "127", "xn--bcher-kva"})
	return rapid.Custom(func(t *rapid.T) string {
		labels := rapid.SliceOfN(label, 0, 3).Draw(t, "labels")
		base := rapid.SampledFrom([]string{"example.com", "example.org", "example.net", "internal", "localhost", "local"}).Draw(t, "base")
		return strings.Join(append(labels, base), ".")
	})
}

func genPrefix(t *rapid.T) string {
	a := genAddr().Draw(t, "prefix address").Unmap()
	p, err := a.Prefix(rapid.IntRange(1, a.BitLen()).Draw(t, "bits"))
	if err != nil {
		t.Fatal(err)
	}
	return p.String()
}

func genDeny(t *rapid.T) Rule {
	switch rapid.IntRange(0, 2).Draw(t, "deny kind") {
	case 0:
		return Rule{Host: genName().Draw(t, "deny host")}
	case 1:
		return Rule{Host: "*." + genName().Draw(t, "deny suffix")}
	}
	return Rule{CIDR: genPrefix(t)}
}

// genConfig draws a policy that often compiles.
func genConfig(t *rapid.T) Config {
	cfg := Config{Mode: rapid.SampledFrom([]Mode{ModeAllowlist, ModePublic}).Draw(t, "mode"), NAT64: rapid.Bool().Draw(t, "nat64")}
	for range rapid.IntRange(0, 4).Draw(t, "allows") {
		r := Rule{}
		switch rapid.IntRange(0, 2).Draw(t, "allow kind") {
		case 0:
			r.Host = genName().Draw(t, "host")
		case 1:
			r.Host = "*." + genName().Draw(t, "suffix")
		default:
			r.CIDR = genPrefix(t)
		}
		if rapid.Bool().Draw(t, "ports?") {
			r.Ports = []Port{"443", "8000-8100"}
		}
		if r.Host != "" && rapid.IntRange(0, 3).Draw(t, "within?") == 0 {
			r.ResolveWithin = []string{genPrefix(t)}
		}
		cfg.Allow = append(cfg.Allow, r)
	}
	for range rapid.IntRange(0, 2).Draw(t, "denies") {
		cfg.Deny = append(cfg.Deny, genDeny(t))
	}
	if rapid.Bool().Draw(t, "local?") {
		cfg.AllowLocalEndpoint = []string{"localhost:443", "127.0.0.1:443", "db.internal:443"}
	}
	return cfg
}

func genTarget(t *rapid.T) Target {
	port := rapid.SampledFrom([]uint16{0, 80, 443, 8050, 65535}).Draw(t, "port")
	if rapid.Bool().Draw(t, "name?") {
		return Target{Name: genName().Draw(t, "name"), Port: port}
	}
	return Target{Addr: genAddr().Draw(t, "literal"), Port: port}
}

// decide is the whole verdict on a target and its answers.
func decide(g *Guard, p *Policy, t Target, answers []netip.Addr) match {
	m := g.judge(p, "", t)
	if m.Allow && t.Name != "" {
		m = g.vet(p, "", m, t, slices.Clone(answers))
	} else if m.Allow {
		m.Addrs = []netip.Addr{t.Addr}
	}
	return m
}

// TestNoAllowedAddressIsRefused is the central promise: whatever the policy,
// the name and the answers, no address that may be dialled lies in a block
// that the registries keep apart, but for the exact local endpoints.
func TestNoAllowedAddressIsRefused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := genConfig(t)
		answers := rapid.SliceOfN(genAddr(), 0, 4).Draw(t, "answers")
		if len(answers) > 0 && rapid.Bool().Draw(t, "deny an answer?") {
			a := answers[0].Unmap()
			p, err := a.Prefix(rapid.IntRange(a.BitLen()-8, a.BitLen()).Draw(t, "denied bits"))
			if err != nil {
				t.Fatal(err)
			}
			cfg.Deny = append(cfg.Deny, Rule{CIDR: p.String()})
		}
		p, err := Compile(cfg)
		if err != nil {
			return
		}
		g := &Guard{}
		target := genTarget(t)
		m := decide(g, p, target, answers)
		if !m.Allow {
			if len(m.Addrs) != 0 {
				t.Fatalf("a denial carries %v", m.Addrs)
			}
			return
		}
		for _, a := range m.Addrs {
			class := iana.Lookup(a)
			inner, nat64 := iana.Embedded4(a)
			switch {
			case iana.Metadata(a), a.Is4In6(), a.Zone() != "":
				t.Fatalf("%v may dial %v", target, a)
			case m.local && class.Local(), class.Public():
			case nat64 && p.nat64 && iana.Lookup(inner).Public():
			default:
				t.Fatalf("%v may dial %v (%s)", target, a, class)
			}
			if p.denyNets.find(a) != nil {
				t.Fatalf("%v may dial %v, which a deny rule covers", target, a)
			}
		}
	})
}

// TestAddingADenyNeverAllowsMore holds for any policy and any deny rule.
func TestAddingADenyNeverAllowsMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := genConfig(t)
		before, err := Compile(cfg)
		if err != nil {
			return
		}
		cfg.Deny = append(slices.Clone(cfg.Deny), genDeny(t))
		after, err := Compile(cfg)
		if err != nil {
			return
		}
		g := &Guard{}
		target := genTarget(t)
		answers := rapid.SliceOfN(genAddr(), 0, 4).Draw(t, "answers")
		if decide(g, after, target, answers).Allow && !decide(g, before, target, answers).Allow {
			t.Fatalf("%v with %v is open only with %+v", target, answers, cfg.Deny)
		}
	})
}

// TestMatchAndDialSeeTheSameName holds that every spelling of a host that is
// read at all is looked up, matched and dialled as one canonical name.
func TestMatchAndDialSeeTheSameName(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		canonical := genName().Draw(rt, "name")
		written := []byte(canonical)
		for i := range written {
			if rapid.Bool().Draw(rt, "upper") {
				written[i] = strings.ToUpper(string(written[i]))[0]
			}
		}
		spelling := string(written) + rapid.SampledFrom([]string{"", "."}).Draw(rt, "dot")
		l := newLab(t, Config{Mode: ModeAllowlist, Allow: []Rule{{Host: "*.example.com"}, {Host: "*.example.org"}}})
		defer l.egress.Close()
		l.names.set(canonical, 0, "8.8.8.8")
		_, err := l.egress.DialContext(t.Context(), "tcp", spelling+":443")
		if err == nil {
			rt.Fatal("nobody is there to answer")
		}
		d := l.lastDecision()
		if d.Host != canonical {
			rt.Fatalf("%q was judged as %q", spelling, d.Host)
		}
		if d.Allow != (fmt.Sprint(l.names.asked) == "["+canonical+"]") {
			rt.Fatalf("%q: allowed %v, looked up %q", spelling, d.Allow, l.names.asked)
		}
	})
}
