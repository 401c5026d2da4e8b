//go:build linux

package container

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// removeContainer removes a box's task and container, as far as they are
// there.
func (h *host) removeContainer(ctx context.Context, id, group string) error {
	c, err := h.cl.LoadContainer(ctx, id)
	if err == nil {
		var task client.Task
		if task, err = c.Task(ctx, nil); err == nil {
			err = deleteTask(ctx, task, group)
		}
		if err = ignoreNotFound(err); err == nil {
			err = c.Delete(ctx)
		}
	}
	return ignoreNotFound(err)
}

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

// removeRuntimeState removes what a runtime that was killed while it started
// a box has kept of it; one that ended by itself keeps nothing.
func removeRuntimeState(dir, id string) error {
	left, err := filepath.Glob(filepath.Join(dir, "*"+id+"*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range left {
		errs = append(errs, os.RemoveAll(p))
	}
	return errors.Join(errs...)
}

// removeBoxDir removes a box's folder, whatever a start left in it.
func removeBoxDir(dir string) error {
	err := unstage(filepath.Join(dir, "mnt"))
	for _, name := range fifoNames {
		if e := os.Remove(filepath.Join(dir, name)); e != nil && !os.IsNotExist(e) {
			err = errors.Join(err, e)
		}
	}
	// Nothing was ever mounted in it.
	err = errors.Join(err, os.RemoveAll(filepath.Join(dir, topName)))
	if e := os.Remove(dir); e != nil && !os.IsNotExist(e) {
		err = errors.Join(err, e)
	}
	return err
}
