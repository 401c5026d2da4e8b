//go:build linux

package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Collect implements Host. What is ours is told by the instance's label on
// containerd's objects, by its name in the cgroup's path, and by being in the
// state folder, which this process holds the lock of. A box of this process
// is never touched.
//
// containerd may still be busy with what the dead engine asked for last, so
// that a look that found something is followed by another, until one finds
// nothing.
func (h *host) Collect(ctx context.Context) error {
	ctx = h.ctx(ctx)
	const looks, pause = 20, 250 * time.Millisecond
	var err error
	for range looks {
		left, lerr := h.leftovers(ctx)
		err = errors.Join(lerr, h.collect(ctx))
		if lerr == nil && !left {
			break
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(pause):
		}
	}
	if !h.busy() {
		err = errors.Join(err, h.removeShared())
	}
	return err
}

func (h *host) collect(ctx context.Context) error {
	return errors.Join(h.collectContainers(ctx), h.collectShims(), h.collectCgroups(ctx),
		h.collectFolders(), h.collectSnapshots(ctx), h.collectLeases(ctx))
}

// leftovers reports whether there is a box, or a part of one, that is not of
// this process. Each has a folder before it has anything else.
func (h *host) leftovers(ctx context.Context) (bool, error) {
	entries, err := os.ReadDir(h.boxesDir())
	if err != nil {
		return false, fmt.Errorf("container: collect: %w", err)
	}
	for _, e := range entries {
		if !h.live(e.Name()) {
			return true, nil
		}
	}
	cs, err := h.cl.Containers(ctx, h.filter())
	if err != nil {
		return false, fmt.Errorf("container: collect: %w", err)
	}
	for _, c := range cs {
		if !h.live(c.ID()) {
			return true, nil
		}
	}
	return false, nil
}

func (h *host) filter() string { return fmt.Sprintf("labels.%q==%s", labelInstance, h.cfg.Instance) }

func (h *host) collectContainers(ctx context.Context) error {
	cs, err := h.cl.Containers(ctx, h.filter())
	if err != nil {
		return fmt.Errorf("container: collect: %w", err)
	}
	var errs []error
	for _, c := range cs {
		if h.live(c.ID()) {
			continue
		}
		if err := h.removeContainer(ctx, c.ID(), cgroupPath(h.cfg.Instance, c.ID())); err != nil {
			errs = append(errs, fmt.Errorf("container: collect %s: %w", c.ID(), err))
			continue
		}
		h.cfg.Logger.Info("removed a sandbox of an engine that died", "sandbox", c.ID())
	}
	return errors.Join(errs...)
}

// collectShims kills shims of boxes that are gone, which containerd loses
// sight of when it dies at the wrong moment.
func (h *host) collectShims() error {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return fmt.Errorf("container: collect: %w", err)
	}
	var errs []error
	for _, p := range lines {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(p)))
		if err != nil {
			continue
		}
		// Held before it is looked at, so that the number cannot pass to another.
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // gone already
		}
		if id := h.shimOf(p); id != "" && !h.live(id) {
			if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, fmt.Errorf("container: collect the shim of %s: %w", id, err))
			}
		}
		errs = append(errs, unix.Close(fd))
	}
	return errors.Join(errs...)
}

// shimOf returns the id of the box of this instance whose shim has the command
// line in the file, or nothing.
func (h *host) shimOf(file string) string {
	raw, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	args := strings.Split(string(raw), "\x00")
	if !strings.HasPrefix(filepath.Base(args[0]), "containerd-shim-runc") {
		return ""
	}
	id := ""
	ours := map[string]bool{}
	for i, a := range args[:len(args)-1] {
		switch a {
		case "-id":
			// All of it: another instance's name may begin, or end, as this one's
			// boxes do.
			if h.idRE.FindString(args[i+1]) == args[i+1] {
				id = args[i+1]
			}
		case "-namespace":
			ours[a] = args[i+1] == h.cfg.Namespace
		case "-address":
			ours[a] = args[i+1] == h.cfg.Address
		}
	}
	if !ours["-namespace"] || !ours["-address"] {
		return ""
	}
	return id
}

// collectCgroups kills what is left in the cgroups of boxes that are gone.
func (h *host) collectCgroups(ctx context.Context) error {
	var errs []error
	seen := map[string]bool{}
	for _, dir := range hierarchies(cgroupPath(h.cfg.Instance, "")) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			errs = append(errs, fmt.Errorf("container: collect: %w", err))
			continue
		}
		for _, e := range entries {
			if e.IsDir() && !h.live(e.Name()) && !seen[e.Name()] {
				seen[e.Name()] = true
				errs = append(errs, killCgroup(ctx, cgroupPath(h.cfg.Instance, e.Name())))
			}
		}
	}
	return errors.Join(errs...)
}

func (h *host) collectFolders() error {
	entries, err := os.ReadDir(h.boxesDir())
	if err != nil {
		return fmt.Errorf("container: collect: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if !h.live(e.Name()) {
			errs = append(errs, removeBoxDir(filepath.Join(h.boxesDir(), e.Name())))
		}
	}
	states, err := os.ReadDir(h.runtimeState())
	if err != nil && !os.IsNotExist(err) {
		errs = append(errs, fmt.Errorf("container: collect: %w", err))
	}
	for _, e := range states {
		// The names hold a box's id, with more around it under runsc.
		if id := h.idRE.FindString(e.Name()); id != "" && !h.live(id) {
			errs = append(errs, removeRuntimeState(h.runtimeState(), id))
		}
	}
	return errors.Join(errs...)
}

// collectSnapshots removes the views of layers that were being found.
func (h *host) collectSnapshots(ctx context.Context) error {
	sn := h.cl.SnapshotService(snapshotter)
	var keys []string
	err := sn.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if strings.HasPrefix(info.Name, "sb-"+h.cfg.Instance+"-") && !h.live(info.Name) {
			keys = append(keys, info.Name)
		}
		return nil
	}, h.filter())
	if err != nil {
		return fmt.Errorf("container: collect: %w", err)
	}
	var errs []error
	for _, k := range keys {
		if err := sn.Remove(ctx, k); err != nil && !errdefs.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("container: collect snapshot %s: %w", k, err))
		}
	}
	return errors.Join(errs...)
}

// collectLeases lets containerd's own collector take what imports of a dead
// engine held.
func (h *host) collectLeases(ctx context.Context) error {
	all, err := h.cl.LeasesService().List(ctx, h.filter())
	if err != nil {
		return fmt.Errorf("container: collect: %w", err)
	}
	var old []string
	for _, l := range all {
		if !h.live(l.ID) {
			old = append(old, l.ID)
		}
	}
	var errs []error
	for i, id := range old {
		var opts []leases.DeleteOpt
		if i == len(old)-1 {
			opts = append(opts, leases.SynchronousDelete)
		}
		errs = append(errs, h.unlease(ctx, id, opts...))
	}
	return errors.Join(errs...)
}
