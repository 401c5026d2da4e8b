//go:build linux

package container

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

// engine is what a child process of the test does until it is killed: it
// starts a box of each tier, and in a loop also stops them, several at a time.
func engine(args []string) int {
	address, state, parts, initPath, dgst, mode, instance := args[0], args[1], args[2], args[3], args[4], args[5], args[6]
	h, err := New(Config{
		Address: address, StateDir: state, Instance: instance, Init: initPath, Runc: filepath.Join(parts, "runc"),
		Runsc: filepath.Join(parts, "runsc"), Shim: filepath.Join(parts, "containerd-shim-runc-v2"), Logger: slog.New(slog.DiscardHandler),
		Keeper: mode != "once", Ahead: mode != "once",
	})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	work := func(tier sandbox.Isolation) error {
		req := request("stubborn")
		req.Spec.Image.Digest, req.Spec.Isolation, req.Gateway = dgst, tier, true
		b, f, err := h.Start(context.Background(), req)
		if err == nil && mode == "loop" {
			err = errors.Join(b.Stop(context.Background()), closeFiles(f))
		}
		return err
	}
	for range 2 {
		for _, tier := range tiers {
			if err := work(tier); err != nil {
				fmt.Println(err)
				return 1
			}
		}
		if mode == "loop" {
			break
		}
	}
	fmt.Println("ready")
	for mode == "loop" {
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() { _ = work(tiers[i%2]) })
		}
		wg.Wait()
	}
	time.Sleep(time.Hour)
	return 1
}

// killedEngine leaves behind what an engine does that is killed, a while
// after it is ready.
func killedEngine(t *testing.T, state, mode string, after time.Duration) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, lab.address, state, lab.parts, lab.init(), lab.digest, mode, instance)
	cmd.Env = append(os.Environ(), engineEnv+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	time.Sleep(after)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if line != "ready\n" {
		t.Fatalf("engine: %q, %v", line, err)
	}
}

// lostShim looks like a shim that containerd lost sight of, to all but itself.
func lostShim(t *testing.T, h *host, id string) *exec.Cmd {
	t.Helper()
	cmd := &exec.Cmd{Path: "/bin/sh", Args: []string{
		"/x/containerd-shim-runc-v2", "-c", "read x", "-namespace", h.cfg.Namespace, "-id", id, "-address", h.cfg.Address,
	}}
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

func TestCollectAfterACrash(t *testing.T) {
	neighbourHost := newHost(t, func(c *Config) {
		c.Instance = instance + "-other"
		c.IDBase = defaultIDBase + 1000*idRange
		c.IDCount = 100
	})
	neighbour := start(t, neighbourHost, request())
	state := filepath.Join(t.TempDir(), "state")
	h := newHost(t, func(c *Config) { c.StateDir = state })
	before := trace(t, h)
	if err := h.Close(t.Context()); err != nil {
		t.Fatal(err)
	}

	killedEngine(t, state, "once", 0)
	h = newHost(t, func(c *Config) { c.StateDir = state })
	half(t, h)
	if left := trace(t, h); len(left.Containers) != 5 || len(left.Cgroups) == 0 || len(left.Folders) != 5 || len(left.Processes) < 4 {
		t.Fatalf("the crash left only %+v", left)
	}
	others := lostShim(t, h, "sb-"+instance+"0-0123456789abcdef")
	alike := lostShim(t, h, "sb-"+instance+"-0123456789abcdef-0123456789abcdef")
	lost := lostShim(t, h, "sb-"+instance+"-0123456789abcdef")
	if err := h.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := lost.Wait(); err == nil || lost.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the lost shim: %v", err)
	}
	for _, other := range []*exec.Cmd{others, alike} {
		// Its own end, since one that was killed keeps its number until then.
		_ = other.Process.Signal(syscall.SIGUSR1)
		if _ = other.Wait(); other.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGUSR1 {
			t.Errorf("another's shim %v: %v", other.Args, other.ProcessState)
		}
	}
	before.compare(t, h)
	if got := neighbour.must("cwd"); got != guestHome {
		t.Errorf("the neighbour says %q", got)
	}
	if err := h.Collect(t.Context()); err != nil {
		t.Errorf("collect again: %v", err)
	}
	g := start(t, h, request())
	if err := h.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.must("cwd") // its own boxes live on
}

