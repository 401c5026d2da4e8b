package netguard

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// ask resolves through the gateway and returns the parsed answer and what was
// let through for how long.
func (l *lab) ask(t testing.TB, query []byte) (m dnsmessage.Message, pins []netip.AddrPort, ttl time.Duration) {
	t.Helper()
	raw, err := l.egress.Resolve(context.Background(), query, func(to []netip.AddrPort, d time.Duration) error {
		pins, ttl = append(pins, to...), d
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Unpack(raw); err != nil {
		t.Fatal(err)
	}
	return m, pins, ttl
}

func dnsLab(t testing.TB) *lab {
	l := newLab(t, Config{
		Mode: ModeAllowlist,
		Allow: []Rule{
			{Host: "api.example.com", Ports: []Port{"443", "8443"}},
			{Host: "*.example.org"},
			{Host: "wide.example.com", Ports: []Port{"1-65535"}},
			{Host: "both.example.com"},
		},
		Deny:               []Rule{{Host: "no.example.org"}},
		AllowLocalEndpoint: []string{"db.internal:5432", "both.example.com:6432"},
		Limits:             Limits{NamesPerWildcard: 5},
	})
	for name, ips := range map[string][]string{
		"api.example.com": {"2606:4700::1", "8.8.8.8"}, "a.example.org": {"1.1.1.1"},
		"v6.example.org": {"2606:4700::2"}, "bad.example.org": {"8.8.8.8", "10.0.0.1"},
		"mapped.example.org": {"::ffff:10.0.0.1"}, "nat64.example.org": {"64:ff9b::7f00:1"},
		"empty.example.org": {}, "wide.example.com": {"8.8.8.8"}, "db.internal": {"10.1.2.3"},
		"both.example.com": {"10.1.2.3"},
	} {
		l.names.set(name, 30*time.Second, ips...)
	}
	return l
}

func TestResolve(t *testing.T) {
	tests := []struct {
		name   string
		qtype  dnsmessage.Type
		rcode  dnsmessage.RCode
		answer []string
		pins   []string
		reason Reason // of the newest decision
		asked  bool   // whether a query left
	}{
		{"api.example.com.", dnsmessage.TypeA, 0, []string{"8.8.8.8"}, []string{"[2606:4700::1]:443", "8.8.8.8:443", "[2606:4700::1]:8443", "8.8.8.8:8443"}, "", true},
		{"API.Example.com.", dnsmessage.TypeAAAA, 0, []string{"2606:4700::1"}, []string{"[2606:4700::1]:443", "8.8.8.8:443", "[2606:4700::1]:8443", "8.8.8.8:8443"}, "", true},
		{"v6.example.org.", dnsmessage.TypeA, 0, nil, []string{"[2606:4700::2]:443"}, "", true},
		{"wide.example.com.", dnsmessage.TypeA, 0, []string{"8.8.8.8"}, []string{"8.8.8.8:0"}, "", true},
		{"db.internal.", dnsmessage.TypeA, 0, []string{"10.1.2.3"}, []string{"10.1.2.3:5432"}, "", true},
		{"both.example.com.", dnsmessage.TypeA, 0, []string{"10.1.2.3"}, []string{"10.1.2.3:6432"}, "", true},
		{"evil.example.net.", dnsmessage.TypeA, dnsmessage.RCodeNameError, nil, nil, ReasonNotAllowed, false},
		{"secret-data.evil.example.net.", dnsmessage.TypeTXT, dnsmessage.RCodeNameError, nil, nil, ReasonNotAllowed, false},
		{"example.org.", dnsmessage.TypeA, dnsmessage.RCodeNameError, nil, nil, ReasonNotAllowed, false},
		{"no.example.org.", dnsmessage.TypeA, dnsmessage.RCodeNameError, nil, nil, ReasonDenyRule, false},
		{"localhost.", dnsmessage.TypeA, dnsmessage.RCodeNameError, nil, nil, ReasonSpecialName, false},
		{"db2.internal.", dnsmessage.TypeA, dnsmessage.RCodeNameError, nil, nil, ReasonSpecialName, false},
		{"10.0.0.1.", dnsmessage.TypeA, dnsmessage.RCodeNameError, nil, nil, ReasonHostNumeric, false},
		{".", dnsmessage.TypeA, dnsmessage.RCodeNameError, nil, nil, ReasonHostSyntax, false},
		{"bad.example.org.", dnsmessage.TypeA, dnsmessage.RCodeNameError, nil, nil, ReasonAddress, true},
		{"mapped.example.org.", dnsmessage.TypeAAAA, dnsmessage.RCodeNameError, nil, nil, ReasonAddress, true},
		{"nat64.example.org.", dnsmessage.TypeAAAA, dnsmessage.RCodeNameError, nil, nil, ReasonAddress, true},
		{"empty.example.org.", dnsmessage.TypeA, 0, nil, nil, ReasonResolve, true},
		{"gone.example.org.", dnsmessage.TypeA, dnsmessage.RCodeNameError, nil, nil, ReasonResolve, true},
		{"api.example.com.", dnsmessage.TypeHTTPS, 0, nil, nil, ReasonDNSType, false},
		{"api.example.com.", dnsmessage.TypeSVCB, 0, nil, nil, ReasonDNSType, false},
		{"api.example.com.", dnsmessage.TypeTXT, dnsmessage.RCodeRefused, nil, nil, ReasonDNSType, false},
		{"api.example.com.", dnsmessage.TypeALL, dnsmessage.RCodeRefused, nil, nil, ReasonDNSType, false},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.name, tt.qtype), func(t *testing.T) {
			l := dnsLab(t)
			m, pins, _ := l.ask(t, dnsQueryBytes(t, tt.name, tt.qtype, nil))
			var got []string
			for _, r := range m.Answers {
				switch b := r.Body.(type) {
				case *dnsmessage.AResource:
					got = append(got, netip.AddrFrom4(b.A).String())
				case *dnsmessage.AAAAResource:
					got = append(got, netip.AddrFrom16(b.AAAA).String())
				}
			}
			if m.RCode != tt.rcode || !slices.Equal(got, tt.answer) {
				t.Errorf("%v with %v", m.RCode, got)
			}
			var let []string
			for _, p := range pins {
				let = append(let, p.String())
			}
			if !slices.Equal(let, tt.pins) {
				t.Errorf("pinned %v", let)
			}
			if d := l.lastDecision(); d.Reason != tt.reason || d.Allow != (tt.reason == "") || d.Via != ViaDNS {
				t.Errorf("decision %+v", d)
			}
			if asked := len(l.names.asked) > 0; asked != tt.asked {
				t.Errorf("upstream was asked: %v", l.names.asked)
			}
		})
	}
}

