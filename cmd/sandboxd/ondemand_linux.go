package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/engine"
)

const (
	// onDemandIdle is how long an engine that was started on demand outlives
	// its last sandbox.
	onDemandIdle = 2 * time.Minute
	// raceBound is how long another caller's engine, which won the race for
	// the socket, may take to listen.
	raceBound = 30 * time.Second
	// maxEngineLog is the size in bytes at which the log of engines that were
	// started on demand begins anew; maxEngineSaid is how much of it an error
	// repeats.
	maxEngineLog, maxEngineSaid = 1 << 20, 2 << 10
)

// dialEngine connects to the engine. Root starts one where none runs; anybody
// else is told how.
func (r *runtimes) dialEngine(ctx context.Context) (engineClient, error) {
	cfg := engine.ClientConfig{Socket: r.socket, Progress: r.onTransfer, Logger: r.log}
	c, err := engine.Dial(ctx, cfg)
	if err == nil {
		return c, nil
	}
	if os.Geteuid() != 0 || !errors.Is(err, sandbox.ErrUnavailable) {
		return nil, err
	}
	self, startErr := os.Executable()
	if startErr == nil {
		c, startErr = startEngine(ctx, cfg, self, "engine", "--socket", r.socket, "--idle", onDemandIdle.String())
	}
	if startErr != nil {
		return nil, errors.Join(err, startErr)
	}
	return c, nil
}

// startEngine starts an engine by the given command, in a session of its own
// and with nothing of its first caller's, so that it survives it, and connects
// to it as soon as it answers.
func startEngine(ctx context.Context, cfg engine.ClientConfig, program string, args ...string) (*engine.Client, error) {
	said, err := openEngineLog(cfg.Socket + ".log")
	if err != nil {
		return nil, err
	}
	defer said.Close() //nolint:errcheck // the engine has its own
	begin, err := said.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	cfg.Logger.Info("starting an engine", slog.String("socket", cfg.Socket), slog.String("log", said.Name()))
	cmd := exec.Command(program, args...) //nolint:noctx // it outlives this context by design
	cmd.Dir, cmd.Env = "/", engineEnv(os.Environ())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// A file, never the caller's stderr: who waits for that to end would wait
	// for the engine, and a write to it after the caller's end would kill it.
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{}, 1)
	go func() { _ = cmd.Wait(); ended <- struct{}{} }() // ends with the engine, or with this program
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var late <-chan time.Time
	for {
		c, err := engine.Dial(ctx, cfg)
		if err == nil || !errors.Is(err, sandbox.ErrUnavailable) {
			return c, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-ended:
			text := tail(said, begin)
			if !strings.Contains(text, engine.ErrRunning.Error()) {
				return nil, fmt.Errorf("the engine ended at its start (%s); it said: %s", cmd.ProcessState, text)
			}
			late = time.After(raceBound) // another caller's will answer
		case <-late:
			return nil, errors.New("another engine holds the socket and does not answer: see " + said.Name())
		case <-tick.C:
		}
	}
}

// openEngineLog opens the log beside the socket, for this user alone.
func openEngineLog(path string) (*os.File, error) {
	dir := filepath.Dir(path)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		// As the engine would make it, however strict this user's mask is.
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o755)); err != nil { //nolint:gosec // callers reach the socket in it
			return nil, err
		}
	}
	flags := os.O_RDWR | os.O_CREATE | os.O_APPEND | syscall.O_NOFOLLOW
	if fi, err := os.Lstat(path); err == nil && fi.Size() > maxEngineLog {
		flags |= os.O_TRUNC
	}
	return os.OpenFile(path, flags, 0o600)
}

// tail is what has been written to a log from a place on, in one line.
func tail(f *os.File, from int64) string {
	b, err := io.ReadAll(io.NewSectionReader(f, from, maxEngineLog))
	if err != nil || len(b) == 0 {
		return "nothing"
	}
	return strings.Join(strings.Fields(string(b[max(0, len(b)-maxEngineSaid):])), " ")
}

// engineEnv keeps what an engine needs of its caller's environment, and leaves
// out the secrets that may be meant for a server.
func engineEnv(all []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(kv string) bool {
		k, _, _ := strings.Cut(kv, "=")
		return !slices.Contains([]string{"PATH", "HOME", "XDG_CACHE_HOME", "TMPDIR", "SANDBOXD_PARTS", "SANDBOXD_ENGINE_CACHE"}, k)
	})
}
