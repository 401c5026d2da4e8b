//go:build linux

package container

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	apioptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

// runscFlags choose gVisor's own kernel and network stack, on a host without
// KVM, leave the read-only root as it is, and have its kernel keep to the same
// filter of system calls.
const runscFlags = "--platform=systrap --network=sandbox --overlay2=none --oci-seccomp"

// Start implements Host.
func (h *host) Start(ctx context.Context, req Request) (_ Box, _ Files, err error) {
	if err := h.check(req); err != nil {
		return nil, Files{}, err
	}
	req.Spec.Limits = req.Spec.Limits.WithDefaults()
	ctx = h.ctx(ctx)
	b, err := h.newBox(req)
	if err != nil {
		return nil, Files{}, err
	}
	var files Files
	defer func() {
		if err != nil {
			err = errors.Join(err, closeFiles(files), b.undo(ctx))
			h.end(b.id, nil)
		}
	}()
	p, err := h.prepare(b, req, &files)
	if err != nil {
		return nil, Files{}, err
	}
	if err := h.create(ctx, b, p); err != nil {
		return nil, Files{}, fmt.Errorf("container: start: %w", err)
	}
	b.cleanup.add("entry", func(context.Context) error { h.forget(b.id); return nil })
	b.watch(context.WithoutCancel(ctx))
	h.end(b.id, b)
	return b, files, nil
}

// check refuses what no box may be, before anything exists.
func (h *host) check(req Request) error {
	if err := req.Spec.Validate(); err != nil {
		return err
	}
	if err := checkMounts(req.Spec.Mounts); err != nil {
		return err
	}
	if dir := req.Spec.Dir; dir != "" && (!filepath.IsAbs(dir) || filepath.Clean(dir) != dir) {
		return fmt.Errorf("%w: working folder %.200q must be an absolute, clean path", sandbox.ErrInvalid, dir)
	}
	missing := func(what, next string) error {
		return &sandbox.UnavailableError{Tier: req.Spec.Isolation, What: what, Next: next}
	}
	switch req.Spec.Isolation {
	case sandbox.Container:
		if h.cfg.Runc == "" {
			return missing("this engine has no runc", "install the engine's parts with make engine")
		}
	case sandbox.GVisor:
		if h.cfg.Runsc == "" {
			return missing("this engine has no runsc", "install the engine's parts with make engine")
		}
	case sandbox.Kata:
		return missing("this host has no Kata runtime", "use gvisor, or a host with KVM and Kata")
	case sandbox.WASM, sandbox.WASMInProcess:
		return missing("a container engine runs images, not modules", "use the wasm runtime")
	}
	return nil
}

// newBox gives the box its name.
func (h *host) newBox(req Request) (*box, error) {
	raw := make([]byte, 8)
	if _, err := rand.Read(raw); err != nil {
		return nil, fmt.Errorf("container: start: %w", err)
	}
	b := &box{
		id: "sb-" + h.cfg.Instance + "-" + hex.EncodeToString(raw), log: h.cfg.Logger,
		limits: req.Spec.Limits, gvisor: req.Spec.Isolation == sandbox.GVisor, ctx: h.ctx, serving: h.cl.IsServing, done: make(chan struct{}),
	}
	b.group = cgroupPath(h.cfg.Instance, b.id)
	return b, h.begin(b.id)
}

// prepare makes all that the container is put together from.
func (h *host) prepare(b *box, req Request, files *Files) (plan, error) {
	maxFiles, err := hardFiles()
	if err != nil {
		return plan{}, err
	}
	first, err := h.ids.take()
	if err != nil {
		return plan{}, err
	}
	b.cleanup.add("ids", func(context.Context) error { h.ids.give(first); return nil })
	dir := h.boxDir(b.id)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return plan{}, fmt.Errorf("container: start: %w", err)
	}
	b.cleanup.add("folder", func(context.Context) error { return removeBoxDir(dir) })
	b.cleanup.add("cgroup", func(ctx context.Context) error { return killCgroup(ctx, b.group) })
	if b.io, err = newStdio(dir, int(first)+guestUID); err != nil {
		return plan{}, fmt.Errorf("container: start: %w", err)
	}
	files.Stdin, files.Stdout, files.Stderr = b.io.stdin, b.io.stdout, b.io.stderr
	b.cleanup.add("fifos", func(context.Context) error { return b.io.started() })
	if h.cfg.Init != "" {
		if err := b.io.environment(guestEnv(req.Spec.Env)); err != nil {
			return plan{}, fmt.Errorf("container: start: %w", err)
		}
	}
	mounts, err := stageAll(req, filepath.Join(dir, "mnt"), first)
	if err != nil {
		return plan{}, fmt.Errorf("container: start: %w", err)
	}
	if b.net, err = newNetwork(req.Gateway, req.Open, files); err != nil {
		return plan{}, fmt.Errorf("container: start: network: %w", err)
	}
	b.cleanup.add("network", func(context.Context) error { return b.net.close() })
	return plan{
		id: b.id, spec: req.Spec, hostID: first, netns: b.net.path(), cgroup: b.group, mounts: mounts,
		etc: filepath.Join(h.cfg.StateDir, "etc"), init: h.cfg.Init, swap: swapAccounting(), maxFile: maxFiles,
	}, nil
}

