package netguard

import (
	"fmt"
	"net/netip"
	"testing"
)

// tenThousandRules is a policy of 10,000 rules: exact hosts, wildcards, ranges and denials.
func tenThousandRules(tb testing.TB) *Policy {
	tb.Helper()
	cfg := Config{Mode: ModeAllowlist}
	for i := range 4000 {
		cfg.Allow = append(cfg.Allow, Rule{Host: fmt.Sprintf("h%d.example.com", i), Ports: []Port{"443", "8000-8100"}})
	}
	for i := range 2000 {
		cfg.Allow = append(cfg.Allow, Rule{Host: fmt.Sprintf("*.w%d.example.org", i), ResolveWithin: []string{"8.8.0.0/16", "2606:4700::/32"}})
	}
	for i := range 2000 {
		cfg.Allow = append(cfg.Allow, Rule{CIDR: fmt.Sprintf("8.%d.%d.0/24", i/256, i%256)})
	}
	for i := range 1000 {
		cfg.Deny = append(cfg.Deny, Rule{Host: fmt.Sprintf("*.d%d.example.net", i)}, Rule{CIDR: fmt.Sprintf("9.%d.%d.0/28", i/256, i%256)})
	}
	p, err := Compile(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// hot are targets with what a look-up of each gave.
var hot = []struct {
	name    string
	target  Target
	answers []netip.Addr
	allow   bool
}{
	{"exact", Target{Name: "h3999.example.com", Port: 443}, addrs("8.8.8.8", "2606:4700::1"), true},
	{"wildcard", Target{Name: "a.b.c.w1999.example.org", Port: 443}, addrs("8.8.8.8", "8.8.4.4", "2606:4700::1", "2606:4700::2"), true},
	{"literal", Target{Addr: netip.MustParseAddr("8.7.200.1"), Port: 443}, nil, true},
	{"unknown name", Target{Name: "a.b.c.d.e.f.example.net", Port: 443}, nil, false},
	{"denied name", Target{Name: "a.b.d999.example.net", Port: 443}, nil, false},
	{"blocked answer", Target{Name: "h1.example.com", Port: 443}, addrs("8.8.8.8", "10.0.0.1"), false},
	{"denied answer", Target{Name: "h1.example.com", Port: 443}, addrs("9.3.200.1"), false},
	{"special literal", Target{Addr: netip.MustParseAddr("fe80::1"), Port: 443}, nil, false},
}

func verdictOf(g *Guard, p *Policy, t Target, answers []netip.Addr) bool {
	m := g.judge(p, "", t)
	if m.Allow && t.Name != "" {
		m = g.vet(p, "", m, t, answers)
	}
	return m.Allow
}

// BenchmarkVerdict is the whole decision with the look-up's answer at hand:
// parsing the host, the policy and the vetting of every address.
func BenchmarkVerdict(b *testing.B) {
	p, g := tenThousandRules(b), &Guard{}
	for _, h := range hot {
		text := h.target.Host()
		b.Run(h.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				t := Target{Port: h.target.Port}
				t.Name, t.Addr, _ = ParseHost(text)
				if verdictOf(g, p, t, h.answers) != h.allow {
					b.Fatal("wrong verdict")
				}
			}
		})
	}
}

// TestVerdictDoesNotAllocate holds the hot path to no allocation under 10,000
// rules, and its verdicts to what the rules say.
func TestVerdictDoesNotAllocate(t *testing.T) {
	p, g := tenThousandRules(t), &Guard{}
	for _, h := range hot {
		if verdictOf(g, p, h.target, h.answers) != h.allow {
			t.Errorf("%s: allowed %v", h.name, !h.allow)
		}
		if n := testing.AllocsPerRun(100, func() { verdictOf(g, p, h.target, h.answers) }); n != 0 {
			t.Errorf("%s: %v allocations", h.name, n)
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		tenThousandRules(b)
	}
}
