//go:build linux

package container

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

// boxProcesses are what runs in the cgroups of this test's instance.
func boxProcesses(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, dir := range hierarchies(cgroupPath(instance, "")) {
		files, err := filepath.Glob(filepath.Join(dir, "*", "cgroup.procs"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if b, err := os.ReadFile(f); err == nil {
				out = append(out, strings.Fields(string(b))...)
			}
		}
	}
	return out
}

// TestKeeper: the processes of a killed engine's boxes end at once, in both
// tiers, with no next engine; another engine's live on, and the next engine
// finds what is left to remove.
func TestKeeper(t *testing.T) {
	other := newHost(t, func(c *Config) {
		c.Instance = instance + "-other"
		c.IDBase = defaultIDBase + 1000*idRange
		c.IDCount = 100
	})
	neighbour := start(t, other, request())
	state := filepath.Join(t.TempDir(), "state")
	kept := func(c *Config) { c.StateDir, c.Keeper = state, true }
	h := newHost(t, kept)
	warm(t, h)
	before := trace(t, h)
	if err := h.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	killedEngine(t, state, "kept", 0)
	began := time.Now()
	for len(boxProcesses(t)) > 0 {
		if time.Since(began) > 30*time.Second {
			t.Fatalf("still there: %v", boxProcesses(t))
		}
		time.Sleep(time.Millisecond)
	}
	t.Logf("all processes were gone %s after the engine", time.Since(began).Round(time.Millisecond))
	h = newHost(t, kept) // waits for the keeper
	if err := h.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	before.compare(t, h)
	if got := neighbour.must("cwd"); got != guestHome {
		t.Errorf("the neighbour says %q", got)
	}
}

// TestKeeperIsReplaced: one that is killed has a successor, which knows the
// boxes that there were; one that goes with its engine ends nothing else.
func TestKeeperIsReplaced(t *testing.T) {
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
		h := newHost(t, func(c *Config) { c.Keeper = true })
		req := request()
		req.Spec.Isolation = tier
		g := start(t, h, req)
		h.keeper.mu.Lock()
		first := h.keeper.process
		h.keeper.mu.Unlock()
		if err := first.Kill(); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			h.keeper.mu.Lock()
			now, running := h.keeper.process, h.keeper.pipe != nil
			h.keeper.mu.Unlock()
			if running && now != first {
				break
			}
			if time.Now().After(end) {
				t.Fatal("no successor")
			}
		}
		g.must("cwd") // neither's end was taken for the engine's
		h.keeper.mu.Lock()
		known := h.keeper.ids[g.box.ID()]
		_ = h.keeper.pipe.Close() // as if the engine died
		h.keeper.pipe = nil
		h.keeper.mu.Unlock()
		if !known {
			t.Error("the keeper does not know the box")
		}
		if e := g.exit(); e.Cause != sandbox.Killed || e.Signal != int(unix.SIGKILL) {
			t.Errorf("exit %+v", e)
		}
	})
}

// TestKeeperTakesNothingElse: words that are no box's name end nothing.
func TestKeeperTakesNothingElse(t *testing.T) {
	h := newHost(t)
	g := start(t, h, request())
	id := g.box.ID()
	for _, said := range []string{"", "+\n", "+../" + id + "\n", "+" + id + "/..\n", id + "\n", "+" + id + "\n-" + id + "\n", "+/\n+.\n", "+" + strings.Repeat("x", 1<<17)} {
		if got := keep(strings.NewReader(said), instance); got != 0 {
			t.Errorf("%.40q: status %d", said, got)
		}
	}
	g.must("cwd")
	if got := keep(strings.NewReader("+"+id+"\n"), instance); got != 0 {
		t.Errorf("status %d", got)
	}
	if e := g.exit(); e.Cause != sandbox.Killed {
		t.Errorf("exit %+v", e)
	}
}

// TestKeeperClosesWhileItIsReplaced: a successor that is started just as the
// engine closes ends, too.
func TestKeeperClosesWhileItIsReplaced(t *testing.T) {
	h := newHost(t, func(c *Config) { c.Keeper = true })
	k := &keeper{
		instance: instance, lock: h.keeper.lock, log: h.cfg.Logger,
		ids: map[string]bool{"sb-" + instance + "-0123456789abcdef": true}, closed: true,
	}
	cmd, err := k.spawn()
	if err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	if err := cmd.Wait(); err != nil || k.pipe != nil {
		t.Errorf("the successor: %v, its pipe is open: %v", err, k.pipe != nil)
	}
}
