package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/config"
)

// sandboxd runs a command line in this process.
func sandboxd(args ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&errs)
	err = root.Execute()
	return out.String(), errs.String(), err
}

func writeFile(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const importSecret = "tok-5ecr3t-0001"

func TestImportWrites(t *testing.T) {
	dir := t.TempDir()
	in := writeFile(t, filepath.Join(dir, "mcp.json"), `{"mcpServers": {"gh": {"command": "npx", "args": ["p"], "env": {"API_TOKEN": "`+importSecret+`\n"}}}}`)
	out := filepath.Join(dir, "out", "sandboxd.yaml")
	if err := os.Mkdir(filepath.Dir(out), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, _, err := sandboxd("import", in); err == nil || !strings.Contains(err.Error(), "--secrets-dir") {
		t.Errorf("secrets without a place: %v", err)
	}
	stdout, _, err := sandboxd("import", "--dry-run", "-o", out, in)
	if err != nil || !strings.Contains(stdout, "{{secrets.api_token}}") {
		t.Fatalf("dry run: %v\n%s", err, stdout)
	}
	if left, _ := os.ReadDir(filepath.Dir(out)); len(left) > 0 {
		t.Fatalf("a dry run wrote %v", left)
	}
	// A link where the secret goes is not followed.
	if err := os.Mkdir(filepath.Join(dir, "out", "secrets"), 0o700); err != nil {
		t.Fatal(err)
	}
	victim := writeFile(t, filepath.Join(dir, "victim"), importSecret+"\n\n")
	if err := os.Symlink(victim, filepath.Join(dir, "out", "secrets", "api_token")); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, err := sandboxd("import", "--json", "-o", out, in)
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr)
	}
	if strings.Contains(stdout+stderr, importSecret) {
		t.Errorf("the secret is printed:\n%s\n%s", stdout, stderr)
	}
	var report struct{ Servers []struct{ State string } }
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || len(report.Servers) != 1 || report.Servers[0].State != "imported" {
		t.Errorf("report: %v\n%s", err, stdout)
	}
	info, err := os.Lstat(filepath.Join(dir, "out", "secrets", "api_token"))
	if err != nil || info.Mode() != fs.FileMode(0o600) {
		t.Errorf("the secret's file: %v, %v", info, err)
	}
	cfg, err := config.Load(config.Options{}, out)
	if err != nil || cfg.Servers[0].Env[0].Value.Reveal() != importSecret+"\n" {
		t.Fatalf("what was written does not load as it was: %v", err)
	}
	// Again: nothing is overwritten.
	var usage usageError
	if _, _, err := sandboxd("import", "-o", out, in); !errors.As(err, &usage) || !strings.Contains(err.Error(), "--force") {
		t.Errorf("overwriting: %v", err)
	}
	if _, _, err := sandboxd("import", "--force", "-o", out, in); err != nil {
		t.Errorf("--force: %v", err)
	}
	writeFile(t, filepath.Join(dir, "out", "secrets", "api_token"), "another")
	if _, _, err := sandboxd("import", "-o", out+".2.yaml", in); !errors.As(err, &usage) || strings.Contains(err.Error(), "another\"") {
		t.Errorf("overwriting a secret: %v", err)
	}
	if _, err := os.Stat(out + ".2.yaml"); err == nil {
		t.Error("the document was written without its secret")
	}
	left := writeFile(t, filepath.Join(dir, "left.json"), `{"mcpServers": {"x": {"url": "http://plain.example.com"}}}`)
	var status statusError
	if _, stderr, err := sandboxd("import", left); !errors.As(err, &status) || status != exitFailure || !strings.Contains(stderr, "https") {
		t.Errorf("a server that is left out: %v\n%s", err, stderr)
	}
}
