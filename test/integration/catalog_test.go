package integration

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"aead.dev/minisign"

	"github.com/sandboxd/sandboxd/images/catalog"
	"github.com/sandboxd/sandboxd/test/integration/lab"
)

// TestCatalogAdd: one command brings a server from its name into a config, by
// the shipped catalogue's hashes; serve then has its tools, pinned. A catalogue
// that says otherwise than the package or its tools are changes nothing.
func TestCatalogAdd(t *testing.T) {
	e := startEngine(t)
	l := lab.New(t)
	env := append(e.env(), "SANDBOXD_STATE="+filepath.Join(l.Home, "state"))
	cfg := filepath.Join(l.Home, "sandboxd.yaml")
	add := func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		cmd := lab.UserCommand(ctx, l.Home, program, append([]string{"catalog", "add", "brave-search", "--config", cfg}, args...)...)
		cmd.Env = append(cmd.Env, env...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	pub, priv, err := minisign.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile(operator)
	if err != nil {
		t.Fatal(err)
	}
	trusting := l.WriteFile("operator.yaml", strings.TrimPrefix(string(own), "{}")+"\ncatalog: {keys: ["+pub.String()+"]}\n")
	for name, c := range map[string]struct {
		change func(*catalog.Facts)
		word   string
	}{
		"tools":   {func(f *catalog.Facts) { f.ToolsHash = "sha256:" + strings.Repeat("0", 64) }, "other tools"},
		"package": {func(f *catalog.Facts) { f.Integrity = "sha512-" + strings.Repeat("A", 86) + "==" }, "another package"},
	} {
		x, _, err := catalog.Shipped()
		if err != nil {
			t.Fatal(err)
		}
		x.Meta.Catalog.Name, x.Meta.Catalog.Expires = "lab-"+name, time.Now().Add(time.Hour)
		for i := range x.Servers {
			c.change(&x.Servers[i].Meta.Catalog)
		}
		data, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		index := l.WriteFile(name+".json", string(data))
		l.WriteFile(name+".json.minisig", string(minisign.Sign(priv, data)))
		if out, err := add("--operator", trusting, "--index", index); err == nil || !strings.Contains(out, c.word) {
			t.Errorf("%s: %v; want a refusal that says %q\n%s\n%s", name, err, c.word, out, e.log)
		}
		if _, err := os.Stat(cfg); err == nil {
			t.Fatalf("%s: a config was written", name)
		}
	}
	out, err := add()
	if err != nil || !strings.Contains(out, "brave_api_key") {
		t.Fatalf("%v\n%s\n%s", err, out, e.log)
	}
	s := startServe(t, l, append(env, "SANDBOXD_SECRET_BRAVE_API_KEY=dummy"), "--config", cfg)
	until(t, "the server's tools are there", 3*time.Minute, func() bool {
		status, body := s.request(t, http.MethodGet, "/api/v1/automation/connectors", "")
		return status == http.StatusOK && strings.Contains(body, "brave_web_search")
	})
	if pins, err := filepath.Glob(filepath.Join(l.Home, "state", "tenants", "local", "pins", "brave_search.approved.json")); err != nil || len(pins) != 1 {
		t.Errorf("the tools are not pinned: %v, %v", pins, err)
	}
}
