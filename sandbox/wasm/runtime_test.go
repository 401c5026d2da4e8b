//go:build linux

package wasm_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wasm"
)

func forTiers(t *testing.T, f func(t *testing.T, tier sandbox.Isolation)) {
	for _, tier := range tiers {
		t.Run(tier.String(), func(t *testing.T) { f(t, tier) })
	}
}

func TestEchoAndExit(t *testing.T) {
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		r := newRuntime(t)
		sb := start(t, r, spec(t, tier, "echo"), nil)
		for _, l := range []string{"one", "two", strings.Repeat("long ", 50_000)} {
			go sb.write(l + "\n")
			sb.expect(l)
		}
		_ = sb.Stdio().In.Close()
		if got := sb.rest(); got != "" {
			t.Errorf("more output: %q", got)
		}
		if exit := sb.wait(); exit.Cause != sandbox.Exited || exit.Code != 0 || exit.PeakMemoryBytes == 0 {
			t.Errorf("exit %+v", exit)
		}
		sb = start(t, r, spec(t, tier, "exit", "7"), nil)
		if exit := sb.wait(); exit.Cause != sandbox.Exited || exit.Code != 7 {
			t.Errorf("exit %+v", exit)
		}
		sb = start(t, r, spec(t, tier, "stderr"), nil)
		if b, err := io.ReadAll(sb.Stdio().Err); string(b) != "to stderr\n" || err != nil {
			t.Errorf("stderr %q, %v", b, err)
		}
	})
}

func TestGuestSeesOnlyItsSpec(t *testing.T) {
	t.Setenv("HOST_SECRET", "must not be seen")
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		s := spec(t, tier, "about", "an argument", "")
		s.Env, s.Dir = []string{"A=1", "B=x=y"}, "/srv"
		s.Mounts = []sandbox.Mount{mount(t, t.TempDir(), "/srv", false)}
		sb := start(t, newRuntime(t), s, nil)
		var got any
		if err := json.Unmarshal([]byte(sb.line()), &got); err != nil {
			t.Fatal(err)
		}
		want := map[string]any{"args": []any{"guest", "about", "an argument", ""}, "env": []any{"A=1", "B=x=y", "PWD=/srv", "HOME=/home/mcp"}, "wd": "/srv"}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	})
}

func TestTimersFireWhileStdinBlocks(t *testing.T) {
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		sb := start(t, newRuntime(t), spec(t, tier, "timers"), nil)
		sb.expect("ticked")
		sb.write("hello\n")
		sb.expect("line: hello")
	})
}

func TestPollWaitsForAllKinds(t *testing.T) {
	sb := start(t, newRuntime(t), spec(t, sandbox.WASMInProcess, "poll"), nil)
	sb.expect("errno 0 events 1 user 2 error 8") // the bad descriptor at once
	sb.expect("errno 0 events 1 user 3 type 0")  // then the clock
	sb.expect("ready")
	sb.write("abc")
	sb.expect("errno 0 events 1 user 1 type 1 bytes 3 abc <nil>") // then stdin alone
	sb.expect("none 28 too many 28")
}

// TestStops covers each way in which a guest can refuse to end.
func TestStops(t *testing.T) {
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		r := newRuntime(t)
		for _, what := range []string{"spin", "sleep", "block", "flood"} {
			t.Run(what, func(t *testing.T) {
				e := newEgress(nil)
				sb := start(t, r, spec(t, tier, what), e)
				sb.expect("ready")
				began := time.Now()
				if err := sb.Close(context.Background()); err != nil {
					t.Fatal(err)
				}
				// The grace is 100 ms. The rest is far less (see BenchmarkStop),
				// but other tests share the processors.
				if d := time.Since(began); d > 3*time.Second {
					t.Errorf("took %v", d)
				}
				if exit := sb.wait(); exit.Cause != sandbox.Killed || exit.Signal != int(syscall.SIGKILL) || exit.Code != 137 {
					t.Errorf("exit %+v", exit)
				}
				if _, err := sb.Stdio().In.Write([]byte("x")); err == nil {
					t.Error("stdin still takes bytes")
				}
				if _, err := io.Copy(io.Discard, sb.Stdio().Out); err != nil {
					t.Errorf("stdout ends with %v", err)
				}
				if !e.isClosed() {
					t.Error("egress left open")
				}
			})
		}
	})
}

func TestCloseGoesStraightToKillWhenContextEnds(t *testing.T) {
	s := spec(t, sandbox.WASMInProcess, "sleep")
	s.Limits.StopGrace = time.Minute
	sb := start(t, newRuntime(t), s, nil)
	sb.expect("ready")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := sb.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestWallClockLimit(t *testing.T) {
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		r := newRuntime(t)
		warm := start(t, r, spec(t, tier, "echo"), nil)
		defer warm.Close(context.Background())
		for _, what := range []string{"spin", "sleep", "flood"} {
			s := spec(t, tier, what)
			s.Limits.Wall = 400 * time.Millisecond
			began := time.Now()
			sb := start(t, r, s, nil)
			exit := sb.wait()
			if exit.Cause != sandbox.Deadline || exit.Code != 137 {
				t.Errorf("%s: exit %+v", what, exit)
			}
			if d := time.Since(began); d > 5*time.Second {
				t.Errorf("%s: ended after %v", what, d)
			}
		}
	})
}

