package netguard

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func hops(n int) *int { return &n }

// TestCompileListsEveryFault holds that one round shows all faults, each at
// the path of its field and in the order of the fields.
func TestCompileListsEveryFault(t *testing.T) {
	_, err := Compile(Config{
		Mode: "open",
		Allow: []Rule{
			{Host: "a.example.com", CIDR: "8.8.8.0/24"},
			{Host: "*"},
			{Host: "b.example.com", Ports: []Port{"443", "0", "90-80", "x"}},
			{CIDR: "10.0.0.0/8", ResolveWithin: []string{"8.8.8.0/24"}, SharedSuffix: true},
			{Host: "*.github.io", Protocol: "udp", ECH: "maybe"},
			{Host: "c.example.com", Ports: []Port{}, ResolveWithin: []string{"8.8.8.8", "8.8.8.1/24", "::ffff:8.8.8.0/120"}},
			{},
		},
		Deny:               []Rule{{Host: "x.example.com", Ports: []Port{"443"}}, {}, {CIDR: "8.8.8.8"}, {Host: "a", CIDR: "8.8.8.8/32"}},
		AllowLocalEndpoint: []string{"127.0.0.1", "8.8.8.8:443", "[fe80::1]:80", "169.254.169.254:80", "metadata:80", "127.0.0.1:0"},
		Schemes:            []string{"https", "file"},
		MaxRedirects:       hops(-1),
		CrossOriginBody:    "yes",
		Limits:             Limits{Connections: -1, BytesDown: -5},
		PinTTL:             -1,
	})
	var faults *ConfigError
	if !errors.As(err, &faults) {
		t.Fatalf("%v is no ConfigError", err)
	}
	var got []string
	for _, f := range faults.Fields {
		if f.Msg == "" {
			t.Errorf("%s: no message", f.Path)
		}
		got = append(got, f.Path)
	}
	want := []string{
		"mode", "allow[0]", "allow[1].host", "allow[2].ports[1]", "allow[2].ports[2]", "allow[2].ports[3]",
		"allow[3].resolve_within", "allow[3].shared_suffix", "allow[3].cidr",
		"allow[4].protocol", "allow[4].ech", "allow[4].host",
		"allow[5].ports", "allow[5].resolve_within[0]", "allow[5].resolve_within[1]", "allow[5].resolve_within[2]", "allow[6]",
		"deny[0]", "deny[1]", "deny[2].cidr", "deny[3]",
		"allow_local_endpoint[0]", "allow_local_endpoint[1]", "allow_local_endpoint[2]",
		"allow_local_endpoint[3]", "allow_local_endpoint[4]", "allow_local_endpoint[5]",
		"schemes[1]", "max_redirects", "cross_origin_body",
		"limits.connections", "limits.bytes_down", "pin_ttl",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("paths (-want +got):\n%s", d)
	}
	var one FieldError
	if !errors.As(err, &one) || one.Path != "mode" {
		t.Errorf("errors.As gives %v", one)
	}
}

func TestCompileWarns(t *testing.T) {
	p, err := Compile(Config{
		Mode: ModeAllowlist,
		Allow: []Rule{
			{Host: "*.amazonaws.com", SharedSuffix: true, Protocol: ProtocolTCP, ECH: "allow"},
			{Host: "git.example.com", Ports: []Port{"22"}},
			{CIDR: "8.0.0.0/9"},
			{Host: "a.example.com", Ports: []Port{"1-65535"}},
		},
		NAT64:           true,
		CrossOriginBody: "allow",
	})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, w := range p.Warnings() {
		got[w.Path] += w.Msg + "; "
	}
	for path, word := range map[string]string{
		"allow[0].host":     "strangers",
		"allow[0].protocol": "raw bytes",
		"allow[0].ech":      "encrypted",
		"allow[1].ports":    "port 22",
		"allow[2].cidr":     "broad",
		"allow[3].ports":    "wide",
		"nat64":             "translator",
		"cross_origin_body": "redirect",
	} {
		if !strings.Contains(got[path], word) {
			t.Errorf("%s: %q does not speak of %q", path, got[path], word)
		}
	}
	quiet, err := Compile(Config{Mode: ModeAllowlist, Allow: []Rule{{Host: "api.example.com"}, {Host: "*.example.org", Ports: []Port{"443"}}}})
	if err != nil || len(quiet.Warnings()) != 0 {
		t.Errorf("%v, %v", quiet.Warnings(), err)
	}
}