func TestResolveBadMessages(t *testing.T) {
	ok := dnsQueryBytes(t, "api.example.com.", dnsmessage.TypeA, nil)
	tests := []struct {
		name   string
		query  []byte
		rcode  dnsmessage.RCode
		reason Reason
	}{
		{"trailing bytes", append(slices.Clone(ok), 1), dnsmessage.RCodeFormatError, ReasonDNSMalformed},
		{"notify", dnsQueryBytes(t, "api.example.com.", dnsmessage.TypeA, func(m *dnsmessage.Message) { m.OpCode = 4 }), dnsmessage.RCodeNotImplemented, ReasonDNSOp},
		{"chaos", dnsQueryBytes(t, "api.example.com.", dnsmessage.TypeA, func(m *dnsmessage.Message) { m.Questions[0].Class = dnsmessage.ClassCHAOS }), dnsmessage.RCodeRefused, ReasonDNSClass},
		{"edns 1", dnsQueryBytes(t, "api.example.com.", dnsmessage.TypeA, func(m *dnsmessage.Message) {
			withEDNS(1232)(m)
			m.Additionals[0].Header.TTL |= 1 << 16
		}), dnsmessage.RCode(0), ReasonDNSMalformed}, // the upper bits are in the OPT
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := dnsLab(t)
			m, pins, _ := l.ask(t, tt.query)
			if m.RCode != tt.rcode || len(m.Answers) > 0 || len(pins) > 0 || len(l.names.asked) > 0 {
				t.Errorf("%+v, %v, %v", m, pins, l.names.asked)
			}
			if d := l.lastDecision(); d.Reason != tt.reason {
				t.Errorf("decision %+v", d)
			}
		})
	}
	l := dnsLab(t)
	response := slices.Clone(ok)
	response[2] |= 0x80
	for _, silent := range [][]byte{nil, ok[:5], response} {
		out, err := l.egress.Resolve(context.Background(), silent, nil)
		if out != nil || !errors.Is(err, &DeniedError{Reason: ReasonDNSMalformed}) {
			t.Errorf("%x was answered with %x, %v", silent, out, err)
		}
	}
}

