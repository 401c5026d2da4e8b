package policies

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/netguard"
	"github.com/sandboxd/sandboxd/policies/strict"
	"github.com/sandboxd/sandboxd/sandbox"
)

const whole = `
version: 1
isolation: container
wasm_counts_as_container: true
limits:
  memory: 512MiB
  cpus: 1.5
  pids: 100
  files: 1024
  tmp: 64MiB
  file_size: 2GiB
  wall: 10m
  stop_grace: 3s
tools:
  allow: [read_file, search]
  include: []
env: [TZ]
egress:
  mode: allowlist
  allow:
    - host: api.example.com
      ports: [443, "8000-8100"]
      resolve_within: [93.184.0.0/16]
    - host: "*.example.org"
      protocol: tls
      ech: allow
    - cidr: 8.8.8.0/24
      ports: [53]
      protocol: tcp
  deny:
    - host: bad.example.org
    - cidr: 8.8.8.8/32
  allow_local_endpoint: ["127.0.0.1:5432"]
  schemes: [https]
  max_redirects: 0
  nat64: true
  cross_origin_body: allow
  limits: {connections: 10, per_second: 5, bytes_up: 1MiB, bytes_down: 1GB, names_per_wildcard: 3}
  pin_ttl: 90s
`

func TestAWholeDocument(t *testing.T) {
	p, err := Loader{}.Parse("whole.yaml", []byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	hops := 0
	want := &Policy{
		Name:      "whole.yaml",
		Isolation: sandbox.Container, WASMCountsAsContainer: true,
		Limits: sandbox.Limits{
			MemoryBytes: 512 << 20, CPUs: 1.5, PIDs: 100, Files: 1024, TmpBytes: 64 << 20, FileBytes: 2 << 30,
			Wall: 10 * time.Minute, StopGrace: 3 * time.Second,
		},
		Tools: Tools{Allow: []string{"read_file", "search"}, Include: []string{}},
		Env:   []string{"TZ"},
		Egress: &netguard.Config{
			Mode: netguard.ModeAllowlist,
			Allow: []netguard.Rule{
				{Host: "api.example.com", Ports: []netguard.Port{"443", "8000-8100"}, ResolveWithin: []string{"93.184.0.0/16"}},
				{Host: "*.example.org", Protocol: netguard.ProtocolTLS, ECH: "allow"},
				{CIDR: "8.8.8.0/24", Ports: []netguard.Port{"53"}, Protocol: netguard.ProtocolTCP},
			},
			Deny:               []netguard.Rule{{Host: "bad.example.org"}, {CIDR: "8.8.8.8/32"}},
			AllowLocalEndpoint: []string{"127.0.0.1:5432"},
			Schemes:            []string{"https"},
			MaxRedirects:       &hops,
			NAT64:              true,
			CrossOriginBody:    "allow",
			Limits:             netguard.Limits{Connections: 10, PerSecond: 5, BytesUp: 1 << 20, BytesDown: 1e9, NamesPerWildcard: 3},
			PinTTL:             90 * time.Second,
		},
	}
	p.Warnings = nil
	if d := cmp.Diff(want, p); d != "" {
		t.Errorf("policy (-want +got):\n%s", d)
	}
}

// places returns line:col: path of every fault of a document.
func places(t *testing.T, doc string) []string {
	t.Helper()
	_, err := Loader{}.Parse("p.yaml", []byte(doc))
	var faults strict.Faults
	if err == nil {
		return nil
	}
	if !errors.As(err, &faults) {
		t.Fatalf("error of type %T: %v", err, err)
	}
	var out []string
	for _, line := range strings.Split(err.Error(), "\n") {
		parts := strings.SplitN(line, ": ", 3)
		out = append(out, strings.TrimPrefix(parts[0], "p.yaml:")+" "+parts[1])
	}
	return out
}

func TestEveryFaultOfADocumentIsShownAtItsPlace(t *testing.T) {
	doc := `version: 2
isolation: vm
limits:
  memory: 1MiB
  pids: 0
  stop_grace: 2m
tools:
  allow: [ok, ok, "a b"]
env: ["A=B"]
egress:
  mode: allowlst
  allow:
    - host: "*.co.uk"
    - host: a.example.com
      ports: [0, 443.5, "80-79"]
    - cidr: 10.0.0.0/8
    - ports: [443]
    - host: b.example.com
      ports: []
  deny:
    - host: c.example.com
      ports: [443]
  max_redirects: -1
  allow_local_endpoint: ["8.8.8.8:443"]
  schemes: [file]
`
	want := []string{
		"1:10 version", "2:12 isolation",
		"4:11 limits.memory", "5:9 limits.pids", "6:15 limits.stop_grace",
		"8:15 tools.allow[1]", "8:19 tools.allow[2]", "9:7 env[0]",
		"11:9 egress.mode", "13:13 egress.allow[0].host",
		"15:15 egress.allow[1].ports[0]", "15:18 egress.allow[1].ports[1]", "15:25 egress.allow[1].ports[2]",
		"16:13 egress.allow[2].cidr", "17:7 egress.allow[3]", "19:14 egress.allow[4].ports",
		"22:7 egress.deny[0]", "23:18 egress.max_redirects",
		"24:26 egress.allow_local_endpoint[0]", "25:13 egress.schemes[0]",
	}
	if d := cmp.Diff(want, places(t, doc)); d != "" {
		_, err := Loader{}.Parse("p.yaml", []byte(doc))
		t.Errorf("places (-want +got):\n%s\n%v", d, err)
	}
}

func TestMistakesThatMustNotPass(t *testing.T) {
	for _, tc := range []struct{ name, doc, says string }{
		{"typo at the top", "egres: {mode: public}", "did you mean egress?"},
		{"typo below", "egress: {mode: allowlist, alow: []}", "did you mean allow?"},
		{"typo in a rule", "egress: {mode: allowlist, allow: [{host: a.example.com, port: [443]}]}", "did you mean ports?"},
		{"egress without content", "egress:\n", "the section is empty"},
		{"no mode", "egress: {}", "egress.mode: is required"},
		{"ports without content", "egress: {mode: allowlist, allow: [{host: a.example.com, ports: }]}", "ports: is empty"},
		{"variables, all commented out", "env:\n# - API_TOKEN\n", "env: is empty: write []"},
		{"tools, all commented out", "tools:\n  allow:\n", "tools.allow: is empty"},
		{"tools without content", "tools:\n", "the section is empty"},
		{"schemes without content", "egress: {mode: public, schemes: }", "schemes: is empty"},
		{"limits under netguard's zero", "egress: {mode: public, limits: {connections: 0}}", "whole number from 1"},
		{"bool as text", "wasm_counts_as_container: 'true'", "want true or false"},
		{"mode twice", "egress: {mode: allowlist, mode: public}", "was given before"},
		{"two documents", "egress: {mode: allowlist}\n---\negress: {mode: public}", "second document"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := Loader{}.Parse("p.yaml", []byte(tc.doc))
			if p != nil || err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, %v; want an error with %q", p, err, tc.says)
			}
		})
	}
}

