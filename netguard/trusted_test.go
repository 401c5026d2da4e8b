package netguard

import (
	"net/netip"
	"testing"
)

func TestCheckTrusted(t *testing.T) {
	for in, ok := range map[string]bool{
		"10.0.0.0/8": true, "172.16.0.0/12": true, "192.168.7.0/24": true, "100.64.0.0/10": true,
		"198.18.0.0/15": true, "203.0.113.80/32": true, "240.0.0.0/8": true, "fd00::/8": true, "2001:db8::/32": true,
		"0.0.0.0/0": false, "::/0": false, "127.0.0.0/8": false, "127.0.0.1/32": false, "126.0.0.0/7": false,
		"169.254.0.0/16": false, "169.254.169.254/32": false, "0.0.0.0/8": false, "224.0.0.0/4": false,
		"255.255.255.255/32": false, "8.8.8.0/24": false, "8.0.0.0/6": false, "::1/128": false, "fe80::/10": false,
		"ff00::/8": false, "64:ff9b::/96": false, "2002::/16": false, "::ffff:10.0.0.0/104": false,
	} {
		if err := CheckTrusted(netip.MustParsePrefix(in)); (err == nil) != ok {
			t.Errorf("%s: %v; want taken %v", in, err, ok)
		}
	}
	if CheckTrusted(netip.Prefix{}) == nil || CheckTrusted(netip.PrefixFrom(netip.MustParseAddr("10.0.0.1"), 8)) == nil {
		t.Error("a prefix that is none was taken")
	}
}

// TestTrustedHosts holds that a mirror's ranges help that one name alone, only
// where the policy allows it, and open neither literals nor what is refused
// for everyone.
func TestTrustedHosts(t *testing.T) {
	l := newLab(t, Config{
		Mode:  ModeAllowlist,
		Allow: []Rule{{Host: "npm.example.com"}, {Host: "other.example.com"}, {Host: "near.example.com", ResolveWithin: []string{"10.9.0.0/24"}}},
	})
	ranges := []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16"), netip.MustParsePrefix("100.64.0.0/10")}
	g, err := New(Options{
		Resolver: &l.names, Dial: l.dial,
		TrustedHosts: map[string][]netip.Prefix{"NPM.example.com.": ranges, "near.example.com": ranges, "closed.example.com": ranges},
		Refused:      []netip.Prefix{netip.MustParsePrefix("10.9.7.0/24")},
	})
	if err != nil {
		t.Fatal(err)
	}
	p := l.egress.Policy()
	for _, tt := range []struct {
		host string
		ips  []string
		want Reason
	}{
		{"npm.example.com", []string{"10.9.1.1"}, ""},
		{"npm.example.com", []string{"9.9.9.9", "10.9.1.1"}, ""},
		{"npm.example.com", []string{"10.9.1.1", "10.8.1.1"}, ReasonAddress},
		{"npm.example.com", []string{"10.9.1.1", "127.0.0.1"}, ReasonAddress},
		{"npm.example.com", []string{"10.9.7.1"}, ReasonAddress},        // refused by the operator
		{"npm.example.com", []string{"100.100.100.200"}, ReasonAddress}, // a metadata service
		{"other.example.com", []string{"10.9.1.1"}, ReasonAddress},
		{"closed.example.com", []string{"10.9.1.1"}, ReasonNotAllowed},
		{"near.example.com", []string{"10.9.0.1"}, ""},
		{"near.example.com", []string{"10.9.1.1"}, ReasonWithin},
	} {
		target := Target{Name: tt.host, Port: 443}
		m := g.vet(p, "", g.judge(p, "", target), target, addrs(tt.ips...))
		if m.Reason != tt.want || m.Allow != (tt.want == "") {
			t.Errorf("%s to %v: %+v; want %q", tt.host, tt.ips, m.Verdict, tt.want)
		}
	}
	if m := g.judge(p, "", Target{Addr: netip.MustParseAddr("10.9.1.1"), Port: 443}); m.Allow {
		t.Error("a trusted range opened a literal")
	}
	for _, bad := range []map[string][]netip.Prefix{
		{"npm.example.com": {netip.MustParsePrefix("127.0.0.0/8")}},
		{"10.0.0.1": ranges},
		{"not a host": ranges},
		{"a.example.com": ranges, "A.example.com": ranges},
	} {
		if _, err := New(Options{Resolver: &l.names, TrustedHosts: bad}); err == nil {
			t.Errorf("%v was taken", bad)
		}
	}
}
