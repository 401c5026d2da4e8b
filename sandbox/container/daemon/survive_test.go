//go:build linux

package daemon

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/containerd/api/types/runc/options"
	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// A shim and its container outlive an engine that is killed. The containerd of
// the next one must know them again, so that they can be collected.
func TestTheNextContainerdKnowsWhatWasLeftRunning(t *testing.T) {
	bin, dir := need(t)
	owned := owner(t, dir)
	cfg := config(dir, bin)
	ctx := namespaces.WithNamespace(t.Context(), "test")

	client, err := containerd.New(cfg.socket())
	if err != nil {
		t.Fatal(err)
	}
	pid := sleeper(ctx, t, client, bin, dir)
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	fd := handle(t, pid)

	daemonFD := handle(t, recorded(t, cfg).PID)
	if err := owned.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if !ended(t, daemonFD, 10*time.Second) {
		t.Fatal("containerd outlives its owner")
	}
	if ended(t, fd, 0) {
		t.Fatal("the container went with containerd: this test shows nothing")
	}

	d := start(t, cfg)
	if client, err = containerd.New(d.Address()); err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	found, err := client.Containers(ctx)
	if err != nil || len(found) != 1 {
		t.Fatalf("the next containerd knows %d containers, %v", len(found), err)
	}
	task, err := found[0].Task(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if int(task.Pid()) != pid {
		t.Errorf("the task's pid is %d, want %d", task.Pid(), pid)
	}
	if _, err := task.Delete(ctx, containerd.WithProcessKill); err != nil {
		t.Fatal(err)
	}
	if err := found[0].Delete(ctx); err != nil {
		t.Fatal(err)
	}
	if !ended(t, fd, 10*time.Second) {
		t.Error("the container still runs")
	}
	left, err := filepath.Glob(filepath.Join(cfg.State, "io.containerd.runtime.v2.task", "*", "*"))
	if err != nil || len(left) != 0 {
		t.Errorf("bundles are left: %q, %v", left, err)
	}
	sockets, err := filepath.Glob(filepath.Join(cfg.State, "s", "*"))
	if err != nil || len(sockets) != 0 {
		t.Errorf("sockets of shims are left: %q, %v", sockets, err)
	}
}

// sleeper starts a container that sleeps, on the host's own programs.
func sleeper(ctx context.Context, t *testing.T, client *containerd.Client, bin, dir string) (pid int) {
	t.Helper()
	rootfs := filepath.Join(dir, "rootfs")
	var mounts []specs.Mount
	for _, p := range []string{"/usr", "/bin", "/lib", "/lib64"} {
		if _, err := os.Stat(p); err != nil {
			continue
		}
		if err := os.MkdirAll(rootfs+p, 0o755); err != nil {
			t.Fatal(err)
		}
		mounts = append(mounts, specs.Mount{Destination: p, Source: p, Type: "bind", Options: []string{"rbind", "ro"}})
	}
	c, err := client.NewContainer(ctx, "sleeper",
		containerd.WithRuntime("io.containerd.runc.v2", &options.Options{BinaryName: filepath.Join(bin, "runc")}),
		containerd.WithNewSpec(
			oci.WithRootFSPath(rootfs), oci.WithProcessArgs("/bin/sleep", "1000"), oci.WithMounts(mounts),
		))
	if err != nil {
		t.Fatal(err)
	}
	task, err := c.NewTask(ctx, cio.NullIO)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // where the test ends early
		if fd, err := unix.PidfdOpen(int(task.Pid()), 0); err == nil {
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			_ = unix.Close(fd)
		}
	})
	if err := task.Start(ctx); err != nil {
		t.Fatal(err)
	}
	return int(task.Pid())
}
