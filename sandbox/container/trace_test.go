//go:build linux

package container

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/sandbox"
)

// traces is what a box could leave behind on its host.
type traces struct {
	Mounts, Cgroups, Folders, Runtimes, Containers, Snapshots, Leases, Processes []string
	// Descriptors are this process's, by what they lead to, without numbers.
	Descriptors []string
}

// trace takes stock. Only what bears this engine's name or folders counts,
// where others work on the same machine; namespaces and descriptors are this
// process's own.
func trace(t *testing.T, h *host) traces {
	t.Helper()
	var tr traces
	ours := func(s string) bool {
		return strings.Contains(s, h.cfg.StateDir) || strings.Contains(s, lab.dir) || strings.Contains(s, "sandboxd-"+h.cfg.Instance)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		// The one that runsc makes once for all boxes goes with the engine.
		if ours(line) && !strings.Contains(line, "null-netns") {
			tr.Mounts = append(tr.Mounts, line)
		}
	}
	for _, g := range hierarchies(cgroupPath(h.cfg.Instance, "")) {
		below, err := os.ReadDir(g)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range below {
			if e.IsDir() {
				tr.Cgroups = append(tr.Cgroups, filepath.Join(g, e.Name()))
			}
		}
	}
	folders, err := os.ReadDir(h.boxesDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range folders {
		tr.Folders = append(tr.Folders, e.Name())
	}
	states, err := os.ReadDir(filepath.Join(h.runtimeDir(), h.cfg.Namespace))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, e := range states {
		if e.Name() != "null-netns" {
			tr.Runtimes = append(tr.Runtimes, e.Name())
		}
	}
	ctx := h.ctx(t.Context())
	cs, err := h.cl.Containers(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cs {
		tr.Containers = append(tr.Containers, c.ID())
	}
	if err := h.cl.SnapshotService(snapshotter).Walk(ctx, func(_ context.Context, i snapshots.Info) error {
		tr.Snapshots = append(tr.Snapshots, i.Name)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	ls, err := h.cl.LeasesService().List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range ls {
		tr.Leases = append(tr.Leases, l.ID)
	}
	tr.Processes = processes(t, ours)
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			tr.Descriptors = append(tr.Descriptors, strings.TrimRight(to, "0123456789]"))
		}
	}
	slices.Sort(tr.Descriptors)
	return tr
}

// processes are those whose command line or cgroup is ours, but containerd.
func processes(t *testing.T, ours func(string) bool) []string {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, d := range dirs {
		line, err := os.ReadFile(d + "/cmdline")
		if err != nil {
			continue
		}
		cmd := string(bytes.ReplaceAll(line, []byte{0}, []byte(" ")))
		group, _ := os.ReadFile(d + "/cgroup")
		if (strings.Contains(cmd, "-shim-") || strings.Contains(cmd, "runsc") || strings.Contains(cmd, "runc ")) && ours(cmd) || strings.Contains(string(group), "/sandboxd-"+instance+"/") {
			out = append(out, filepath.Base(d)+" "+cmd)
		}
	}
	return out
}

// compare waits a little for what goes by itself (a shim's end), then holds
// the host to what it was.
func (before traces) compare(t *testing.T, h *host) {
	t.Helper()
	var diff string
	for range 100 {
		runtime.GC()
		after := trace(t, h)
		slices.Sort(after.Snapshots)
		slices.Sort(before.Snapshots)
		// Some of what was there before may be gone by now; no kind may grow.
		after.Descriptors = grown(before.Descriptors, after.Descriptors)
		want := before
		want.Descriptors = nil
		if diff = cmp.Diff(want, after); diff == "" {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Errorf("the host is not as it was:\n%s", diff)
}

// warm starts and stops a box, for what the first start opens for good.
func warm(t *testing.T, h *host) {
	t.Helper()
	b, f, err := h.Start(t.Context(), request())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.Stop(t.Context()), closeFiles(f)); err != nil {
		t.Fatal(err)
	}
}

// grown are the elements of b beyond those of a.
func grown(a, b []string) []string {
	a = slices.Clone(a)
	var out []string
	for _, s := range b {
		if i := slices.Index(a, s); i >= 0 {
			a = slices.Delete(a, i, i+1)
		} else {
			out = append(out, s)
		}
	}
	return out
}

func TestStopLeavesNothing(t *testing.T) {
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
		h := newHost(t)
		warm(t, h)
		before := trace(t, h)
		for _, how := range []string{"running", "ended", "stubborn", "twice", "cancelled"} {
			req := request("cat")
			if how == "stubborn" {
				req = request("stubborn")
			}
			req.Owner, req.Spec.Isolation, req.Gateway = callerUID, tier, true
			req.Spec.Mounts = []sandbox.Mount{{Source: openPath(t, callerFolder(t)), Target: "/data"}}
			ctx := t.Context()
			b, f, err := h.Start(ctx, req)
			if err != nil {
				t.Fatal(err)
			}
			// A program that is signalled before its runtime is up may end in
			// ways of its own.
			if how != "stubborn" {
				if _, err := f.Stdin.WriteString("ready\n"); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := io.ReadFull(f.Stdout, make([]byte, len("ready\n"))); err != nil {
				t.Fatalf("%s: %v", how, err)
			}
			switch how {
			case "ended":
				if err := f.Stdin.Close(); err != nil {
					t.Fatal(err)
				}
				if _, err := b.Wait(ctx); err != nil {
					t.Fatal(err)
				}
			case "cancelled":
				c, cancel := context.WithCancel(ctx)
				cancel()
				ctx = c
			}
			began := time.Now()
			if err := b.Stop(ctx); err != nil {
				t.Errorf("%s: stop: %v", how, err)
			}
			if how == "twice" {
				if err := b.Stop(ctx); err != nil {
					t.Errorf("stop again: %v", err)
				}
			}
			if d := time.Since(began); d > 5*time.Second {
				t.Errorf("%s: stop took %s", how, d)
			}
			e, err := b.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]sandbox.Cause{"ended": sandbox.Exited}[how]
			if want == 0 {
				want = sandbox.Killed
			}
			if e.Cause != want {
				t.Errorf("%s: exit %+v", how, e)
			}
			_ = closeFiles(f)
			for _, m := range req.Spec.Mounts {
				_ = m.Source.Close()
			}
		}
		before.compare(t, h)
	})
}
