package policies

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/netguard"
)

func egressOf(t *testing.T, l Loader, doc string) (*netguard.Config, []string) {
	t.Helper()
	p, err := l.Parse("p.yaml", []byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	var warnings []string
	for _, w := range p.Warnings {
		warnings = append(warnings, w.String())
	}
	return p.Egress, warnings
}

const mixed = `egress:
  mode: allowlist
  allow:
    - host: a.example.com
    - host: "{{registry.pypi}}"
      resolve_within: [93.184.0.0/16]
    - host: "{{ registry.npm }}"
      ech: allow
    - host: z.example.com
      ports: [22]
`

func TestPlaceholdersBecomeTheClientsHosts(t *testing.T) {
	calls := 0
	l := Loader{Registries: func(names []string) map[string][]string {
		calls++
		if d := cmp.Diff([]string{"pypi", "npm"}, names); d != "" {
			t.Errorf("asked for (-want +got):\n%s", d)
		}
		return examples(names)
	}}
	c, warnings := egressOf(t, l, mixed)
	within := []string{"93.184.0.0/16"}
	want := []netguard.Rule{
		{Host: "a.example.com"},
		{Host: "index.example.org", Ports: []netguard.Port{"443"}, Protocol: netguard.ProtocolTLS, ResolveWithin: within},
		{Host: "files.example.net", Ports: []netguard.Port{"443"}, Protocol: netguard.ProtocolTLS, ResolveWithin: within},
		{Host: "plain.example.net", Ports: []netguard.Port{"4873"}, Protocol: netguard.ProtocolHTTP, ResolveWithin: within},
		{Host: "npm.example.com", Ports: []netguard.Port{"443"}, Protocol: netguard.ProtocolTLS, ECH: "allow"},
		{Host: "z.example.com", Ports: []netguard.Port{"22"}},
	}
	if d := cmp.Diff(want, c.Allow); d != "" {
		t.Errorf("rules (-want +got):\n%s", d)
	}
	if calls != 1 {
		t.Errorf("asked %d times", calls)
	}
	// What is said of an expanded rule is shown where it was written.
	if len(warnings) != 2 || !strings.HasPrefix(warnings[0], "p.yaml:8:12: warning: egress.allow[2].ech:") ||
		!strings.HasPrefix(warnings[1], "p.yaml:10:14: warning: egress.allow[3].ports:") {
		t.Errorf("warnings:\n%s", strings.Join(warnings, "\n"))
	}
}

func TestARegistryWithoutAValueOpensNothing(t *testing.T) {
	for name, l := range map[string]Loader{
		"nobody to ask": {},
		"nothing known": {Registries: func([]string) map[string][]string { return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			c, warnings := egressOf(t, l, mixed)
			if len(c.Allow) != 2 || c.Allow[0].Host != "a.example.com" || c.Allow[1].Host != "z.example.com" {
				t.Errorf("rules are %+v", c.Allow)
			}
			text := strings.Join(warnings, "\n")
			for _, says := range []string{"p.yaml:5:13: warning: egress.allow[1].host: {{registry.pypi}} opens nothing", "operator's settings", "egress.allow[3].ports"} {
				if !strings.Contains(text, says) {
					t.Errorf("no %q in\n%s", says, text)
				}
			}
			p, err := l.Preset("registries")
			if err != nil || len(p.Egress.Allow) != 0 || len(p.Warnings) != 3 {
				t.Errorf("preset: %+v, %v", p, err)
			}
		})
	}
}

func TestADocumentWithoutPlaceholdersAsksNobody(t *testing.T) {
	l := Loader{Registries: func([]string) map[string][]string { t.Error("asked"); return nil }}
	egressOf(t, l, "egress: {mode: allowlist, allow: [{host: a.example.com}]}")
	for _, name := range []string{"none", "public-web"} {
		if _, err := l.Preset(name); err != nil {
			t.Error(err)
		}
	}
}

func TestValuesThatStayClosed(t *testing.T) {
	for value, says := range map[string]string{
		"https://10.0.0.5:4873":           "is an address",
		"http://127.0.0.1:4873":           "is an address",
		"http://localhost:4873":           "only allow_local_endpoint",
		"https://nexus.corp.internal":     "only allow_local_endpoint",
		"https://nexus":                   "not a host",
		"https://me:hunter2@npm.test.com": "not an origin",
		"https://npm.example.com/path":    "not an origin",
		"ftp://npm.example.com":           "neither https nor http",
		"https://npm.example.com:0":       "neither a port",
		"https://co.uk":                   "public suffix",
		"https://*.example.com":           "not an origin",
		"https://exa\nmple.com":           "not an origin",
		"npm.example.com":                 "not an origin",
		"":                                "not an origin",
	} {
		l := Loader{Registries: func([]string) map[string][]string { return map[string][]string{"npm": {value}} }}
		c, warnings := egressOf(t, l, `egress: {mode: allowlist, allow: [{host: "{{registry.npm}}"}]}`)
		if len(c.Allow) != 0 {
			t.Errorf("%q opened %+v", value, c.Allow)
		}
		if text := strings.Join(warnings, "\n"); !strings.Contains(text, says) || strings.Contains(text, "hunter2") {
			t.Errorf("%q: %s; want %q", value, text, says)
		}
	}
}

func TestFaultyPlaceholders(t *testing.T) {
	for rule, says := range map[string]string{
		`{host: "{{registry.nmp}}"}`:                           "did you mean npm?",
		`{host: "*.{{registry.npm}}"}`:                         "the one placeholder",
		`{host: "{{secrets.host}}"}`:                           "the one placeholder",
		`{host: "{{registry.npm}}", ports: [443]}`:             "allow[0].ports: cannot stand beside",
		`{host: "{{registry.npm}}", protocol: tcp}`:            "allow[0].protocol: cannot stand beside",
		`{host: "{{registry.npm}}", cidr: 8.8.8.0/24}`:         "allow[0].cidr: cannot stand beside",
		`{host: "{{registry.npm}}", ech: maybe}`:               "allow[0].ech",
		`{host: "{{registry.npm}}", resolve_within: [10.0.0]}`: "allow[0].resolve_within[0]",
		`{host: "{{registry.npm}}", ports: [0], ech: 1}`:       "allow[0].ports",
	} {
		for _, l := range []Loader{{}, {Registries: examples}} {
			_, err := l.Parse("p.yaml", fmt.Appendf(nil, "egress: {mode: allowlist, allow: [%s]}", rule))
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v; want %q", rule, err, says)
			}
		}
	}
	// A deny rule that could lose its host would deny nothing.
	_, err := Loader{Registries: examples}.Parse("p.yaml", []byte(`egress: {mode: public, deny: [{host: "{{registry.npm}}"}]}`))
	if err == nil || !strings.Contains(err.Error(), "egress.deny[0].host") {
		t.Errorf("a placeholder in a deny rule: %v", err)
	}
}

func TestAPresetKeepsItsReviewedWarningsToItself(t *testing.T) {
	p, err := Loader{}.Preset("public-web")
	if err != nil || len(p.Warnings) != 0 {
		t.Errorf("%+v, %v", p.Warnings, err)
	}
	src, err := PresetSource("public-web")
	if err != nil {
		t.Fatal(err)
	}
	if p, err = (Loader{}).Parse("mine.yaml", src); err != nil || len(p.Warnings) == 0 {
		t.Errorf("the same document as a user's own warns of nothing: %v", err)
	}
}

// TestNoShippedDocumentNamesARegistry holds that a registry's host comes from
// the clients' own configuration alone.
func TestNoShippedDocumentNamesARegistry(t *testing.T) {
	for _, name := range Presets() {
		p, err := Loader{}.Preset(name)
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Egress.Allow) > 0 {
			t.Errorf("preset %s names hosts: %+v", name, p.Egress.Allow)
		}
	}
}
