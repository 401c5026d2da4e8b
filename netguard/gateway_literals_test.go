package netguard

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func literals(e *Egress) (out []string) {
	for p, ports := range e.Literals() {
		out = append(out, fmt.Sprint(p, ports))
	}
	slices.Sort(out)
	return out
}

func TestLiterals(t *testing.T) {
	tests := []struct {
		name string
		cfg  Config
		want []string
	}{
		{"names only", Config{Mode: ModeAllowlist, Allow: []Rule{{Host: "a.example.com"}}}, nil},
		{"cidr", Config{Mode: ModeAllowlist, Allow: []Rule{{CIDR: "9.9.9.0/24", Ports: []Port{"443", "5432-5433"}}}}, []string{"9.9.9.0/24 [443 5432 5433]"}},
		{"many ports", Config{Mode: ModeAllowlist, Allow: []Rule{{CIDR: "9.9.9.0/24", Ports: []Port{"1-65535"}}}}, []string{"9.9.9.0/24 []"}},
		{"deny cuts", Config{Mode: ModeAllowlist, Allow: []Rule{{CIDR: "9.9.9.0/24"}}, Deny: []Rule{{CIDR: "9.9.9.64/26"}}}, []string{"9.9.9.0/26 [443]", "9.9.9.128/25 [443]"}},
		{"denied", Config{Mode: ModeAllowlist, Allow: []Rule{{CIDR: "9.9.9.0/24"}}, Deny: []Rule{{CIDR: "9.0.0.0/8"}}}, nil},
		{"local", Config{Mode: ModeAllowlist, AllowLocalEndpoint: []string{"127.0.0.1:5432", "10.0.0.1:80", "[::1]:99", "db.internal:1"}}, []string{"10.0.0.1/32 [80]", "127.0.0.1/32 [5432]", "::1/128 [99]"}},
		{"localhost", Config{Mode: ModeAllowlist, AllowLocalEndpoint: []string{"localhost:5432"}}, []string{"127.0.0.1/32 [5432]", "::1/128 [5432]"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, tt.cfg)
			if got := literals(l.egress); !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
	l := newLab(t, Config{Mode: ModePublic})
	if got := literals(l.guard.For(Subject{}, nil)); got != nil {
		t.Errorf("no policy opens %v", got)
	}
}

// What Literals opens is what ServeConn would let through, and nothing that it
// would refuse is opened, an ISATAP identifier apart.
func TestLiteralsAgreeWithTheGateway(t *testing.T) {
	l := newLab(t, Config{Mode: ModePublic, NAT64: true, Deny: []Rule{{CIDR: "8.8.8.0/24"}, {CIDR: "2606:4700::/32"}}})
	var open []netip.Prefix
	for p, ports := range l.egress.Literals() {
		if ports != nil {
			t.Fatalf("%v has ports", p)
		}
		open = append(open, p)
	}
	if len(open) > 1000 {
		t.Errorf("%d prefixes", len(open))
	}
	t.Logf("%d prefixes", len(open))
	contains := func(a netip.Addr) bool {
		return slices.ContainsFunc(open, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	check := func(a netip.Addr) error {
		v := l.egress.JudgeStream("tcp", netip.AddrPortFrom(a, 443), nil)
		if v.Allow != contains(a) && v.Class.String() != "v6.isatap" {
			return fmt.Errorf("%v: gateway %+v, listed %v", a, v, contains(a))
		}
		return nil
	}
	for p := range l.egress.cuts(l.egress.Policy()) {
		c := l.egress.cuts(l.egress.Policy())[p]
		for _, a := range []netip.Addr{c.Addr(), lastAddr(c), c.Addr().Prev(), lastAddr(c).Next()} {
			if a.IsValid() && !a.Is4In6() {
				if err := check(a); err != nil {
					t.Error(err)
				}
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		var b [16]byte
		copy(b[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "bytes"))
		a := netip.AddrFrom16(b)
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			a = netip.AddrFrom4([4]byte(b[:4]))
		case 1:
			b[0] = 0x20 | b[0]&0x1f
			a = netip.AddrFrom16(b)
		case 2:
			copy(b[:], []byte{0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0})
			a = netip.AddrFrom16(b)
		}
		if a.Is4In6() {
			return
		}
		if err := check(a); err != nil {
			t.Fatal(err)
		}
	})
}

func TestLocalEndpointsAtTheGateway(t *testing.T) {
	l := newLab(t, Config{Mode: ModeAllowlist, AllowLocalEndpoint: []string{"localhost:5432", "127.0.0.1:6379", "db.internal:5432"}})
	l.names.set("db.internal", time.Minute, "10.1.2.3")
	l.lookUp("db.internal")
	for at, want := range map[string]Reason{
		"127.0.0.1:5432": "", "[::1]:5432": "", "127.0.0.1:6379": "", "10.1.2.3:5432": "",
		"[::1]:6379": ReasonAddress, "127.0.0.2:6379": ReasonAddress, "10.1.2.3:22": ReasonSpecialName,
		"10.1.2.4:5432": ReasonAddress, "169.254.169.254:5432": ReasonAddress, "8.8.8.8:5432": ReasonPin,
	} {
		if v := l.egress.JudgeStream("tcp", netip.MustParseAddrPort(at), []byte("x")); v.Reason != want {
			t.Errorf("%s: %+v", at, v)
		}
	}
}
