//go:build linux

package container

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	apioptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/typeurl/v2"

	"github.com/sandboxd/sandboxd/sandbox"
)

// leaseBound is when containerd may drop what an import of a dead engine holds, if no Collect comes first.
const leaseBound = time.Hour

// callBound is how long a start's calls to containerd may take together, once
// its own context has ended.
const callBound = time.Minute

// create makes the container and starts its task. Calls to containerd are
// carried through, on a context of their own, and ctx is looked at in between:
// containerd leaves a shim behind when a call is given up at the wrong moment.
// Each undo step is there before what it undoes.
func (h *host) create(ctx context.Context, b *box, p plan) error {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), callBound)
	defer cancel()
	image := p.spec.Image.Digest
	h.use(image)
	l, err := h.lower(ctx, image)
	if err != nil {
		return err
	}
	b.cleanup.add("container", func(ctx context.Context) error { return h.removeContainer(ctx, b.id, b.group) })
	c, err := h.record(call, b.id, l.snapshot, p)
	if err = either(err, ctx.Err()); err != nil {
		return err
	}
	// The container's record holds the layers, if the image did until now. Had
	// it gone before, containerd may be about to remove their folders.
	if _, err := h.image(ctx, image); err != nil {
		h.forgetLayers(image)
		return err
	}
	root, err := mountRootfs(l, p.kit, h.boxDir(b.id))
	if err = errors.Join(err, p.kit.mapped()); err != nil {
		h.forgetLayers(image) // which may have been removed, and brought again
	}
	if err = either(err, ctx.Err()); err != nil {
		return err
	}
	b.task, err = c.NewTask(call, cio.NullIO, client.WithRootFS([]mount.Mount{root}))
	if err = either(err, ctx.Err()); err != nil {
		return err
	}
	return h.run(ctx, call, b)
}

// record makes the container's record. The client's own way of doing it would
// make a lease for it, which nothing needs here and nobody could tell for ours
// when this process is killed meanwhile.
func (h *host) record(ctx context.Context, id, snapshot string, p plan) (client.Container, error) {
	spec, err := typeurl.MarshalAnyToProto(h.spec(p))
	if err != nil {
		return nil, fmt.Errorf("encode spec: %w", err)
	}
	opts, err := typeurl.MarshalAnyToProto(&apioptions.Options{BinaryName: h.entry(p.spec.Isolation), Root: h.runtimeDir()})
	if err != nil {
		return nil, fmt.Errorf("encode options: %w", err)
	}
	if _, err := h.cl.ContainerService().Create(ctx, containers.Container{
		ID: id, Image: imageName(p.spec.Image.Digest), Labels: h.boxLabels(snapshot, p.spec),
		Runtime: containers.RuntimeInfo{Name: h.runtime(), Options: opts}, Spec: spec,
	}); err != nil {
		return nil, err
	}
	return h.cl.LoadContainer(ctx, id)
}

// run starts the task and drops what only the start needed.
func (h *host) run(ctx, call context.Context, b *box) error {
	wait, forsake := context.WithCancel(context.WithoutCancel(ctx))
	b.forsake = forsake
	var err error
	if b.exited, err = b.task.Wait(wait); err != nil {
		return err
	}
	if err := either(h.started(call, b.task), ctx.Err()); err != nil {
		return err
	}
	return errors.Join(b.io.started(), unstage(filepath.Join(h.boxDir(b.id), "mnt")))
}

// started tells containerd that the task runs, which the entry script had the
// runtime begin. One that has ended since has been started, too.
func (h *host) started(ctx context.Context, task client.Task) error {
	err := task.Start(ctx)
	if err == nil {
		return nil
	}
	if s, e := task.Status(ctx); e == nil && s.Status == client.Stopped {
		return nil
	}
	return err
}

// either is the first of two errors that is one.
func either(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// runtime names the shim to containerd.
func (h *host) runtime() string {
	if h.cfg.Shim != "" {
		return h.cfg.Shim
	}
	return "io.containerd.runc.v2"
}

// entry is the script that the shim runs as the tier's runtime.
func (h *host) entry(tier sandbox.Isolation) string {
	name := "runc"
	if tier == sandbox.GVisor {
		name = "runsc"
	}
	return filepath.Join(h.cfg.StateDir, "bin", name)
}

func (h *host) boxLabels(snapshot string, s sandbox.Spec) map[string]string {
	l := map[string]string{labelTenant: cut(s.Tenant), labelName: cut(s.Name), labelSnapshot: snapshot}
	for k, v := range h.labels {
		l[k] = v
	}
	return l
}

func cut(s string) string { return s[:min(len(s), maxLabel)] }

// lease makes a lease and returns a context under it.
func (h *host) lease(ctx context.Context, id string) (context.Context, error) {
	l, err := h.cl.LeasesService().Create(ctx, leases.WithID(id), leases.WithExpiration(leaseBound), leases.WithLabels(h.labels))
	if err != nil {
		return nil, fmt.Errorf("lease: %w", err)
	}
	return leases.WithLease(ctx, l.ID), nil
}

// unlease ends a lease, if it is there.
func (h *host) unlease(ctx context.Context, id string, opts ...leases.DeleteOpt) error {
	return ignoreNotFound(h.cl.LeasesService().Delete(ctx, leases.Lease{ID: id}, opts...))
}
