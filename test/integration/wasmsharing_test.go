package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/sandboxd/sandboxd/test/integration/lab"
)

// TestWASMSharing calls a C server compiled to WASM that counts its calls in
// its memory and in its /tmp: with sharing: call each call has an instance and
// a /tmp of its own, from the ones kept warm and beyond; otherwise all have one.
func TestWASMSharing(t *testing.T) {
	clang, err := exec.LookPath("clang-14")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("clang-14 is missing: test/deps.sh brings it")
		}
		t.Skip("clang-14 is missing")
	}
	home := lab.UserDir(t)
	module := filepath.Join(home, "count.wasm")
	if out, err := exec.Command(clang, "--target=wasm32-wasi", "-O2", "-Wl,-s", "-o", module, "../../sandbox/wasm/testdata/cserver/server.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.Chown(module, lab.UserID, lab.UserID); err != nil {
		t.Fatal(err)
	}
	config := homeFile(t, home, "config.yaml", `mcp_servers:
  - {id: each, transport: stdio, command: ./count.wasm, sharing: call, warm: 2, required: true}
  - {id: all, transport: stdio, command: ./count.wasm, required: true}
`)
	l := lab.New(t)
	s := startServe(t, l, []string{"HOME=" + home, "SANDBOXD_CACHE=" + cache}, "--config", config)
	for _, c := range []struct {
		server string
		want   []string
	}{
		{"each", []string{"1 1", "1 1", "1 1", "1 1"}},
		{"all", []string{"1 1", "2 2", "3 3"}},
	} {
		for _, want := range c.want {
			if status, r := s.call(t, c.server, "count", "{}"); status != 200 || !r.OK || r.text() != want {
				t.Errorf("%s: %d %+v, want %q\n%s", c.server, status, r, want, s.stderr)
			}
		}
	}
}