func TestMemoryLimit(t *testing.T) {
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		sb := start(t, newRuntime(t), spec(t, tier, "alloc"), nil)
		sb.expect("ready")
		exit := sb.wait()
		if exit.Cause != sandbox.OOM || exit.PeakMemoryBytes > 128<<20 || exit.PeakMemoryBytes < 64<<20 {
			t.Errorf("exit %+v", exit)
		}
	})
}

func TestDeepRecursionAndPanic(t *testing.T) {
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		r := newRuntime(t)
		sb := start(t, r, spec(t, tier, "deep"), nil)
		if exit := sb.wait(); exit.Cause != sandbox.OOM && (exit.Cause != sandbox.Exited || exit.Code != 2) {
			t.Errorf("deep: exit %+v", exit)
		}
		sb = start(t, r, spec(t, tier, "panic"), nil)
		if exit := sb.wait(); exit.Cause != sandbox.Exited || exit.Code != 2 {
			t.Errorf("panic: exit %+v", exit)
		}
	})
}

func TestRuntimeClose(t *testing.T) {
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		r := newRuntime(t)
		sb := start(t, r, spec(t, tier, "sleep"), nil)
		sb.expect("ready")
		if err := r.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		if exit := sb.wait(); exit.Cause != sandbox.Killed {
			t.Errorf("exit %+v", exit)
		}
		e := newEgress(nil)
		if _, err := r.Start(context.Background(), spec(t, tier, "echo"), e); !errors.Is(err, sandbox.ErrClosed) || !e.isClosed() {
			t.Errorf("start after close: %v", err)
		}
	})
}

func TestStartRefuses(t *testing.T) {
	r := newRuntime(t)
	dir := t.TempDir()
	write := func(name string, b []byte) sandbox.Image {
		p := filepath.Join(dir, name+".wasm")
		if err := os.WriteFile(p, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return image(t, p)
	}
	good := image(t, "guest")
	wrong := good
	wrong.Digest = "sha256:" + strings.Repeat("0", 64)
	missing := good
	missing.Path, missing.Digest = filepath.Join(dir, "none.wasm"), "sha256:"+strings.Repeat("1", 64)
	b, err := os.ReadFile(good.Path)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		edit func(*sandbox.Spec)
		is   error
		text string
	}{
		{"digest", func(s *sandbox.Spec) { s.Image = wrong }, sandbox.ErrInvalid, "digest is"},
		{"missing", func(s *sandbox.Spec) { s.Image = missing }, sandbox.ErrInvalid, "no such file"},
		{"text", func(s *sandbox.Spec) { s.Image = write("text", []byte("#!/bin/sh\n")) }, nil, "not a WebAssembly file"},
		{"empty", func(s *sandbox.Spec) { s.Image = write("empty", nil) }, nil, "not a WebAssembly file"},
		{"cut", func(s *sandbox.Spec) { s.Image = write("cut", b[:len(b)/2]) }, nil, "cut short"},
		{"broken", func(s *sandbox.Spec) { s.Image = write("broken", wasmModule(section(1, 9, 9, 9), section(5, 1, 0, 1))) }, nil, "does not compile"},
		{"component", func(s *sandbox.Spec) { s.Image = write("component", []byte("\x00asm\x0d\x00\x01\x00")) }, nil, "component"},
		{"no memory", func(s *sandbox.Spec) { s.Image = write("nomem", wasmModule()) }, nil, "no memory"},
		{"library", func(s *sandbox.Spec) { s.Image = write("lib", wasmModule(section(5, 1, 0, 1))) }, nil, "no _start"},
		{"import", func(s *sandbox.Spec) {
			s.Image = write("import", wasmModule(section(1, 1, 0x60, 0, 0), section(2, 1, 3, 'e', 'n', 'v', 1, 'f', 0, 0), section(5, 1, 0, 1)))
		}, nil, "imports what is not offered here: env.f"},
		{"table bomb", func(s *sandbox.Spec) {
			s.Image = write("table", wasmModule(section(4, 1, 0x70, 0, 0xff, 0xff, 0xff, 0xff, 0x0f), section(5, 1, 0, 1)))
		}, nil, "a table of 4294967295 entries"},
		{"memory at start", func(s *sandbox.Spec) {
			s.Image = write("mem", wasmModule(section(1, 1, 0x60, 0, 0), section(3, 1, 0), section(5, 1, 0, 0x80, 0x80, 0x04), section(7, 1, 6, '_', 's', 't', 'a', 'r', 't', 0, 0), section(10, 1, 2, 0, 0x0b)))
		}, nil, "bytes of memory at least"},
		{"tier", func(s *sandbox.Spec) { s.Isolation = sandbox.Container }, sandbox.ErrUnavailable, "wasm-inprocess and wasm only"},
		{"mount twice", func(s *sandbox.Spec) {
			f, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = f.Close() })
			s.Mounts = []sandbox.Mount{{Source: f, Target: "/dev/null"}}
		}, sandbox.ErrInvalid, "neither a folder nor a regular file"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := spec(t, sandbox.WASMInProcess, "echo")
			tc.edit(&s)
			e := newEgress(nil)
			_, err := r.Start(context.Background(), s, e)
			var bad *wasm.ModuleError
			switch {
			case err == nil:
				t.Fatal("started")
			case tc.is != nil && !errors.Is(err, tc.is), tc.is == nil && !errors.As(err, &bad):
				t.Errorf("wrong kind of error: %v", err)
			case !strings.Contains(err.Error(), tc.text):
				t.Errorf("error %q does not say %q", err, tc.text)
			}
			if !e.isClosed() {
				t.Error("egress left open")
			}
		})
	}
}

