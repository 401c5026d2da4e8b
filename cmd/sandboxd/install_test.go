package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const installConfig = `
secrets_dir: secrets
mcp_servers:
  - id: gh
    transport: stdio
    command: npx
    args: [p]
    env: {TOKEN: "{{secrets.gh}}"}
  - id: narrow
    transport: stdio
    command: npx
    args: [p]
    tools_allowlist: [a]
`

func TestInstall(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "secrets"), 0o700); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "secrets", "gh"), importSecret)
	cfg := writeFile(t, filepath.Join(dir, "sandboxd.yaml"), installConfig)
	path := filepath.Join(dir, "client", "mcp.json")
	install := func(args ...string) (string, error) {
		out, _, err := sandboxd(append([]string{"install", "cursor", "--path", path}, args...)...)
		return out, err
	}
	if out, err := install("--config", cfg, "gh", "--dry-run"); err != nil || !strings.Contains(out, `"gh"`) {
		t.Fatalf("dry run: %v\n%s", err, out)
	}
	if _, err := os.Stat(filepath.Dir(path)); err == nil {
		t.Fatal("a dry run made a folder")
	}
	if _, err := install("--config", cfg); err != nil { // narrow is left out
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Servers map[string]struct {
			Command string
			Args    []string
		} `json:"mcpServers"`
	}
	if err := json.Unmarshal(text, &doc); err != nil || len(doc.Servers) != 1 {
		t.Fatalf("%v\n%s", err, text)
	}
	if diff := cmp.Diff([]string{"run", "--config", cfg, "--server", "gh"}, doc.Servers["gh"].Args); diff != "" {
		t.Error(diff)
	}
	if strings.Contains(string(text), importSecret) {
		t.Errorf("the secret is in the client's file:\n%s", text)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	// Again, nothing: no second copy.
	if out, err := install("--config", cfg, "--json"); err != nil || !strings.Contains(out, `"changed": false`) {
		t.Errorf("%v\n%s", err, out)
	}
	if baks, _ := filepath.Glob(path + ".bak-*"); len(baks) > 0 {
		t.Errorf("copies of nothing: %v", baks)
	}
	// A change keeps a copy, and follows a link.
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	real := filepath.Join(dir, "real.json")
	if err := errors.Join(os.Rename(path, real), os.Symlink(real, path)); err != nil {
		t.Fatal(err)
	}
	if _, err := install("--name", "mem", "--mount", dir+":/d", "--env", "X", "--", "npx", "-y", "p"); err != nil {
		t.Fatal(err)
	}
	baks, _ := filepath.Glob(path + ".bak-*")
	if len(baks) != 1 {
		t.Fatalf("copies: %v", baks)
	}
	if b, err := os.ReadFile(baks[0]); err != nil || string(b) != string(text) {
		t.Errorf("the copy: %v\n%s", err, b)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is gone: %v, %v", info, err)
	}
	if now, err := os.ReadFile(real); err != nil || !strings.Contains(string(now), `"--env",`) || !strings.Contains(string(now), `"gh"`) {
		t.Errorf("%v\n%s", err, now)
	}
	if _, err := install("--remove", "mem"); err != nil {
		t.Fatal(err)
	}
	if now, err := os.ReadFile(real); err != nil || string(now) != string(text) {
		t.Errorf("taken out again: %v\n%s", err, now)
	}
}

func TestInstallRefuses(t *testing.T) {
	dir := t.TempDir()
	path := writeFile(t, filepath.Join(dir, "mcp.json"), `{"mcpServers": {"x": {"command": "npx"}}}`)
	cfg := writeFile(t, filepath.Join(dir, "c.yaml"), "mcp_servers: [{id: narrow, command: npx, args: [p], tools_allowlist: [a]}]\n")
	broken := writeFile(t, filepath.Join(dir, "broken.json"), `{"mcpServers": `)
	for _, c := range []struct {
		args []string
		word string
	}{
		{[]string{"nobody"}, "claude-desktop"},
		{[]string{"cursor", "--path", path}, "say what to install"},
		{[]string{"cursor", "--path", path, "--name", "x", "--", "npx", "p"}, "--force"},
		{[]string{"cursor", "--path", path, "--name", "y", "--", "npx", "p", "--api-key", "abc123"}, "plain text"},
		{[]string{"cursor", "--path", path, "--name", "y", "--", "docker", "run", "--privileged", "i"}, "gives the host away"},
		{[]string{"cursor", "--path", path, "--name", "y", "--env", "A=b", "--", "npx", "p"}, "plain text"},
		{[]string{"cursor", "--path", path, "--url", "http://u:p@127.0.0.1:1"}, "plain text"},
		{[]string{"cursor", "--path", path, "--url", "http://127.0.0.1:1/?token=x"}, "plain text"},
		{[]string{"claude-desktop", "--path", path, "--url", "http://127.0.0.1:1"}, "no url"},
		{[]string{"cursor", "--path", path, "--config", cfg, "narrow"}, "sandboxd serve"},
		{[]string{"cursor", "--path", path, "--config", cfg, "gone"}, "no server"},
		{[]string{"cursor", "--path", broken, "--name", "y", "--", "npx", "p"}, "not valid JSON"},
		{[]string{"cursor", "--path", dir, "--name", "y", "--", "npx", "p"}, "regular file"},
		{[]string{"cursor", "--path", path, "--remove"}, "name the servers"},
		{[]string{"cursor", "--path", path, "--remove", "x"}, "--force"},
		{[]string{"windsurf", "--project", "--name", "y", "--", "npx", "p"}, "no file of a project"},
	} {
		var usage usageError
		if _, _, err := sandboxd(append([]string{"install"}, c.args...)...); !errors.As(err, &usage) || !strings.Contains(err.Error(), c.word) {
			t.Errorf("install %q: %v; want a usage error that says %q", c.args, err, c.word)
		}
	}
	if now, err := os.ReadFile(path); err != nil || string(now) != `{"mcpServers": {"x": {"command": "npx"}}}` {
		t.Errorf("a refusal changed the file: %s, %v", now, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.bak*")); len(left) > 0 {
		t.Errorf("a refusal left %v", left)
	}
	for _, args := range [][]string{
		{"run", "--config", cfg},
		{"run", "--server", "x"},
		{"run", "--config", cfg, "--server", "x", "--", "npx", "p"},
		{"run", "--config", cfg, "--server", "narrow", "--policy", "none"},
		{"run", "--config", cfg, "--server", "narrow"},
		{"run", "--config", cfg, "--server", "gone"},
	} {
		var usage usageError
		if _, _, err := sandboxd(args...); !errors.As(err, &usage) {
			t.Errorf("%q: %v; want a usage error", args, err)
		}
	}
}
