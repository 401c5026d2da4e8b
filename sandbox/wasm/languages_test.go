//go:build linux

package wasm_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

// tool finds a compiler by its names, newest first. In CI it must be there.
func tool(t *testing.T, names ...string) string {
	t.Helper()
	for _, n := range names {
		if path, err := exec.LookPath(n); err == nil {
			return path
		}
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("none of %s is installed: test/deps.sh brings it", strings.Join(names, ", "))
	}
	t.Skipf("none of %s is installed", strings.Join(names, ", "))
	return ""
}

func compile(t *testing.T, argv ...string) {
	t.Helper()
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
}

// compileRust tries the compilers and the target's names that there are: not
// each of them has the library.
func compileRust(t *testing.T, out, src string) {
	t.Helper()
	linker := tool(t, "wasm-ld", "wasm-ld-19", "wasm-ld-14")
	var last []byte
	for _, rustc := range []string{"rustc", "/usr/bin/rustc"} {
		for _, target := range []string{"wasm32-wasip1", "wasm32-wasi"} {
			var err error
			cmd := exec.Command(rustc, "--edition", "2021", "--target", target, "-O", "-C", "linker="+linker, "-C", "link-arg=-s", "-o", out, src)
			if last, err = cmd.CombinedOutput(); err == nil {
				return
			}
		}
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("no Rust compiler builds for WASI: test/deps.sh brings one\n%s", last)
	}
	t.Skip("no Rust compiler builds for WASI")
}

// TestOtherLanguages runs MCP servers in C and Rust, each over its own C
// library, in both tiers.
func TestOtherLanguages(t *testing.T) {
	dir := t.TempDir()
	servers := []struct {
		name, tool, want string
		build            func(t *testing.T, out string)
	}{
		{"c", "files", "all is as it should be", func(t *testing.T, out string) {
			compile(t, tool(t, "clang-14", "clang"), "--target=wasm32-wasi", "-O2", "-Wall", "-Werror", "-Wl,-s", "-o", out, "testdata/cserver/server.c")
		}},
		{"rust", "look", `you text Some(true) Some(false)`, func(t *testing.T, out string) {
			compileRust(t, out, "testdata/rustserver/main.rs")
		}},
	}
	for _, srv := range servers {
		t.Run(srv.name, func(t *testing.T) {
			path := filepath.Join(dir, srv.name+".wasm")
			srv.build(t, path)
			forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
				s := spec(t, tier)
				s.Name, s.Image, s.Args, s.Env = srv.name, image(t, path), []string{srv.name}, []string{"NAME=you"}
				s.Mounts = []sandbox.Mount{mount(t, t.TempDir(), "/data", true)}
				sb := start(t, newRuntime(t), s, nil)
				session := connect(t, sb)
				list, err := session.ListTools(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				if len(list.Tools) < 2 {
					t.Errorf("%d tools", len(list.Tools))
				}
				if got := textOf(t, call(t, session, "echo", map[string]any{"text": "hällo \"there\""})); got != "hällo \"there\"" {
					t.Errorf("echo: %q", got)
				}
				if got := textOf(t, call(t, session, srv.tool, nil)); got != srv.want {
					t.Errorf("%s: %s", srv.tool, got)
				}
				_ = session.Close()
				if exit := sb.wait(); exit.Cause != sandbox.Exited || exit.Code != 0 {
					t.Errorf("exit %+v", exit)
				}
			})
		})
	}
}
