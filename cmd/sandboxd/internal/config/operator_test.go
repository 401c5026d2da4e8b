package config

import (
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandboxd/sandboxd/policies"
)

func TestOperatorsSettings(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"op.yaml": `
resolver: 192.0.2.53:5353
records: /var/log/sandboxd/decisions.jsonl
refuse_cidrs: [8.8.8.0/24, "2001:db8:1::/48"]
registries:
  npm:
    trusted_cidrs: [10.20.0.0/16, 203.0.113.80/32]
  pypi:
    urls: ["https://files.example.net/x"]
`})
	path := filepath.Join(dir, "op.yaml")
	got, err := LoadOperator(path)
	if err != nil {
		t.Fatal(err)
	}
	prefix := netip.MustParsePrefix
	want := &Operator{
		File: path, Resolver: "192.0.2.53:5353", Records: "/var/log/sandboxd/decisions.jsonl",
		Refused: []netip.Prefix{prefix("8.8.8.0/24"), prefix("2001:db8:1::/48")},
		Registries: map[string]Registry{
			"npm":  {Trusted: []netip.Prefix{prefix("10.20.0.0/16"), prefix("203.0.113.80/32")}},
			"pypi": {URLs: []string{"https://files.example.net/x"}},
		},
	}
	if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Prefix{})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// A mirror's token is a secret of the store, looked up when it is needed.
func TestOperatorsMirror(t *testing.T) {
	o, err := parseOperator("op.yaml", []byte(`registries: {npm: {mirror: "https://m.example.com/npm", token: "{{secrets.npm_mirror}}"}}`))
	if err != nil || o.Mirrors()["npm"] != "https://m.example.com/npm" {
		t.Fatalf("%+v %v", o, err)
	}
	if _, err := o.Token("npm"); err == nil || !strings.Contains(err.Error(), "SANDBOXD_SECRET_NPM_MIRROR") {
		t.Errorf("a secret that is not set: %v", err)
	}
	t.Setenv("SANDBOXD_SECRET_NPM_MIRROR", "t0ken")
	if s, err := o.Token("npm"); err != nil || s.Reveal() != "t0ken" {
		t.Errorf("%v", err)
	}
	if s, err := o.Token("go"); err != nil || s.Reveal() != "" {
		t.Errorf("another registry's token: %v", err)
	}
}

func TestFaultsOfOperatorsSettings(t *testing.T) {
	_, err := parseOperator("op.yaml", []byte(`resolver: dns.example.com
records: decisions.jsonl
refuse_cidr: []
refuse_cidrs: [10.0.0.1/8, 7]
registries:
  nmp: {}
  npm:
    trusted_cidrs: [127.0.0.0/8, 169.254.169.254/32, 0.0.0.0/0, 8.8.8.8/32, 10.0.0.1/8]
    urls: ["ftp://x.example.com", "https://me:hunter2@x.example.com", 1]
    hosts: []
  pypi: {mirror: "https://me:hunter2@m.example.com", token: hunter2}
  go: {token: "{{secrets.x}}"}
`))
	if err == nil {
		t.Fatal("taken")
	}
	for _, at := range []string{
		"op.yaml:1:11: resolver:", "op.yaml:2:10: records:", "op.yaml:3:1: unknown key \"refuse_cidr\": did you mean refuse_cidrs?",
		"op.yaml:4:16: refuse_cidrs[0]:", "op.yaml:4:28: refuse_cidrs[1]:", "did you mean npm?",
		"op.yaml:8:21: registries.npm.trusted_cidrs[0]:", "trusted_cidrs[1]:", "trusted_cidrs[2]:", "trusted_cidrs[3]:", "trusted_cidrs[4]:",
		"registries.npm.urls[0]:", "registries.npm.urls[1]:", "registries.npm.urls[2]:", "op.yaml:10:5: registries.npm: unknown key", "registries.pypi.mirror:", "registries.pypi.token:", "registries.go.token:",
	} {
		if !strings.Contains(err.Error(), at) {
			t.Errorf("no %q in\n%v", at, err)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a credential is shown: %v", err)
	}
}

func TestAForgeableOperatorFileIsRefused(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("files have no modes")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "op.yaml")
	write(t, dir, map[string]string{"op.yaml": "resolver: 192.0.2.53\n"})
	for _, mode := range []os.FileMode{0o600, 0o644, 0o664, 0o646} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		_, err := loadOperator(path, true)
		if ok := mode&0o022 == 0; ok != (err == nil) {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadOperator(path); err == nil || !strings.Contains(err.Error(), "its folder") {
		t.Errorf("in a folder of everybody's: %v", err)
	}
	if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadOperator(path); err != nil {
		t.Errorf("in a sticky folder: %v", err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(path, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadOperator(path); err == nil || !strings.Contains(err.Error(), "belongs to user 65534") {
			t.Errorf("a stranger's file: %v", err)
		}
	}
}

func TestNoOperatorFile(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "op.yaml")
	o, err := loadOperator(missing, true)
	if err != nil || o.File != "" || o.Resolver != "" {
		t.Errorf("%+v, %v", o, err)
	}
	if _, err := LoadOperator(missing); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("a file that was asked for: %v", err)
	}
	if _, err := LoadOperator(t.TempDir()); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a folder: %v", err)
	}
}

// Presets warn of nothing that was reviewed, a user's own files do; and a
// server's policy can name a registry in each of its forms.
func TestPoliciesOfServersKnowTheRegistries(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"own.yaml": "egress: {mode: allowlist, allow: [{host: '{{registry.npm}}'}]}\n"})
	opts := env(nil)
	opts.Policies = policies.Loader{Registries: func([]string) map[string][]string {
		return map[string][]string{"npm": {"https://npm.example.com"}}
	}}
	cfg, err := parse(dir, "c.yaml", `mcp_servers:
  - {id: a, command: x, policy: public-web}
  - {id: b, command: x, policy: own.yaml}
  - {id: c, command: x, policy: registries}
  - {id: d, command: x, policy: {egress: {mode: allowlist, allow: [{host: "{{registry.npm}}"}]}}}
`, opts)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range cfg.Servers[1:] {
		if a := s.Policy.Egress.Allow; len(a) != 1 || a[0].Host != "npm.example.com" {
			t.Errorf("server %s: %+v", s.ID, a)
		}
	}
	// Two registries of the preset are unknown here; nothing else is said.
	for _, w := range cfg.Warnings {
		if !strings.Contains(w.Msg, "opens nothing") {
			t.Errorf("warning: %s", w)
		}
	}
	if len(cfg.Warnings) != 2 {
		t.Errorf("%d warnings", len(cfg.Warnings))
	}
}

func TestTheManualsOperatorExample(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "## Operator's settings")
	_, rest, _ = strings.Cut(rest, "```yaml\n")
	example, _, ok := strings.Cut(rest, "```")
	o, err := parseOperator("example", []byte(example))
	if !ok || err != nil || len(o.Registries["npm"].Trusted) != 1 || len(o.Refused) != 1 {
		t.Errorf("%+v, %v", o, err)
	}
}
