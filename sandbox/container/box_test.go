package container

import (
	"io"
	"strings"
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
