//go:build linux

package container

import (
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandboxd/sandboxd/sandbox"
)

// tiers are those that every test of the life cycle runs on.
var tiers = []sandbox.Isolation{sandbox.Container, sandbox.GVisor}

func eachTier(t *testing.T, f func(t *testing.T, tier sandbox.Isolation)) {
	for _, tier := range tiers {
		t.Run(tier.String(), func(t *testing.T) { f(t, tier) })
	}
}

func TestStdio(t *testing.T) {
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
		h := newHost(t)
		req := request("cat")
		req.Spec.Isolation = tier
		g := start(t, h, req)
		want := strings.Repeat("0123456789abcdef", 64<<10)
		go func() {
			_, _ = io.WriteString(g.files.Stdin, want)
			_ = g.files.Stdin.Close()
		}()
		got, err := io.ReadAll(g.files.Stdout)
		if err != nil || string(got) != want {
			t.Fatalf("got %d bytes of %d back, %v", len(got), len(want), err)
		}
		if got, err := io.ReadAll(g.files.Stderr); err != nil || string(got) != "end of input\n" {
			t.Fatalf("stderr %q, %v", got, err)
		}
		want0 := sandbox.Exit{Cause: sandbox.Exited}
		if d := cmp.Diff(want0, g.exit(), cmpopts.IgnoreFields(sandbox.Exit{}, "PeakMemoryBytes", "PeakPIDs")); d != "" {
			t.Error(d)
		}
	})
}

func TestExitCauses(t *testing.T) {
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
		for name, c := range map[string]struct {
			limits sandbox.Limits
			act    func(g *guest)
			want   sandbox.Exit
		}{
			"exited": {
				act:  func(g *guest) { g.send("exit", "42") },
				want: sandbox.Exit{Cause: sandbox.Exited, Code: 42},
			},
			"killed": {
				act:  func(g *guest) { g.send("kill", "9") },
				want: sandbox.Exit{Cause: sandbox.Killed, Code: 137, Signal: 9},
			},
			"oom": {
				limits: sandbox.Limits{MemoryBytes: 128 << 20},
				act:    func(g *guest) { g.send("eat", "1024") },
				want:   sandbox.Exit{Cause: sandbox.OOM, Code: 137, Signal: 9},
			},
			"deadline": {
				limits: sandbox.Limits{Wall: 500 * time.Millisecond},
				act:    func(*guest) {},
				want:   sandbox.Exit{Cause: sandbox.Deadline, Code: 137, Signal: 9},
			},
		} {
			t.Run(name, func(t *testing.T) {
				req := request()
				req.Spec.Isolation = tier
				if c.limits != (sandbox.Limits{}) {
					req.Spec.Limits = c.limits
				}
				g := start(t, newHost(t), req)
				c.act(g)
				e := g.exit()
				if d := cmp.Diff(c.want, e, cmpopts.IgnoreFields(sandbox.Exit{}, "PeakMemoryBytes", "PeakPIDs", "Detail")); d != "" {
					t.Error(d)
				}
				if e.PeakMemoryBytes == 0 {
					t.Error("no peak of memory")
				}
			})
		}
	})
}

// TestManyAtOnce: boxes start, talk and end side by side, and a Close in
// between ends those that are there.
func TestManyAtOnce(t *testing.T) {
	h := newHost(t)
	warm(t, h)
	before := trace(t, h)
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			req := request("cat")
			req.Spec.Isolation, req.Gateway = tiers[i%len(tiers)], true
			b, f, err := h.Start(t.Context(), req)
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(f.Stdin, "hello")
			_ = f.Stdin.Close()
			if got, err := io.ReadAll(f.Stdout); err != nil || string(got) != "hello" {
				t.Errorf("said %q, %v", got, err)
			}
			if err := errors.Join(b.Stop(t.Context()), ignoreClosed(closeFiles(f))); err != nil && !errors.Is(err, os.ErrClosed) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	before.compare(t, h)
}

// TestCloseEndsBoxes: Close leaves no box, running or starting, and nothing
// starts after it.
func TestCloseEndsBoxes(t *testing.T) {
	h := newHost(t)
	other := newHost(t, func(c *Config) {
		c.Instance = instance + "-other"
		c.IDBase = defaultIDBase + 1000*idRange
		c.IDCount = 100
	})
	before := trace(t, other)
	running, files, err := h.Start(t.Context(), request())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = closeFiles(files) }()
	began := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			began <- struct{}{}
			_, f, err := h.Start(t.Context(), request())
			if err != nil && !errors.Is(err, sandbox.ErrClosed) {
				t.Error(err)
			}
			_ = closeFiles(f)
		})
		<-began
	}
	if err := h.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if e, err := running.Wait(t.Context()); err != nil || e.Cause != sandbox.Killed {
		t.Errorf("exit %+v, %v", e, err)
	}
	if _, _, err := h.Start(t.Context(), request()); !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("start after close: %v", err)
	}
	if left := trace(t, other); !slices.Equal(left.Containers, before.Containers) {
		t.Errorf("left behind: %q", left.Containers)
	}
}

func TestStateFolderHasOneOwner(t *testing.T) {
	h := newHost(t)
	if _, err := New(h.cfg); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second host on the same folder: %v", err)
	}
}

func TestUnavailableTiers(t *testing.T) {
	h := newHost(t, func(c *Config) { c.Runsc = "" })
	for _, tier := range []sandbox.Isolation{sandbox.GVisor, sandbox.Kata, sandbox.WASM} {
		req := request()
		req.Spec.Isolation = tier
		if _, _, err := h.Start(t.Context(), req); !errors.Is(err, sandbox.ErrUnavailable) {
			t.Errorf("%s: %v", tier, err)
		}
	}
}

func TestEnvironmentAndProgram(t *testing.T) {
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
		h := newHost(t)
		req := request()
		req.Spec.Isolation, req.Spec.Args = tier, []string{"kit"}
		big := "BIG=" + strings.Repeat("x", 100<<10)
		req.Spec.Env = []string{"PATH=/usr/bin:/", "EMPTY=", big}
		if got, want := start(t, h, req).must("env"), "PATH=/usr/bin:/\nEMPTY=\n"+big+"\nHOME=/home/mcp"; got != want {
			t.Errorf("environment of %d bytes, not %d", len(got), len(want))
		}
		req.Spec.Args = []string{"/no-such-program"}
		g := start(t, h, req)
		said, err := io.ReadAll(g.files.Stderr)
		if err != nil || !strings.Contains(string(said), "/no-such-program: No such file") {
			t.Errorf("stderr %q, %v", said, err)
		}
		if e := g.exit(); e.Cause != sandbox.Exited || e.Code != 127 {
			t.Errorf("exit %+v", e)
		}
		for range 8 {
			req.Spec.Env = append(req.Spec.Env, big)
		}
		if _, _, err := h.Start(t.Context(), req); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("an environment of a megabyte: %v", err)
		}
	})
}

// TestEndsOnTERM: a server that handles nothing ends on TERM, without the
// whole grace having to pass.
func TestEndsOnTERM(t *testing.T) {
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
		req := request("sleep")
		req.Spec.Isolation, req.Spec.Limits.StopGrace = tier, time.Minute
		g := start(t, newHost(t), req)
		began := time.Now()
		if err := g.box.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d > 30*time.Second {
			t.Errorf("it took %s", d)
		}
		if e := g.exit(); e.Cause != sandbox.Killed && e.Code != 2 {
			t.Errorf("exit %+v", e)
		}
	})
}
