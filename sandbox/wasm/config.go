package wasm

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"
)

// Config configures a Runtime. The zero value is usable for
// sandbox.WASMInProcess: it compiles without a cache on disk.
type Config struct {
	// CacheDir holds compiled code, which is executed as it is: only this
	// user may be able to write to it. It is created with mode 0700; one that
	// belongs to somebody else, or that others can write to, is refused. Empty
	// compiles anew in each process, and leaves tier wasm unavailable.
	CacheDir string
	// WorkerCommand starts a worker: a program that calls WorkerMain, with its
	// arguments. Empty leaves tier wasm unavailable. The usual value is
	// []string{"/proc/self/exe"}.
	WorkerCommand []string
	// WorkerIdle is how long a worker stays after its last sandbox has ended;
	// 0 means a minute, negative means not at all.
	WorkerIdle time.Duration
	// MaxModuleBytes bounds a module's file; 0 means 256 MiB.
	MaxModuleBytes int64
	// KeepModules is how many compiled modules stay in memory without a
	// running sandbox, in process; 0 means 4.
	KeepModules int
	// Bare gives guests what their Spec says and no more: neither the private
	// folders HOME and /tmp nor the variable HOME.
	Bare bool
	// Logger takes starts, ends and their causes; nil logs nothing.
	Logger *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	if c.MaxModuleBytes < 0 || c.KeepModules < 0 {
		return c, errors.New("wasm: a negative limit")
	}
	if c.MaxModuleBytes == 0 {
		c.MaxModuleBytes = 256 << 20
	}
	if c.KeepModules == 0 {
		c.KeepModules = 4
	}
	if c.WorkerIdle == 0 {
		c.WorkerIdle = time.Minute
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.CacheDir == "" {
		return c, nil
	}
	dir, err := filepath.Abs(c.CacheDir)
	if err != nil {
		return c, fmt.Errorf("wasm: cache folder: %w", err)
	}
	c.CacheDir = dir
	return c, privateDir(dir)
}

// privateDir makes a folder that only this user can write to, or says why an
// existing one is not.
func privateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("wasm: cache folder: %w", err)
	}
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return fmt.Errorf("wasm: cache folder: %w", err)
	case !info.IsDir():
		return fmt.Errorf("wasm: cache folder %q is a link or a file: %w", dir, fs.ErrInvalid)
	case !ownedByUs(info):
		return fmt.Errorf("wasm: cache folder %q belongs to another user: %w", dir, fs.ErrPermission)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("wasm: cache folder %q can be written by others (chmod 700 it): %w", dir, fs.ErrPermission)
	}
	return nil
}