func TestWhatIsNotSaidIsDenied(t *testing.T) {
	p, err := Loader{}.Parse("p.yaml", []byte("version: 1\n"))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(&Policy{Name: "p.yaml"}, p); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if p.Egress != nil {
		t.Error("a policy without egress section got a network")
	}
}

func TestWarningsKeepTheirPlace(t *testing.T) {
	p, err := Loader{}.Parse("p.yaml", []byte("isolation: gvisor\nwasm_counts_as_container: true\negress:\n  mode: public\n"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, w := range p.Warnings {
		got = append(got, strings.SplitN(w.String(), ": ", 4)[0]+" "+w.Path)
		if !strings.Contains(w.String(), ": warning: ") {
			t.Errorf("a warning reads like an error: %s", w)
		}
	}
	want := []string{"p.yaml:2:27 wasm_counts_as_container", "p.yaml:4:9 egress.mode"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestFilters(t *testing.T) {
	if !(&Policy{}).PermitsEnv("A") || (&Policy{Env: []string{}}).PermitsEnv("A") {
		t.Error("nil must mean every variable, an empty list none")
	}
	p := &Policy{Isolation: sandbox.Container}
	if p.Satisfied(sandbox.WASM) || !p.Satisfied(sandbox.GVisor) {
		t.Error("the minimum of container is judged wrongly")
	}
	p.WASMCountsAsContainer = true
	if !p.Satisfied(sandbox.WASM) || p.Satisfied(sandbox.WASMInProcess) {
		t.Error("wasm_counts_as_container is judged wrongly")
	}
}

func TestLoadAndFind(t *testing.T) {
	dir := t.TempDir()
	write := func(name, doc string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	path := write("mine.yaml", "isolation: gvisor\n")
	for _, ref := range []string{"mine.yaml", "./mine.yaml", path} {
		if p, err := (Loader{}).Find(ref, dir); err != nil || p.Isolation != sandbox.GVisor || p.Name != path {
			t.Errorf("Find(%s) is %+v, %v", ref, p, err)
		}
	}
	if _, err := (Loader{}).Find("missing.yaml", dir); !errors.Is(err, fs.ErrNotExist) || !strings.HasSuffix(err.Error(), "check the path") {
		t.Errorf("missing file: %v", err)
	}
	if _, err := (Loader{}).Find(dir+"/", ""); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a folder: %v", err)
	}
	big := write("big.yaml", strings.Repeat("#", strict.MaxBytes+1))
	if _, err := (Loader{}).Load(big); err == nil || !strings.Contains(err.Error(), "more than the 1048576 bytes") {
		t.Errorf("a big file: %v", err)
	}
	for ref, says := range map[string]string{"registry": "did you mean registries?", "nope": "none, public-web, registries", "..": "none"} {
		if _, err := (Loader{}).Find(ref, ""); !errors.Is(err, ErrNoPreset) && !strings.Contains(ref, ".") || !strings.Contains(err.Error(), says) {
			t.Errorf("Find(%q): %v", ref, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(whole))
	for _, name := range Presets() {
		data, err := PresetSource(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("egress: {mode: allowlist, allow: [{host: '{{registry.npm}}', resolve_within: [10.0.0.0/8]}]}"))
	f.Add([]byte("egress: {mode: public, allow: [{host: a.b, ports: [x]}], limits: {bytes_up: 1GiB}}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Loader{Registries: examples}.Parse("p", data)
		if (p == nil) == (err == nil) {
			t.Fatalf("policy %v with error %v", p, err)
		}
		if p == nil {
			return
		}
		if err := p.Limits.Validate(); err != nil {
			t.Fatal(err)
		}
		if p.Egress != nil {
			if _, err := netguard.Compile(*p.Egress); err != nil {
				t.Fatal(err)
			}
		}
	})
}