// create makes the container and starts its task.
func (h *host) create(ctx context.Context, b *box, p plan) error {
	img, err := h.cl.GetImage(ctx, imageName(p.spec.Image.Digest))
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("%w: image %s has not been imported", sandbox.ErrInvalid, p.spec.Image.Digest)
	}
	if err != nil {
		return err
	}
	runtime := "io.containerd.runc.v2"
	if h.cfg.Shim != "" {
		runtime = h.cfg.Shim
	}
	binary := "runc"
	if p.gvisor() {
		binary = "runsc"
	}
	// The container's record holds its snapshot from here on; the lease holds
	// the snapshot until there is one.
	lctx, release, err := h.cl.WithLease(ctx, leaseOpts(h.labels)...)
	if err != nil {
		return err
	}
	b.cleanup.add("lease", func(ctx context.Context) error { return ignoreNotFound(release(ctx)) })
	maps := idMappings(p.hostID)
	c, err := h.cl.NewContainer(lctx, b.id,
		client.WithSnapshotter(snapshotter), client.WithImageName(img.Name()),
		client.WithNewSnapshot(b.id, img, client.WithUserNSRemapperLabels(maps, maps), snapshots.WithLabels(h.labels)),
		client.WithContainerLabels(h.boxLabels(p.spec)),
		client.WithRuntime(runtime, &apioptions.Options{
			BinaryName: filepath.Join(h.cfg.StateDir, "bin", binary), Root: h.runtimeDir(),
		}),
		client.WithSpec(buildSpec(p)))
	if err != nil {
		return err
	}
	b.cleanup.add("container", func(ctx context.Context) error {
		return ignoreNotFound(c.Delete(ctx, client.WithSnapshotCleanup))
	})
	if b.task, err = c.NewTask(lctx, cio.NullIO); err != nil {
		return err
	}
	b.cleanup.add("task", func(ctx context.Context) error { return deleteTask(ctx, b.task, b.group) })
	wctx, forsake := context.WithCancel(context.WithoutCancel(ctx))
	b.forsake = forsake
	if b.exited, err = b.task.Wait(wctx); err != nil {
		return err
	}
	if err := b.task.Start(lctx); err != nil {
		return err
	}
	return errors.Join(b.io.started(), unstage(filepath.Join(h.boxDir(b.id), "mnt")), release(ctx))
}

func (h *host) boxLabels(s sandbox.Spec) map[string]string {
	l := map[string]string{labelTenant: cut(s.Tenant), labelName: cut(s.Name)}
	for k, v := range h.labels {
		l[k] = v
	}
	return l
}

func leaseOpts(labels map[string]string) []leases.Opt {
	return []leases.Opt{leases.WithRandomID(), leases.WithExpiration(importBound), leases.WithLabels(labels)}
}

func cut(s string) string { return s[:min(len(s), maxLabel)] }

// deleteTask deletes a task, killing it if it still runs. Where the runtime
// cannot, as runsc cannot kill what is just ending, the cgroup can.
func deleteTask(ctx context.Context, task client.Task, group string) error {
	_, err := task.Delete(ctx)
	if !errdefs.IsFailedPrecondition(err) {
		return ignoreNotFound(err)
	}
	exited, err := task.Wait(ctx)
	if err != nil {
		return ignoreNotFound(err)
	}
	if task.Kill(ctx, unix.SIGKILL, client.WithKillAll) != nil {
		if err := signalCgroup(group, unix.SIGKILL); err != nil {
			return err
		}
	}
	select {
	case <-exited:
	case <-ctx.Done():
		return ctx.Err()
	}
	_, err = task.Delete(ctx)
	return ignoreNotFound(err)
}

func ignoreNotFound(err error) error {
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// removeBoxDir removes a box's folder, whatever a start left in it.
func removeBoxDir(dir string) error {
	err := unstage(filepath.Join(dir, "mnt"))
	for _, name := range fifoNames {
		if e := os.Remove(filepath.Join(dir, name)); e != nil && !os.IsNotExist(e) {
			err = errors.Join(err, e)
		}
	}
	if e := os.Remove(dir); e != nil && !os.IsNotExist(e) {
		err = errors.Join(err, e)
	}
	return err
}

func closeFiles(f Files) error {
	var errs []error
	for _, x := range []*os.File{f.Stdin, f.Stdout, f.Stderr, f.TCP4, f.TCP6, f.UDP4, f.UDP6, f.Refused} {
		if x != nil {
			errs = append(errs, x.Close())
		}
	}
	return errors.Join(errs...)
}
