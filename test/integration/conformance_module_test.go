package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestConformanceWASM runs the official suite against go-sdk's conformance
// server, compiled to WASM as its authors wrote it, behind `sandboxd serve`:
// every required scenario that it passes bare, it has to pass there. It takes minutes,
// as TestConformance does.
func TestConformanceWASM(t *testing.T) {
	file := os.Getenv("SANDBOXD_CONFORMANCE")
	if file == "" {
		t.Skip("set SANDBOXD_CONFORMANCE=FILE to run the official suite, or use make conformance")
	}
	version, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Version}}", "github.com/modelcontextprotocol/go-sdk").Output()
	if err != nil {
		t.Fatal(err)
	}
	module, err := buildModule("everything-server", "github.com/modelcontextprotocol/go-sdk/conformance/everything-server@"+strings.TrimSpace(string(version)))
	if err != nil {
		t.Fatal(err)
	}
	s := newSuite(t)
	bare := s.bareServers()
	config := s.l.WriteFile("conformance.yaml", "mcp_servers:\n  - id: conformance\n    command: "+module+"\n    isolation: wasm\n    required: true\n")
	served := startServe(t, s.l, []string{"SANDBOXD_CACHE=" + cache, "SANDBOXD_ENGINE=" + filepath.Join(s.l.Home, "none.sock")}, "--config", config)
	const wasm = "wasm at /mcp/{server}"
	var b strings.Builder
	passed, failed := 0, 0
	for _, revision := range revisions() {
		s.servers(ways()[0], revision, bare[revision])
		s.servers(wasm, revision, served.base+"/mcp/conformance")
		fmt.Fprintf(&b, "\n%s\n%-46s %-14s %s\n", revision, "scenario (checks passed/failed)", ways()[0], wasm)
		for _, name := range s.order[revision] {
			native, guest := s.results[revision][name][ways()[0]], s.results[revision][name][wasm]
			note := ""
			if !guest.required {
				note = " (not required)"
			}
			fmt.Fprintf(&b, "%-46s %-14s %s%s\n", name, native, guest, note)
			switch {
			case guest.ok:
				passed++
			case native.ok && guest.required:
				failed++
				t.Errorf("%s, %s: passes bare and fails as a module", revision, name)
			}
		}
	}
	fmt.Fprintf(&b, "\nmodule: %d passed, %d failed that pass bare\n", passed, failed)
	t.Log(b.String())
	if passed == 0 {
		t.Error("no scenario ran")
	}
	if err := os.WriteFile(file+".wasm", []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}
