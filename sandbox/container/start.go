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

	"github.com/containerd/errdefs"

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
		h.kits.refill(req.Gateway)
	}()
	p, err := h.prepare(b, req, &files)
	if err != nil {
		return nil, Files{}, err
	}
	if err := h.create(ctx, b, p); err != nil {
		return nil, Files{}, h.translate(req.Spec.Isolation, fmt.Errorf("container: start: %w", err))
	}
	b.cleanup.add("entry", func(context.Context) error { h.forget(b.id); return nil })
	if !b.gvisor { // whose tmpfs is its kernel's own
		b.tmp = newTmpUse(b.task.Pid(), b.limits.TmpBytes)
	}
	b.watch(context.WithoutCancel(ctx))
	h.use(req.Spec.Image.Digest)
	h.end(b.id, b)
	return b, files, nil
}

// translate turns containerd's being away into this module's own error.
func (h *host) translate(tier sandbox.Isolation, err error) error {
	if !errdefs.IsUnavailable(err) {
		return err
	}
	h.cfg.Logger.Warn("containerd is unavailable", "error", err)
	return &sandbox.UnavailableError{Tier: tier, What: "containerd does not answer", Next: "see the engine's log, or try again"}
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
	id, err := newID("sb-" + h.cfg.Instance)
	if err != nil {
		return nil, fmt.Errorf("container: start: %w", err)
	}
	b := &box{
		id: id, log: h.cfg.Logger,
		limits: req.Spec.Limits, gvisor: req.Spec.Isolation == sandbox.GVisor, ctx: h.ctx, returns: h.returns, done: make(chan struct{}),
	}
	b.group = cgroupPath(h.cfg.Instance, b.id)
	if err := h.begin(b.id); err != nil {
		return nil, err
	}
	h.keeper.begin(b.id)
	b.cleanup.release("keeper's entry", func(context.Context) error { h.keeper.end(b.id); return nil })
	return b, nil
}

// newID is a name that nothing had before.
func newID(prefix string) (string, error) {
	raw := make([]byte, 8)
	if _, err := rand.Read(raw); err != nil {
		return "", err
	}
	return prefix + "-" + hex.EncodeToString(raw), nil
}

// prepare makes all that the container is put together from.
func (h *host) prepare(b *box, req Request, files *Files) (plan, error) {
	maxFiles, err := hardFiles()
	if err != nil {
		return plan{}, err
	}
	k, err := h.kits.take(req.Gateway)
	if err != nil {
		return plan{}, err
	}
	b.net = k.net
	b.cleanup.release("ids", func(context.Context) error { h.kits.ids.give(k.ids); return nil })
	b.cleanup.add("network", func(context.Context) error { return errors.Join(k.mapped(), k.net.close()) })
	dir := h.boxDir(b.id)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return plan{}, fmt.Errorf("container: start: %w", err)
	}
	b.cleanup.add("folder", func(context.Context) error { return removeBoxDir(dir) })
	b.cleanup.add("runtime state", func(context.Context) error { return removeRuntimeState(h.runtimeState(), b.id) })
	b.cleanup.add("cgroup", func(ctx context.Context) error { return killCgroup(ctx, b.group) })
	if b.io, err = newStdio(dir, int(k.ids)+guestUID); err != nil {
		return plan{}, fmt.Errorf("container: start: %w", err)
	}
	files.Stdin, files.Stdout, files.Stderr = b.io.stdin, b.io.stdout, b.io.stderr
	b.cleanup.add("fifos", func(context.Context) error { return b.io.started() })
	if h.cfg.Init != "" {
		if err := b.io.environment(guestEnv(req.Spec.Env)); err != nil {
			return plan{}, fmt.Errorf("container: start: %w", err)
		}
	}
	mounts, err := stageAll(req, filepath.Join(dir, "mnt"), k.ids)
	if err != nil {
		return plan{}, fmt.Errorf("container: start: %w", err)
	}
	if err := b.net.serve(req.Open, files); err != nil {
		return plan{}, fmt.Errorf("container: start: network: %w", err)
	}
	return plan{
		id: b.id, spec: req.Spec, kit: k, hostID: k.ids, netns: b.net.path(), cgroup: b.group, mounts: mounts,
		etc: filepath.Join(h.cfg.StateDir, "etc"), init: h.cfg.Init, swap: swapAccounting(), maxFile: maxFiles,
	}, nil
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
