package netguard

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestParseHost(t *testing.T) {
	long := strings.Repeat("a", 63)
	for _, tt := range []struct {
		in, name, addr string
		reason         Reason
	}{
		{in: "Api.Example.COM.", name: "api.example.com"},
		{in: "_dmarc.example.org", name: "_dmarc.example.org"},
		{in: "r3---sn-ab5l.example.org", name: "r3---sn-ab5l.example.org"},
		{in: "XN--BCHER-KVA.example.org", name: "xn--bcher-kva.example.org"},
		{in: "127.0.0.1.example.com", name: "127.0.0.1.example.com"},
		{in: "8.8.8.8", addr: "8.8.8.8"},
		{in: "2606:4700::1", addr: "2606:4700::1"},
		{in: "::ffff:8.8.8.8", addr: "::ffff:8.8.8.8"},
		{in: "8.8.8.8.", reason: ReasonHostNumeric},
		{in: "0x7f.1", reason: ReasonHostNumeric},
		{in: "010.8.8.8", reason: ReasonHostNumeric},
		{in: "a.0xF", reason: ReasonHostNumeric},
		{in: "a.0xG", name: "a.0xg"},
		{in: "xn--", reason: ReasonHostIDNA},
		{in: "xn--a", reason: ReasonHostIDNA},
		{in: "xn--99999999.example", reason: ReasonHostIDNA},
		{in: "", reason: ReasonHostSyntax},
		{in: ".", reason: ReasonHostSyntax},
		{in: "a..b", reason: ReasonHostSyntax},
		{in: "a.b..", reason: ReasonHostSyntax},
		{in: "-a.b", reason: ReasonHostSyntax},
		{in: "a-.b", reason: ReasonHostSyntax},
		{in: "a.b:443", reason: ReasonHostSyntax},
		{in: "fe80::1%eth0", reason: ReasonHostSyntax},
		{in: "ａ.example", reason: ReasonHostSyntax},
		{in: "a\x00.example", reason: ReasonHostSyntax},
		{in: long + ".example", name: long + ".example"},
		{in: long + "a.example", reason: ReasonHostSyntax},
	} {
		name, addr, reason := ParseHost(tt.in)
		got := ""
		if addr.IsValid() {
			got = addr.String()
		}
		if name != tt.name || got != tt.addr || reason != tt.reason {
			t.Errorf("ParseHost(%q) = %q, %q, %q; want %q, %q, %q", tt.in, name, got, reason, tt.name, tt.addr, tt.reason)
		}
	}
}