// wasmModule writes a module by hand.
func wasmModule(sections ...[]byte) []byte {
	b := []byte("\x00asm\x01\x00\x00\x00")
	for _, s := range sections {
		b = append(b, s...)
	}
	return b
}

func section(id byte, body ...byte) []byte {
	return append([]byte{id, byte(len(body))}, body...)
}

// program is a module whose _start is the given code.
func program(t *testing.T, code ...byte) sandbox.Image {
	t.Helper()
	body := append(append([]byte{0}, code...), 0x0b)
	b := wasmModule(
		section(1, 1, 0x60, 0, 0), section(3, 1, 0), section(4, 1, 0x70, 0, 1), section(5, 1, 0, 1),
		section(7, 1, 6, '_', 's', 't', 'a', 'r', 't', 0, 0),
		section(10, append([]byte{1, byte(len(body))}, body...)...))
	p := filepath.Join(t.TempDir(), "program.wasm")
	if err := os.WriteFile(p, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return image(t, p)
}

func TestTraps(t *testing.T) {
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		r := newRuntime(t)
		for _, tc := range []struct {
			name string
			code []byte
			text string
		}{
			{"unreachable", []byte{0x00}, "unreachable"},
			{"recursion", []byte{0x10, 0x00}, "stack overflow"},
			{"out of bounds", []byte{0x41, 0x7f, 0x28, 0x02, 0x00, 0x1a}, "out of bounds"},
			{"divide by zero", []byte{0x41, 0x01, 0x41, 0x00, 0x6e, 0x1a}, "divide by zero"},
		} {
			s := spec(t, tier)
			s.Image = program(t, tc.code...)
			sb := start(t, r, s, nil)
			exit := sb.wait()
			if exit.Cause != sandbox.Killed || exit.Signal != int(syscall.SIGABRT) || !strings.Contains(exit.Detail, tc.text) {
				t.Errorf("%s: exit %+v", tc.name, exit)
			}
		}
	})
}

// TestTableGrowStops grows a table for ever: the engine's own bound is 2^32
// entries of the host's memory.
func TestTableGrowStops(t *testing.T) {
	// loop: ref.null func; i32.const 65536; table.grow 0; i32.const -1; i32.ne; br_if 0; end
	code := []byte{0x03, 0x40, 0xd0, 0x70, 0x41, 0x80, 0x80, 0x04, 0xfc, 0x0f, 0x00, 0x41, 0x7f, 0x47, 0x0d, 0x00, 0x0b}
	s := spec(t, sandbox.WASMInProcess)
	s.Image = program(t, code...)
	sb := start(t, newRuntime(t), s, nil)
	if exit := sb.wait(); exit.Cause != sandbox.Exited || exit.Code != 0 {
		t.Errorf("exit %+v", exit)
	}
}

func TestMemoryGrowStops(t *testing.T) {
	// loop: i32.const 16; memory.grow; i32.const -1; i32.ne; br_if 0; end
	code := []byte{0x03, 0x40, 0x41, 0x10, 0x40, 0x00, 0x41, 0x7f, 0x47, 0x0d, 0x00, 0x0b}
	s := spec(t, sandbox.WASMInProcess)
	s.Image = program(t, code...)
	sb := start(t, newRuntime(t), s, nil)
	if exit := sb.wait(); exit.Cause != sandbox.Exited || exit.PeakMemoryBytes != 128<<20-15*65536 {
		t.Errorf("exit %+v", exit)
	}
}

func TestCacheFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	r, err := wasm.New(wasm.Config{CacheDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close(context.Background())
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := wasm.New(wasm.Config{CacheDir: dir}); err == nil || !strings.Contains(err.Error(), "written by others") {
		t.Errorf("open folder: %v", err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if _, err := wasm.New(wasm.Config{CacheDir: link}); err == nil || !strings.Contains(err.Error(), "is a link") {
		t.Errorf("link: %v", err)
	}
}