func TestResolveFailsWithItsPin(t *testing.T) {
	l := dnsLab(t)
	raw, err := l.egress.Resolve(context.Background(), dnsQueryBytes(t, "api.example.com.", dnsmessage.TypeA, nil),
		func([]netip.AddrPort, time.Duration) error { return errors.New("the set is full") })
	var m dnsmessage.Message
	if err != nil || m.Unpack(raw) != nil || m.RCode != dnsmessage.RCodeServerFailure || len(m.Answers) > 0 {
		t.Errorf("%+v, %v", m, err)
	}
	if l.egress.gw.pins.lookup("api.example.com") != nil || l.lastDecision().Allow {
		t.Error("pinned all the same")
	}
}

// Distinct names below a wildcard are a way to carry data to whoever serves
// the zone.
func TestResolveLimitsNamesPerWildcard(t *testing.T) {
	l := dnsLab(t)
	for i := range 10 {
		name := fmt.Sprintf("chunk%d.example.org", i)
		l.names.set(name, time.Minute, "8.8.8.8")
		l.lookUp(name)
		l.lookUp(name) // again costs nothing
	}
	if d := l.lastDecision(); d.Allow || d.Reason != ReasonNames {
		t.Errorf("decision %+v", d)
	}
	l.names.mu.Lock()
	defer l.names.mu.Unlock()
	slices.Sort(l.names.asked)
	if got := slices.Compact(l.names.asked); len(got) != 5 {
		t.Errorf("%d names left: %v", len(got), got)
	}
}

func TestResolveTimes(t *testing.T) {
	for _, tt := range []struct {
		pinTTL, upstream, wantTTL, wantPin time.Duration
	}{
		{0, 30 * time.Second, 30 * time.Second, 90 * time.Second},
		{0, 0, 0, time.Minute},
		{0, 24 * time.Hour, 9 * time.Minute, 10 * time.Minute},
		{5 * time.Second, 30 * time.Second, 5 * time.Second, 5 * time.Second},
		{time.Hour, 30 * time.Second, 30 * time.Second, time.Hour},
	} {
		l := newLab(t, Config{Mode: ModeAllowlist, Allow: []Rule{{Host: "a.example.com"}}, PinTTL: tt.pinTTL})
		l.names.set("a.example.com", tt.upstream, "8.8.8.8")
		m, _, pin := l.ask(t, dnsQueryBytes(t, "a.example.com.", dnsmessage.TypeA, nil))
		if got := time.Duration(m.Answers[0].Header.TTL) * time.Second; got != tt.wantTTL || pin != tt.wantPin {
			t.Errorf("%+v: answer %v, pin %v", tt, got, pin)
		}
	}
}

func TestPinEndsWithItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{Mode: ModeAllowlist, Allow: []Rule{{Host: "a.example.com", Protocol: ProtocolTCP}}, PinTTL: time.Minute})
		l.names.set("a.example.com", time.Minute, "8.8.8.8")
		l.lookUp("a.example.com")
		at := netip.MustParseAddrPort("8.8.8.8:443")
		if v := l.egress.JudgeStream("tcp", at, nil); !v.Allow {
			t.Errorf("at once: %+v", v)
		}
		time.Sleep(61 * time.Second)
		if v := l.egress.JudgeStream("tcp", at, nil); v.Allow || v.Reason != ReasonPin {
			t.Errorf("after its time: %+v", v)
		}
		_ = l.egress.Close()
	})
}

// In mode public nothing has to be let through one by one.
func TestResolvePublicMode(t *testing.T) {
	l := newLab(t, Config{Mode: ModePublic})
	l.names.set("a.example.com", time.Minute, "8.8.8.8")
	m, pins, _ := l.ask(t, dnsQueryBytes(t, "a.example.com.", dnsmessage.TypeA, nil))
	if len(m.Answers) != 1 || len(pins) != 0 {
		t.Errorf("%v, pinned %v", m.Answers, pins)
	}
}

