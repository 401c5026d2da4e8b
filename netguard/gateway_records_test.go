package netguard

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

func TestRefused(t *testing.T) {
	l := newLab(t, Config{Mode: ModeAllowlist, Allow: []Rule{{CIDR: "9.9.9.0/24"}, {Host: "a.example.com"}}})
	l.names.set("a.example.com", time.Minute, "8.8.8.8")
	l.lookUp("a.example.com")
	for _, tt := range []struct {
		network, dst string
		want         Reason
		host         string
	}{
		{"udp", "9.9.9.9:443", ReasonNetwork, "9.9.9.9"},
		{"icmp", "8.8.8.8:0", ReasonNetwork, "a.example.com"},
		{"tcp", "1.1.1.1:443", ReasonPin, "1.1.1.1"},
		{"tcp", "9.9.9.9:80", ReasonPort, "9.9.9.9"},
		{"tcp", "8.8.8.8:80", ReasonPort, "a.example.com"}, // as its look-up named it
		{"tcp", "[::ffff:169.254.169.254]:80", ReasonAddress, "169.254.169.254"},
		{"tcp", "[fe80::1%eth0]:80", ReasonAddress, ""},
		{"tcp", "9.9.9.9:443", ReasonPin, "9.9.9.9"},
	} {
		dst := netip.MustParseAddrPort(tt.dst)
		l.egress.Refused(tt.network, dst)
		d := l.lastDecision()
		if d.Allow || d.Reason != tt.want || d.Network != tt.network || d.Via != ViaGateway || d.Port != dst.Port() {
			t.Errorf("%s %s: %+v", tt.network, tt.dst, d)
		}
		if tt.host != "" && d.Host != tt.host {
			t.Errorf("%s %s: recorded as %q, want %q", tt.network, tt.dst, d.Host, tt.host)
		}
	}
}

func TestFloodsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{Mode: ModeAllowlist})
		at := netip.MustParseAddrPort("8.8.8.8:53")
		for range 10 * maxRefusals {
			l.egress.Refused("udp", at)
		}
		if n := len(l.records); n != maxRefusals {
			t.Errorf("%d records of a flood", n)
		}
		// A flood of one kind hides nothing of another.
		_, _, _ = l.ask(t, dnsQueryBytes(t, "evil.example.net.", dnsmessage.TypeA, nil))
		if d := l.lastDecision(); d.Reason != ReasonNotAllowed || d.Suppressed != 0 {
			t.Errorf("look-up: %+v", d)
		}
		time.Sleep(time.Second)
		l.egress.Refused("udp", at)
		if d := l.lastDecision(); d.Suppressed != 9*maxRefusals {
			t.Errorf("next record: %+v", d)
		}
		for range 2 * maxRefusals {
			l.egress.Refused("udp", at)
		}
		_ = l.egress.Close()
		if d := l.lastDecision(); d.Suppressed != maxRefusals+1 || d.Reason != ReasonClosed {
			t.Errorf("last record: %+v", d)
		}
	})
}
