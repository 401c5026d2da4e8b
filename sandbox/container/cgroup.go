//go:build linux

package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/cgroups/v3"
	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// cgroupPath is the path of a box's cgroup in each hierarchy, or of all of an
// engine's where id is empty.
func cgroupPath(instance, id string) string {
	return filepath.Join("/sandboxd-"+instance, id)
}

func unified() bool { return cgroups.Mode() == cgroups.Unified }

// swapAccounting reports whether this kernel can bound swap.
func swapAccounting() bool {
	if unified() {
		return true // memory.swap.max is absent only where swap cannot be used
	}
	_, err := os.Stat(filepath.Join(cgroupRoot, "memory/memory.memsw.limit_in_bytes"))
	return err == nil
}

// usage is what a cgroup says when its container has ended.
type usage struct {
	peakMemory, peakPIDs int64
	oomKills             int64
}

// readUsage reads what it can: files that this kernel lacks count as 0.
func readUsage(group string) usage {
	if unified() {
		dir := filepath.Join(cgroupRoot, group)
		return usage{
			peakMemory: readInt(filepath.Join(dir, "memory.peak")),
			peakPIDs:   readInt(filepath.Join(dir, "pids.peak")),
			oomKills:   readField(filepath.Join(dir, "memory.events"), "oom_kill"),
		}
	}
	return usage{
		peakMemory: readInt(filepath.Join(cgroupRoot, "memory", group, "memory.max_usage_in_bytes")),
		peakPIDs:   readInt(filepath.Join(cgroupRoot, "pids", group, "pids.peak")),
		oomKills:   readField(filepath.Join(cgroupRoot, "memory", group, "memory.oom_control"), "oom_kill"),
	}
}

func readInt(file string) int64 {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func readField(file, key string) int64 {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) == 2 && f[0] == key {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				return 0
			}
			return n
		}
	}
	return 0
}

// hierarchies are the folders in which a cgroup of the given path may exist.
func hierarchies(group string) []string {
	if unified() {
		return []string{filepath.Join(cgroupRoot, group)}
	}
	dirs, err := filepath.Glob(filepath.Join(cgroupRoot, "*"))
	if err != nil {
		return nil // only a malformed pattern fails
	}
	var out []string
	for _, d := range dirs {
		g := filepath.Join(d, group)
		if fi, err := os.Lstat(g); err == nil && fi.IsDir() {
			out = append(out, g)
		}
	}
	return out
}

// killCgroup kills every process of the group, in every hierarchy, until none
// is left, and removes the group. It is the last resort, beneath the runtime.
func killCgroup(ctx context.Context, group string) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		var errs []error
		for _, dir := range hierarchies(group) {
			errs = append(errs, signalIn(dir, unix.SIGKILL), removeTree(dir))
		}
		err := errors.Join(errs...)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cgroup %s: %w", group, err)
		case <-tick.C:
		}
	}
}

// signalCgroup sends a signal to every process of the group.
func signalCgroup(group string, sig unix.Signal) error { return signalIn(procsDir(group), sig) }

// procsDir is the folder of a group that lists its processes.
func procsDir(group string) string {
	if unified() {
		return filepath.Join(cgroupRoot, group)
	}
	return filepath.Join(cgroupRoot, "pids", group)
}

// alone reports whether a group has fewer than two processes.
func alone(group string) bool {
	b, err := os.ReadFile(filepath.Join(procsDir(group), "cgroup.procs"))
	return err == nil && len(strings.Fields(string(b))) < 2
}

// signalIn signals every process in the group and in those below it. A group
// that vanishes meanwhile has none.
func signalIn(dir string, sig unix.Signal) error {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return nil
	}
	for _, f := range strings.Fields(string(b)) {
		pid, err := strconv.Atoi(f)
		if err != nil || pid <= 1 {
			continue
		}
		if err := unix.Kill(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("signal %d: %w", pid, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := signalIn(filepath.Join(dir, e.Name()), sig); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeTree removes a cgroup and those below it, deepest first.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}
