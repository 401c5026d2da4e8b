//go:build linux

package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// identity names one process beyond its number: numbers are used again, but
// not with the same start time within one boot.
type identity struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // clock ticks since the boot, /proc/PID/stat field 22
	Boot  string `json:"boot"`
}

func identify(pid int) (identity, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return identity{}, err
	}
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return identity{}, err
	}
	// The second field is the program's name, which may hold anything.
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 {
		return identity{}, fmt.Errorf("unexpected form of /proc/%d/stat", pid)
	}
	fields := strings.Fields(string(stat[i+1:]))
	if len(fields) < 20 {
		return identity{}, fmt.Errorf("unexpected form of /proc/%d/stat", pid)
	}
	return identity{PID: pid, Start: fields[19], Boot: strings.TrimSpace(string(boot))}, nil
}

// record leaves the identity where the next start finds it.
func (c *Config) record(pid int) error {
	id, err := identify(pid)
	if err != nil {
		return err
	}
	data, err := json.Marshal(id)
	if err != nil {
		return err
	}
	tmp := c.pidFile() + ".new"
	if err := os.WriteFile(tmp, append(data, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, c.pidFile())
}

// endStale ends the containerd that a former owner left running with this
// state: by its recorded identity, through a descriptor that cannot come to
// mean another process. It waits until the process is gone.
func (c *Config) endStale(ctx context.Context) error {
	data, err := os.ReadFile(c.pidFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var want identity
	// A file cut short by a crash names nobody. Its process, if there ever was
	// one, had us as the parent whose death ends it.
	if json.Unmarshal(data, &want) != nil || want.PID <= 1 {
		return os.Remove(c.pidFile())
	}
	fd, err := unix.PidfdOpen(want.PID, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return os.Remove(c.pidFile())
	}
	if err != nil {
		return fmt.Errorf("pidfd_open of the former containerd: %w", err)
	}
	defer unix.Close(fd) //nolint:errcheck // a pidfd has nothing to lose
	// Asked after the descriptor was opened: what it says holds for it.
	if got, err := identify(want.PID); err != nil || got != want {
		return os.Remove(c.pidFile())
	}
	for _, step := range []struct {
		signal syscall.Signal
		wait   time.Duration
	}{{unix.SIGTERM, stopGrace}, {unix.SIGKILL, 10 * time.Second}} {
		err := unix.PidfdSendSignal(fd, step.signal, nil, 0)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("ending the former containerd: %w", err)
		}
		if gone, err := exited(ctx, fd, step.wait); gone || err != nil {
			if gone {
				err = os.Remove(c.pidFile())
			}
			return err
		}
	}
	return fmt.Errorf("the former containerd (pid %d) does not end, even by KILL", want.PID)
}

// exited waits for the process of a pidfd for at most d.
func exited(ctx context.Context, fd int, d time.Duration) (bool, error) {
	for end := time.Now().Add(d); ; {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 50)
		switch {
		case n > 0:
			return true, nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return false, err
		case ctx.Err() != nil:
			return false, ctx.Err()
		case time.Now().After(end):
			return false, nil
		}
	}
}

// lockWait is how long a lock may take: an owner that was killed lets it go
// only when its last thread has ended.
const lockWait = 2 * time.Second

// lockFolder makes a folder and takes it for this process. The lock goes with
// the descriptor, however the process ends.
func lockFolder(ctx context.Context, dir string) (*os.File, error) {
	// Traversable, since a container's root maps to another user that reaches
	// its own folder below; what lies in it has modes of its own.
	if err := os.MkdirAll(dir, 0o711); err != nil { //nolint:gosec // see above
		return nil, fmt.Errorf("containerd's folder: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return nil, err
	}
	if owner, ok := ownerOf(info); !info.IsDir() || !ok || owner != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return nil, fmt.Errorf("%s is not a folder that this user alone may write: remove it or choose another", dir)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(ctx, f); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s is in use by another engine: stop it, or give this one folders of its own: %w", dir, err)
	}
	return f, nil
}

func flock(ctx context.Context, f *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	retry := time.NewTicker(20 * time.Millisecond)
	defer retry.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-retry.C:
		}
	}
}

func ownerOf(info fs.FileInfo) (int, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}