// half leaves behind what a start does that ended halfway: a folder with a
// mount and fifos, a cgroup with a process, a snapshot and a lease.
func half(t *testing.T, h *host) {
	t.Helper()
	id := "sb-" + instance + "-half"
	dir := h.boxDir(id)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := newStdio(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range append(s.held, s.stdin, s.stdout, s.stderr) {
		_ = f.Close()
	}
	req := request()
	src := callerFolder(t)
	req.Spec.Mounts = []sandbox.Mount{{Source: openPath(t, src), Target: "/data"}}
	if _, err := stageAll(req, filepath.Join(dir, "mnt"), defaultIDBase); err != nil {
		t.Fatal(err)
	}
	_ = req.Spec.Mounts[0].Source.Close()
	ctx := h.ctx(t.Context())
	img, err := h.cl.GetImage(ctx, imageName(lab.digest))
	if err != nil {
		t.Fatal(err)
	}
	diffs, err := img.RootFS(ctx)
	if err != nil {
		t.Fatal(err)
	}
	lctx, err := h.lease(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.cl.SnapshotService(snapshotter).Prepare(lctx, id, diffs[0].String(), snapshots.WithLabels(h.labels)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if b, err := os.ReadFile(filepath.Join(src, "mine")); err != nil || string(b) != "mine" {
			t.Errorf("collecting emptied the caller's folder: %q, %v", b, err)
		}
	})
	group := filepath.Join(cgroupRoot, "pids", cgroupPath(h.cfg.Instance, id))
	if unified() {
		group = filepath.Join(cgroupRoot, cgroupPath(h.cfg.Instance, id))
	}
	if err := os.MkdirAll(group, 0o755); err != nil {
		t.Fatal(err)
	}
	sleeper := exec.Command("sleep", "1000")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = sleeper.Wait() }()
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(sleeper.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
}

// TestContainerdDies: its boxes end as a fault of the host's, none of their
// processes lives on, and once it is back nothing is left of them.
func TestContainerdDies(t *testing.T) {
	shared := need(t)
	mine := &laboratory{dir: t.TempDir(), parts: shared.parts}
	for _, d := range []string{filepath.Dir(mine.dir), mine.dir} {
		if err := os.Chmod(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	if err := mine.startDaemon(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = mine.daemon.Process.Signal(unix.SIGTERM)
		_ = mine.daemon.Wait()
	})
	h := newHost(t, func(c *Config) { c.Address = mine.address })
	warm(t, h)
	before := trace(t, h)
	var guests []*guest
	for _, tier := range tiers {
		req := request()
		req.Spec.Isolation, req.Gateway = tier, true
		guests = append(guests, start(t, h, req))
	}
	if err := mine.daemon.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = mine.daemon.Wait()
	for _, g := range guests {
		if e := g.exit(); e.Cause != sandbox.HostFault {
			t.Errorf("exit %+v", e)
		}
		if _, err := io.ReadAll(g.files.Stdout); err != nil {
			t.Errorf("its stdout: %v", err)
		}
	}
	stopped := make(chan error, len(guests))
	for _, g := range guests {
		go func() { stopped <- g.box.Stop(t.Context()) }() // waits for it to be back
	}
	if _, _, err := h.Start(t.Context(), request()); !errors.Is(err, sandbox.ErrUnavailable) {
		t.Errorf("start without containerd: %v", err)
	}
	if err := os.Remove(mine.address); err != nil {
		t.Fatal(err)
	}
	if err := mine.startDaemon(); err != nil {
		t.Fatal(err)
	}
	for _, g := range guests {
		if err := <-stopped; err != nil {
			t.Errorf("stop: %v", err)
		}
		_ = closeFiles(g.files)
	}
	before.compare(t, h)
}
