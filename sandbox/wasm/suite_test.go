//go:build linux

package wasm_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"
	"github.com/tetratelabs/wazero/sys"

	"github.com/sandboxd/sandboxd/sandbox"
)

// suiteCase is one test of the public WASI suite: a module, and beside it what
// it wants and is to do.
type suiteCase struct {
	name, path string

	Args, Dirs []string
	Env        map[string]string
	Code       int    `json:"exit_code"`
	Stdout     string `json:"stdout"`
	Stderr     string `json:"stderr"`
}

func suiteCases(t *testing.T, dir string) []suiteCase {
	t.Helper()
	var out []suiteCase
	for _, pattern := range []string{"*.wasm", "*/*.wasm", "*/*/*.wasm", "*/*/*/*.wasm"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			c := suiteCase{path: path}
			rel, _ := filepath.Rel(dir, path)
			c.name = strings.TrimSuffix(rel, ".wasm")
			if b, err := os.ReadFile(strings.TrimSuffix(path, ".wasm") + ".json"); err == nil {
				if err := json.Unmarshal(b, &c); err != nil {
					t.Fatalf("%s: %v", rel, err)
				}
			}
			out = append(out, c)
		}
	}
	return out
}

// folders copies a case's folders, which it may write to, and returns them by
// the names that the guest has for them.
func (c suiteCase) folders(t *testing.T) map[string]string {
	t.Helper()
	dirs := map[string]string{}
	for _, d := range c.Dirs {
		to := t.TempDir()
		if err := os.CopyFS(to, os.DirFS(filepath.Join(filepath.Dir(c.path), d))); err != nil {
			t.Fatal(err)
		}
		left, err := filepath.Glob(filepath.Join(to, "*.cleanup"))
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range left {
			if err := os.RemoveAll(l); err != nil {
				t.Fatal(err)
			}
		}
		dirs[d] = to
	}
	return dirs
}

func (c suiteCase) check(code int, stdout, stderr string) string {
	if code != c.Code || c.Stdout != "" && stdout != c.Stdout || c.Stderr != "" && stderr != c.Stderr {
		return fmt.Sprintf("exit code %d, want %d; stdout %q; stderr %q", code, c.Code, stdout, stderr)
	}
	return ""
}

// ours runs a case in a sandbox. Its error is a case that cannot be given to a
// sandbox at all.
func (c suiteCase) ours(t *testing.T, r sandbox.Runtime, tier sandbox.Isolation) string {
	t.Helper()
	s := sandbox.Spec{
		Tenant: "suite", Name: "case", Isolation: tier, Image: image(t, c.path), Args: append([]string{filepath.Base(c.path)}, c.Args...),
		Limits: sandbox.Limits{MemoryBytes: 256 << 20, Wall: time.Minute, StopGrace: 100 * time.Millisecond},
	}
	for k, v := range c.Env {
		s.Env = append(s.Env, k+"="+v)
	}
	for name, dir := range c.folders(t) {
		// A mount's target is absolute here, and so is the name that is asked for.
		s.Mounts = append(s.Mounts, mount(t, dir, "/"+name, true))
		for i, a := range s.Args {
			if a == name {
				s.Args[i] = "/" + name
			}
		}
	}
	if len(s.Mounts) > 0 {
		s.Dir = "/"
	}
	sb, err := r.Start(t.Context(), s, nil)
	if err != nil {
		return "start: " + err.Error()
	}
	_ = sb.Stdio().In.Close() // the suite's own runner has nothing to say either
	var out, errs bytes.Buffer
	done := make(chan struct{}, 2)
	go func() { _, _ = io.Copy(&out, sb.Stdio().Out); done <- struct{}{} }()
	go func() { _, _ = io.Copy(&errs, sb.Stdio().Err); done <- struct{}{} }()
	exit, err := sb.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	<-done
	<-done
	if err := sb.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if exit.Cause != sandbox.Exited {
		return fmt.Sprintf("ended by %s (%s); stderr %q", exit.Cause, exit.Detail, errs.String())
	}
	return c.check(exit.Code, out.String(), errs.String())
}

// reference runs a case on the engine's own module.
func (c suiteCase) reference(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigInterpreter().WithCloseOnContextDone(true))
	defer r.Close(context.Background())
	wasi_snapshot_preview1.MustInstantiate(ctx, r)
	var out, errs bytes.Buffer
	fs := wazero.NewFSConfig()
	for name, dir := range c.folders(t) {
		fs = fs.WithDirMount(dir, name)
	}
	cfg := wazero.NewModuleConfig().WithArgs(append([]string{filepath.Base(c.path)}, c.Args...)...).WithFSConfig(fs).
		WithStdout(&out).WithStderr(&errs).WithSysWalltime().WithSysNanotime().WithSysNanosleep()
	for k, v := range c.Env {
		cfg = cfg.WithEnv(k, v)
	}
	b, err := os.ReadFile(c.path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.InstantiateWithConfig(ctx, b, cfg)
	code := 0
	if err != nil {
		exit, ok := err.(*sys.ExitError) //nolint:errorlint // it is never wrapped
		if !ok {
			what, _, _ := strings.Cut(err.Error(), "\n")
			return what + "; " + errs.String()
		}
		code = int(exit.ExitCode())
	}
	return c.check(code, out.String(), errs.String())
}

// TestWASISuite runs the public WASI suite's preview 1 modules, from the folder
// that SANDBOXD_WASI_SUITE names, in both tiers and beside them on the engine's
// own module. What fails here must be in suiteDiffers, with its reason.
func TestWASISuite(t *testing.T) {
	dir := os.Getenv("SANDBOXD_WASI_SUITE")
	if dir == "" {
		t.Skip("SANDBOXD_WASI_SUITE names no folder with the suite's modules")
	}
	cases := suiteCases(t, dir)
	if len(cases) < 50 {
		t.Fatalf("only %d modules in %s", len(cases), dir)
	}
	r := newBareRuntime(t)
	passed := map[string]int{}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			fail := map[string]string{
				"wasm-inprocess": c.ours(t, r, sandbox.WASMInProcess), "wasm": c.ours(t, r, sandbox.WASM), "reference": c.reference(t),
			}
			why := suiteDiffers[filepath.Base(c.name)]
			for _, by := range []string{"wasm-inprocess", "wasm", "reference"} {
				switch {
				case fail[by] == "":
					passed[by]++
				case by == "reference":
					t.Logf("the engine's own module: %s", fail[by])
				case why != "":
					t.Logf("%s differs (%s): %s", by, why, fail[by])
				default:
					t.Errorf("%s: %s", by, fail[by])
				}
			}
			if why != "" && fail["wasm"] == "" && fail["wasm-inprocess"] == "" {
				t.Errorf("passes: it no longer differs")
			}
		})
	}
	for _, by := range slices.Sorted(maps.Keys(passed)) {
		t.Logf("%s: %d of %d pass", by, passed[by], len(cases))
	}
}

// suiteDiffers are the cases in which a sandbox does otherwise on purpose.
var suiteDiffers = map[string]string{}
