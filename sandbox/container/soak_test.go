//go:build linux

package container

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

// rounds is how often the long tests go round: a SANDBOXD_SOAK over 1 says it
// itself, any other the test's own long count.
func rounds(short, long int) int {
	soak := os.Getenv("SANDBOXD_SOAK")
	if soak == "" {
		return short
	}
	if n, err := strconv.Atoi(soak); err == nil && n > 1 {
		return n
	}
	return long
}

// TestSoakRounds starts and stops boxes of both tiers, in every way, until
// whatever leaks has added up.
func TestSoakRounds(t *testing.T) {
	h := newHost(t)
	warm(t, h)
	before := trace(t, h)
	goroutines, memory := runtime.NumGoroutine(), residentKB(t)
	n := rounds(50, 2000)
	var wg sync.WaitGroup
	for w := range soakWorkers {
		wg.Go(func() {
			for i := w; i < n && !t.Failed(); i += soakWorkers {
				if err := soakRound(t.Context(), h, i); err != nil {
					t.Errorf("round %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d rounds, %d at a time", n, soakWorkers)
	before.compare(t, h)
	after := trace(t, h)
	t.Logf("processes %d -> %d, mounts %d -> %d, cgroups %d -> %d, containers %d -> %d, snapshots %d -> %d, leases %d -> %d, folders %d -> %d, descriptors %d -> %d, goroutines %d -> %d, resident KiB (this process, containerd) %d -> %d",
		len(before.Processes), len(after.Processes), len(before.Mounts), len(after.Mounts), len(before.Cgroups), len(after.Cgroups),
		len(before.Containers), len(after.Containers), len(before.Snapshots), len(after.Snapshots), len(before.Leases), len(after.Leases),
		len(before.Folders)+len(before.Runtimes), len(after.Folders)+len(after.Runtimes), len(before.Descriptors), len(after.Descriptors),
		goroutines, runtime.NumGoroutine(), memory, residentKB(t))
	if n := runtime.NumGoroutine(); n > goroutines {
		t.Errorf("%d goroutines, before %d", n, goroutines)
	}
	for i, now := range residentKB(t) {
		if now > 2*memory[i]+64<<10 {
			t.Errorf("%d KiB resident, before %d", now, memory[i])
		}
	}
}

const soakWorkers = 4

// soakRound starts a box and stops it, in a way and a tier that go by i.
func soakRound(ctx context.Context, h *host, i int) error {
	req := request()
	req.Spec.Isolation, req.Gateway = sandbox.Container, i%3 < 2
	if i/soakWorkers%4 == 3 {
		req.Spec.Isolation = sandbox.GVisor
	}
	b, f, err := h.Start(ctx, req)
	if err != nil {
		return err
	}
	if i%5 == 0 {
		_ = f.Stdin.Close()
	}
	return errors.Join(b.Stop(ctx), ignoreClosed(closeFiles(f)))
}

// TestSoakKilledContainerd kills containerd at random moments, while boxes
// start and stop. What a box of that time was made of is gone once another
// containerd runs.
func TestSoakKilledContainerd(t *testing.T) {
	mine := &laboratory{dir: t.TempDir(), parts: need(t).parts}
	if err := errors.Join(os.Chmod(filepath.Dir(mine.dir), 0o711), os.Chmod(mine.dir, 0o711), mine.startDaemon()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = mine.daemon.Process.Signal(unix.SIGTERM)
		_ = mine.daemon.Wait()
	})
	h := newHost(t, func(c *Config) { c.Address = mine.address })
	warm(t, h)
	before := trace(t, h)
	for i := range rounds(2, 100) {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var mu sync.Mutex
		var left []Box
		for w := range soakWorkers {
			wg.Go(func() {
				for ctx.Err() == nil {
					req := request()
					req.Spec.Isolation, req.Gateway = tiers[w%2], true
					b, f, err := h.Start(t.Context(), req)
					if err != nil {
						continue // containerd is away, or was at the wrong moment
					}
					if b.Stop(t.Context()) != nil {
						mu.Lock()
						left = append(left, b)
						mu.Unlock()
					}
					_ = closeFiles(f)
				}
			})
		}
		time.Sleep(time.Duration(rand.IntN(1500)) * time.Millisecond)
		err := errors.Join(mine.daemon.Process.Kill(), notExited(mine.daemon.Wait()), os.Remove(mine.address), mine.startDaemon())
		cancel()
		wg.Wait()
		for _, b := range left {
			err = errors.Join(err, b.Stop(t.Context()))
		}
		if err = errors.Join(err, h.Collect(t.Context())); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		if before.compare(t, h); t.Failed() {
			t.Fatalf("in round %d", i)
		}
	}
}

// notExited is an error of waiting for a process other than how it ended.
func notExited(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}

// residentKB is the resident memory of this process and of containerd.
func residentKB(t *testing.T) [2]int {
	t.Helper()
	var out [2]int
	for i, pid := range []int{os.Getpid(), lab.daemon.Process.Pid} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(b), "VmRSS:")
		if _, err := fmt.Sscan(rest, &out[i]); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// TestSoakCancelledStarts gives up on starts at random moments.
func TestSoakCancelledStarts(t *testing.T) {
	h := newHost(t)
	warm(t, h)
	before := trace(t, h)
	failed := 0
	for i := range rounds(12, 500) {
		req := request()
		req.Spec.Isolation, req.Gateway = tiers[i%2], true
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(250))*time.Millisecond)
		b, f, err := h.Start(ctx, req)
		cancel()
		if err == nil {
			err = errors.Join(b.Stop(t.Context()), closeFiles(f))
		} else if failed++; errors.As(err, new(*leftoverError)) {
			t.Errorf("round %d: %v", i, err)
			continue
		} else {
			err = nil
		}
		if err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
	}
	t.Logf("%d starts were given up", failed)
	before.compare(t, h)
}

// TestSoakKilledEngine kills an engine at random moments, while it starts and
// stops boxes, and has its successor collect.
func TestSoakKilledEngine(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	kept := func(c *Config) { c.StateDir, c.Keeper = state, true }
	h := newHost(t, kept)
	warm(t, h)
	before := trace(t, h)
	for i := range rounds(2, 100) {
		if err := h.Close(t.Context()); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		killedEngine(t, state, "loop", time.Duration(rand.IntN(1500))*time.Millisecond)
		h = newHost(t, kept) // waits for the other's keeper
		if left := boxProcesses(t); len(left) > 0 {
			t.Errorf("round %d: the keeper left %v", i, left)
		}
		if err := h.Collect(t.Context()); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		before.compare(t, h)
		if t.Failed() {
			t.Fatalf("in round %d", i)
		}
	}
}