func TestResolveAllowsAreRecordedOncePerPin(t *testing.T) {
	l := dnsLab(t)
	for range 5 {
		l.lookUp("api.example.com")
	}
	n := 0
	for _, r := range l.records {
		if r.Via == ViaDNS && r.Allow {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d records", n)
	}
}

// TestLookupsAreLimited: a guest cannot flood the resolver that it shares with
// others, not even with questions that policy allows. Refusals cost no query.
func TestLookupsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{Mode: ModeAllowlist, Allow: []Rule{{Host: "api.example.com"}}, Limits: Limits{PerSecond: 3}})
		l.names.set("api.example.com", time.Minute, "8.8.8.8")
		ask := func(name string) dnsmessage.RCode {
			m, _, _ := l.ask(t, dnsQueryBytes(t, name, dnsmessage.TypeA, nil))
			return m.RCode
		}
		for range 50 {
			if got := ask("other.example.com."); got != dnsmessage.RCodeNameError {
				t.Fatalf("a refused name: %v", got)
			}
		}
		for range 2 {
			for i := range 3 * lookupsPerConnection {
				if got := ask("api.example.com."); got != dnsmessage.RCodeSuccess {
					t.Fatalf("look-up %d: %v", i, got)
				}
			}
			if got := ask("api.example.com."); got != dnsmessage.RCodeServerFailure {
				t.Errorf("one look-up too many: %v", got)
			}
			if d := l.lastDecision(); d.Reason != ReasonRate {
				t.Errorf("recorded as %q, want %q", d.Reason, ReasonRate)
			}
			time.Sleep(time.Second)
		}
	})
}

// TestCheckName holds that a guest's look-up meets the policy with no query
// sent, and that refusals are recorded, a flood of them by its number.
func TestCheckName(t *testing.T) {
	l := newLab(t, Config{
		Mode:  ModeAllowlist,
		Allow: []Rule{allowHost("api.example.com", ProtocolTLS, "8443"), allowHost("*.wild.example.com", ProtocolTLS, "443")},
		Deny:  []Rule{{Host: "bad.wild.example.com"}},
	})
	for name, want := range map[string]Reason{
		"API.example.com.":               "",
		"a.wild.example.com":             "",
		"bad.wild.example.com":           ReasonDenyRule,
		"other.example.com":              ReasonNotAllowed,
		"api.example.com.evil.com":       ReasonNotAllowed,
		"localhost":                      ReasonSpecialName,
		"127.0.0.1":                      ReasonHostNumeric,
		"::1":                            ReasonHostNumeric,
		"2852039166":                     ReasonHostNumeric,
		"api.example.com:443":            ReasonHostSyntax,
		"api..example.com":               ReasonHostSyntax,
		"":                               ReasonHostSyntax,
		strings.Repeat("a", 64) + ".com": ReasonHostSyntax,
	} {
		before := len(l.records)
		err := l.egress.CheckName(name)
		if want == "" {
			if err != nil || len(l.records) != before {
				t.Errorf("%q: %v, %d records", name, err, len(l.records)-before)
			}
			continue
		}
		wantDenied(t, err, want)
		if d := l.lastDecision(); d.Reason != want || d.Allow || d.Via != ViaDNS || len(l.records) != before+1 {
			t.Errorf("%q: %+v", name, d)
		}
	}
	l.egress.SetPolicy(nil)
	wantDenied(t, l.egress.CheckName("api.example.com"), ReasonNoPolicy)
	before := len(l.records)
	for range 10 * maxRefusals {
		wantDenied(t, l.egress.CheckName("flood.example.com"), ReasonNoPolicy)
	}
	_ = l.egress.Close()
	wantDenied(t, l.egress.CheckName("api.example.com"), ReasonClosed)
	written, suppressed := int64(len(l.records)-before), int64(0)
	for _, r := range l.records[before:] {
		suppressed += r.Suppressed
	}
	if written > 5*maxRefusals || written+suppressed < 10*maxRefusals {
		t.Errorf("%d refusals written and %d counted", written, suppressed)
	}
	if len(l.names.asked) > 0 {
		t.Errorf("queries left: %v", l.names.asked)
	}
}
