package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/config"
	"github.com/sandboxd/sandboxd/mcpbridge"
)

func runTools(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	root := newRoot()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetIn(strings.NewReader(stdin))
	root.SetArgs(append([]string{"tools"}, args...))
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

func TestToolsDiffAndApprove(t *testing.T) {
	t.Setenv("SANDBOXD_STATE", t.TempDir())
	if _, err := runTools(t, "", "diff", "my-server"); err == nil || !strings.Contains(err.Error(), "no tools of server \"my_server\" are pinned") {
		t.Errorf("a server that never ran: %v", err)
	}
	state, err := stateDir(config.DefaultTenant)
	if err != nil {
		t.Fatal(err)
	}
	dir := mcpbridge.PinsDir(state)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"my_server.approved.json": `{"version":1,"tools":{"a":{"name":"a","description":"old"}}}`,
		"my_server.seen.json":     `{"version":1,"tools":{"a":{"name":"a","description":"new\u001b[2J"}}}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := runTools(t, "", "diff", "my-server")
	if exitCode(err) != exitFailure || !strings.Contains(out, `+ "new\u001b[2J"`) {
		t.Errorf("diff: %q, %v", out, err)
	}
	if out, err := runTools(t, "n\n", "approve", "my-server"); err == nil || !strings.Contains(out, "approve 1 change(s)?") {
		t.Errorf("no was taken for yes: %q, %v", out, err)
	}
	if out, err := runTools(t, "", "approve", "my-server"); err == nil {
		t.Errorf("silence was taken for yes: %q", out)
	}
	if out, err := runTools(t, "y\n", "approve", "my-server", "a"); err != nil || !strings.Contains(out, "approved 1") {
		t.Errorf("approve: %q, %v", out, err)
	}
	if out, err := runTools(t, "", "diff", "my-server"); err != nil || out != "no differences\n" {
		t.Errorf("afterwards: %q, %v", out, err)
	}
}

func TestStateDirIsAbsolute(t *testing.T) {
	t.Setenv("SANDBOXD_STATE", "relative")
	if _, err := stateDir("x"); err == nil {
		t.Error("a relative folder was taken")
	}
}
