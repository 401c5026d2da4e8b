//go:build linux

package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// run starts containerd, reports the first start, and starts it again after
// each crash until it is told to stop.
func (s *supervisor) run(started chan<- error) {
	// The kernel sends the parent-death signal when the thread that forked
	// ends, not the process, so that thread must be ours for as long.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(s.done)
	defer s.clean()

	backoff := firstBackoff
	for first := true; ; first = false {
		p, err := s.spawn()
		if first {
			started <- err
			if err != nil {
				return
			}
		}
		began := time.Now()
		if err == nil {
			err = s.watch(p)
			if err == nil {
				return
			}
			if s.phase.CompareAndSwap(starting, failed) {
				s.early = err
				return
			}
		}
		if time.Since(began) > healthy {
			backoff = firstBackoff
		}
		s.cfg.Logger.Error("containerd ended by itself and is started again",
			slog.Any("error", err), slog.Duration("after", backoff))
		wait := time.NewTimer(backoff)
		select {
		case <-s.stop:
			wait.Stop()
			return
		case <-wait.C:
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// process is one run of containerd.
type process struct {
	cmd  *exec.Cmd
	out  *logs
	gone chan struct{} // closed when it and its group have ended
	err  error         // how it ended; read after gone
}

// spawn starts containerd in a process group of its own, which dies with us.
func (s *supervisor) spawn() (*process, error) {
	out := &logs{log: s.cfg.Logger}
	cmd := exec.Command(filepath.Join(s.cfg.BinDir, "containerd"), "--config", s.cfg.file()) //nolint:noctx // it lives until watch ends it, in steps
	cmd.Dir = "/"
	// Nothing of ours is inherited: the environment can hold secrets, and
	// shims keep what containerd had.
	cmd.Env = []string{"PATH=" + s.cfg.BinDir + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = time.Second // a grandchild may hold the pipe
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("containerd does not start: %w", err)
	}
	p := &process{cmd: cmd, out: out, gone: make(chan struct{})}
	if err := s.cfg.record(cmd.Process.Pid); err != nil {
		// Without the record a later start could not end a survivor.
		s.cfg.Logger.Warn("containerd's identity is not recorded", slog.Any("error", err))
	}
	go p.reap()
	return p, nil
}

// reap waits for the leader's end, ends the rest of its group while the
// leader's number is still taken, and only then lets that number go.
func (p *process) reap() {
	defer close(p.gone)
	pid := p.cmd.Process.Pid
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	_ = unix.Kill(-pid, unix.SIGKILL) // a group without members is no fault
	p.err = p.cmd.Wait()
}

// watch returns nil once the process was ended by order, or says how it ended
// by itself.
func (s *supervisor) watch(p *process) error {
	select {
	case <-p.gone:
		select {
		case <-s.stop:
			return nil
		default:
		}
		return fmt.Errorf("containerd ended (%w); %s", orExited(p.err), p.out.tail())
	case <-s.stop:
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended just now
	grace := time.NewTimer(stopGrace)
	defer grace.Stop()
	select {
	case <-p.gone:
		return nil
	case <-grace.C:
	case <-s.kill:
	}
	_ = p.cmd.Process.Kill()
	<-p.gone
	return nil
}

func orExited(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// await returns containerd's version as soon as it answers.
func (s *supervisor) await(ctx context.Context) (string, error) {
	retry := time.NewTicker(10 * time.Millisecond)
	defer retry.Stop()
	for {
		v, err := usable(ctx, s.cfg.socket())
		if err == nil || errors.Is(err, errTooOld) {
			return v, err
		}
		select {
		case <-s.done:
			return "", s.early
		case <-ctx.Done():
			return "", fmt.Errorf("containerd does not answer: %w", context.Cause(ctx))
		case <-retry.C:
		}
	}
}

// clean removes what only a running containerd needs. State itself stays:
// shims that outlive it are found there again.
func (s *supervisor) clean() {
	for _, path := range []string{s.cfg.socket(), s.cfg.socket() + ".ttrpc", s.cfg.file(), s.cfg.pidFile()} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.err = errors.Join(s.err, err)
		}
	}
	s.unlock()
}
