package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"aead.dev/minisign"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/config"
	"github.com/sandboxd/sandboxd/images/catalog"
)

// TestShippedEntriesLoad: each entry of the shipped catalogue becomes a config
// that serve reads, whose policy opens its own hosts and no more.
func TestShippedEntriesLoad(t *testing.T) {
	x, _, err := catalog.Shipped()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := writeFile(t, filepath.Join(dir, "c.yaml"), "# mine\ntenant: acme # theirs\nmcp_servers:\n  # first\n  - {id: own, command: npx, args: [p]}\n")
	for _, e := range x.Servers {
		f := addFlags{config: path, id: e.Meta.Catalog.Short}
		if e.Meta.Catalog.Mount != "" {
			f.mounts = []string{dir + ":" + e.Meta.Catalog.Mount + ":rw"}
		}
		edit, err := f.entry(e)
		if err != nil {
			t.Fatal(err)
		}
		text, err := edit.apply(path)
		if err != nil {
			t.Fatal(err)
		}
		if tenant, err := checkConfig(path, text); err != nil || tenant != "acme" {
			t.Fatalf("%s: %q %v\n%s", f.id, tenant, err, text)
		}
		writeFile(t, path, string(text))
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# mine", "# theirs", "# first", "pin: strict", "secrets_dir: secrets"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "secrets"), 0o700); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(config.Options{LookupEnv: func(n string) (string, bool) { return "x", strings.HasPrefix(n, config.EnvPrefix) }}, path)
	if err != nil || len(cfg.Servers) != len(x.Servers)+1 {
		t.Fatalf("%v", err)
	}
	for _, s := range cfg.Servers {
		if s.Policy.Egress != nil && (s.Policy.Egress.Mode != "allowlist" || len(s.Policy.Egress.Allow) > 3) {
			t.Errorf("%s may reach %v", s.ID, s.Policy.Egress)
		}
	}
	again := addFlags{config: path, id: "github"}
	e, _ := x.Find("github")
	edit, err := again.entry(e)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := edit.apply(path); err != nil {
		t.Fatal(err)
	} else if _, err := checkConfig(path, text); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("a second server of one id: %v", err)
	}
}

func TestCatalogCommands(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("SANDBOXD_STATE", filepath.Join(dir, "state"))
	out, _, err := sandboxd("catalog", "search", "--json", "github", "issue")
	var views []catalogView
	if err != nil || json.Unmarshal([]byte(out), &views) != nil || len(views) == 0 {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, _, err = sandboxd("catalog", "show", "filesystem"); err != nil || !strings.Contains(out, "--mount SRC:/data") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, _, err = sandboxd("catalog", "show", "--json", "github"); err != nil || !strings.Contains(out, `"isSecret": true`) {
		t.Errorf("%v\n%s", err, out)
	}
	cfg := filepath.Join(dir, "sandboxd.yaml")
	out, _, err = sandboxd("catalog", "add", "github", "--config", cfg, "--dry-run")
	if err != nil || !strings.Contains(out, "{{secrets.github_personal_access_token}}") || !strings.Contains(out, "api.github.com") {
		t.Errorf("%v\n%s", err, out)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("a dry run left %v", left)
	}
	for _, c := range []struct{ args, word string }{
		{"show nobody", "search lists"},
		{"add nobody", "search lists"},
		{"add filesystem --dry-run", "--mount"},
		{"add memory --config x.toml", "YAML"},
		{"sign " + cfg, "no such file"},
		{"verify " + cfg, "no such file"},
	} {
		if _, _, err := sandboxd(append([]string{"catalog"}, strings.Fields(c.args)...)...); err == nil || !strings.Contains(err.Error(), c.word) {
			t.Errorf("%s: %v", c.args, err)
		}
	}
}

// TestForeignCatalogs: one is taken with a signature by a key of the operator's
// alone, and never an older one after a newer one.
func TestForeignCatalogs(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("SANDBOXD_STATE", filepath.Join(dir, "state"))
	pub, priv, err := minisign.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := priv.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	key := writeFile(t, filepath.Join(dir, "secret.key"), string(secret))
	operatorFile := writeFile(t, filepath.Join(dir, "operator.yaml"), "catalog:\n  keys: ["+pub.String()+"]\n")
	none := writeFile(t, filepath.Join(dir, "none.yaml"), "resolver: 192.0.2.1\n")
	write := func(name string, version int64) string {
		x, _, err := catalog.Shipped()
		if err != nil {
			t.Fatal(err)
		}
		x.Meta.Catalog.Name, x.Meta.Catalog.Version, x.Meta.Catalog.Expires = "acme", version, x.Meta.Catalog.Created.AddDate(100, 0, 0)
		b, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		path := writeFile(t, filepath.Join(dir, name), string(b))
		if _, _, err := sandboxd("catalog", "sign", path, "--key", key); err != nil {
			t.Fatal(err)
		}
		return path
	}
	one, two := write("1.json", 1), write("2.json", 2)
	search := func(index, operator string) error {
		_, _, err := sandboxd("catalog", "search", "--operator", operator, "--index", index)
		return err
	}
	if err := search(one, none); err == nil || !strings.Contains(err.Error(), "no key") {
		t.Errorf("without a key: %v", err)
	}
	for _, path := range []string{one, two} {
		if err := search(path, operatorFile); err != nil {
			t.Fatal(err)
		}
	}
	if err := search(one, operatorFile); err == nil || !strings.Contains(err.Error(), "version 2 was used") {
		t.Errorf("an older one: %v", err)
	}
	if out, _, err := sandboxd("catalog", "verify", "--operator", none, "--key", pub.String(), one); err != nil || !strings.Contains(out, "acme version 1") {
		t.Errorf("verify: %v\n%s", err, out)
	}
	writeFile(t, two, "{}")
	if err := search(two, operatorFile); err == nil || !strings.Contains(err.Error(), "not trusted") {
		t.Errorf("a changed one: %v", err)
	}
	bad := writeFile(t, filepath.Join(dir, "bad.yaml"), "catalog: {keys: [nonsense]}\n")
	if err := search(one, bad); err == nil || !strings.Contains(err.Error(), "minisign") {
		t.Errorf("a bad key: %v", err)
	}
}