// TestZeroDenies holds that nothing is open because a value was left out.
func TestZeroDenies(t *testing.T) {
	g := &Guard{}
	for _, p := range []*Policy{nil, {}} {
		for _, s := range []string{"example.com:443", "8.8.8.8:443", "localhost:80"} {
			target, _ := ParseTarget(s)
			if m := g.judge(p, "", target); m.Allow || m.Reason != ReasonNoPolicy {
				t.Errorf("%v allows %s: %+v", p, s, m)
			}
		}
	}
	if _, err := Compile(Config{}); err == nil {
		t.Error("a zero Config compiles")
	}
	if (Verdict{}).Allow || (match{}).permits(ProtocolTLS, Target{Name: "a.b", Port: 443}) {
		t.Error("a zero verdict allows")
	}
}

func TestDecodeConfigIsStrict(t *testing.T) {
	for _, s := range []string{
		`{"mode":"public","modes":1}`,
		`{"mode":"public","mode":"allowlist"}`,
		`{"Mode":"public"}`,
		`{"mode":"public"} x`,
		`{"mode":"public","allow":[{"host":"a.example.com","port":1}]}`,
		`{"mode":"public","pin_ttl":"soon"}`,
		strings.Repeat("[", 1<<16),
		`[]`, ``, `null x`,
	} {
		if cfg, err := DecodeConfig([]byte(s)); err == nil {
			t.Errorf("%.40q: %+v", s, cfg)
		}
	}
	cfg, err := DecodeConfig([]byte(`{"mode":"allowlist","allow":[{"host":"a.example.com","ports":[443,"8000-8100"]}],"pin_ttl":"90s","max_redirects":0}`))
	if err != nil || cfg.PinTTL.Seconds() != 90 || cfg.Allow[0].Ports[1] != "8000-8100" || *cfg.MaxRedirects != 0 {
		t.Errorf("%+v, %v", cfg, err)
	}
}

// FuzzConfig holds that any document compiles or is refused, and that no
// compiled policy opens what no policy may.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(`{"mode":"allowlist","allow":[{"host":"*.example.com","ports":[443]},{"cidr":"8.8.8.0/24"}],"deny":[{"cidr":"8.8.8.8/32"}]}`))
	f.Add([]byte(`{"mode":"public","allow_local_endpoint":["127.0.0.1:80","db.internal:1"],"nat64":true}`))
	f.Add([]byte(`{"mode":"allowlist","allow":[{"cidr":"0.0.0.0/0"}]}`))
	seedCases(f, func(in any) {
		if b, ok := in.([]byte); ok {
			f.Add(b)
		}
	}, "policy")
	f.Fuzz(func(t *testing.T, doc []byte) {
		cfg, err := DecodeConfig(doc)
		if err != nil {
			return
		}
		p, err := Compile(cfg)
		if err != nil {
			var faults *ConfigError
			if !errors.As(err, &faults) || len(faults.Fields) == 0 {
				t.Fatalf("%v is no ConfigError", err)
			}
			return
		}
		g := &Guard{}
		for _, s := range []string{"169.254.169.254:80", "[fe80::1]:80", "0.0.0.0:80", "[::]:80", "[::ffff:127.0.0.1]:80", "224.0.0.1:80", "[64:ff9b::7f00:1]:80", "[2002:7f00:1::]:80", "168.63.129.16:80", "100.100.100.200:80"} {
			target, _ := ParseTarget(s)
			if m := g.judge(p, "", target); m.Allow {
				t.Fatalf("%s opens %s: %+v", doc, s, m)
			}
		}
	})
}