func TestParseHostDoesNotAllocate(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() { _, _, _ = ParseHost("api.example.com.") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestTargetString(t *testing.T) {
	for _, s := range []string{"example.com:443", "8.8.8.8:53", "[2606:4700::1]:1"} {
		got, reason := ParseTarget(s)
		if reason != "" || got.String() != s {
			t.Errorf("ParseTarget(%q) = %q, %q", s, got, reason)
		}
	}
	for in, want := range map[string]Reason{
		"example.com":       ReasonPortSyntax,
		"example.com:":      ReasonPortSyntax,
		"example.com:https": ReasonPortSyntax,
		"example.com:080":   ReasonPortSyntax,
		"example.com:65536": ReasonPortSyntax,
		"2606:4700::1:443":  ReasonHostNumeric,
		"[8.8.8.8]:443":     ReasonIPSyntax,
		"[::1%lo]:443":      ReasonIPSyntax,
		"[::1:443":          ReasonHostSyntax,
		":443":              ReasonHostSyntax,
	} {
		if got, reason := ParseTarget(in); reason != want {
			t.Errorf("ParseTarget(%q) = %v, %q; want %q", in, got, reason, want)
		}
	}
}

// seedCases calls add with each input of the shipped cases of these kinds, so
// that the fuzz targets start from, and every test run checks, all of them.
func seedCases(f *testing.F, add func(input any), kinds ...string) {
	f.Helper()
	data, err := os.ReadFile("casefile/testdata/cases.jsonl")
	if err != nil {
		f.Fatal(err)
	}
	for line := range bytes.Lines(data) {
		var c struct {
			Kind   string
			Input  any
			Policy json.RawMessage
		}
		if err := json.Unmarshal(line, &c); err != nil {
			f.Fatal(err)
		}
		switch {
		case !slices.Contains(kinds, c.Kind):
		case c.Kind == "policy":
			add([]byte(c.Policy))
		default:
			add(c.Input)
		}
	}
}

// FuzzParseHost holds that a host is read in one way: what is accepted is
// canonical, reads as itself again, and is no name that another parser takes
// for an address.
func FuzzParseHost(f *testing.F) {
	for _, s := range []string{"a.example.com.", "127.0.0.1", "::1", "0x7f.1", "xn--bcher-kva.example", "１２７.0.0.1", "a\x00b", "*.x", "xn--", "1.2.3.4.", "[::1]"} {
		f.Add(s)
	}
	seedCases(f, func(in any) {
		if s, ok := in.(string); ok {
			f.Add(s)
		}
	}, "host", "ip")
	f.Fuzz(func(t *testing.T, s string) {
		name, addr, reason := ParseHost(s)
		if reason != "" {
			if name != "" || addr.IsValid() {
				t.Fatalf("refused %q and yet read %q, %v", s, name, addr)
			}
			return
		}
		if (name == "") == !addr.IsValid() {
			t.Fatalf("%q is both or neither: %q, %v", s, name, addr)
		}
		if addr.IsValid() {
			if addr.Zone() != "" {
				t.Fatalf("%q has a zone", s)
			}
			if again, err := netip.ParseAddr(s); err != nil || again != addr {
				t.Fatalf("%q: netip reads %v, %v", s, again, err)
			}
			return
		}
		for i := range len(name) {
			if c := name[i]; c <= ' ' || c >= 0x7f || 'A' <= c && c <= 'Z' || strings.IndexByte("*%/\\@:#?[]", c) >= 0 {
				t.Fatalf("%q keeps %q", s, c)
			}
		}
		if again, _, r := ParseHost(name); r != "" || again != name {
			t.Fatalf("%q -> %q -> %q, %q", s, name, again, r)
		}
		if _, err := netip.ParseAddr(name); err == nil {
			t.Fatalf("%q is an address and was taken for a name", s)
		}
	})
}

// FuzzParseURL holds that an accepted URL has the same host and port for
// net/url, which the HTTP client uses.
func FuzzParseURL(f *testing.F) {
	for _, s := range []string{"https://example.com:443/x?y#z", "http://[::1]:80/", "http://a@b/", "http:\\\\a", "ws://a.b/%2f", "http+unix://%2f/", "https://a.b:/"} {
		f.Add(s)
	}
	seedCases(f, func(in any) {
		if s, ok := in.(string); ok {
			f.Add(s)
		}
	}, "url")
	f.Fuzz(func(t *testing.T, s string) {
		u, reason := ParseURL(s)
		if reason != "" {
			return
		}
		std, err := url.Parse(s)
		if err != nil {
			return // stricter about what follows the authority; the client refuses it too
		}
		if std.User != nil || std.Opaque != "" || std.Scheme != u.Scheme {
			t.Fatalf("%q: net/url reads %#v", s, std)
		}
		name, addr, r := ParseHost(std.Hostname())
		if r != "" || name != u.Target.Name || addr != u.Target.Addr {
			t.Fatalf("%q: host %q for net/url, %v here", s, std.Hostname(), u.Target)
		}
		port := std.Port()
		if port == "" {
			port = defaultPort(u.Scheme)
		}
		if port != strconv.Itoa(int(u.Target.Port)) {
			t.Fatalf("%q: port %q for net/url, %d here", s, std.Port(), u.Target.Port)
		}
	})
}
