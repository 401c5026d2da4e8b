//go:build linux

package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

// Daemon is a containerd to work with. It is safe for concurrent use.
type Daemon struct {
	address    string
	version    string
	supervised *supervisor // nil where somebody else's is used
}

// Start returns a containerd that answers, or an error that says what to do.
// Only a supervised one is started, and only a supervised one is ended by
// Close. ctx bounds the start, not the daemon's life. A containerd of too old
// a version is refused; the system's is then passed over with a warning.
func Start(ctx context.Context, cfg Config) (*Daemon, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Address != "" {
		v, err := usable(ctx, cfg.Address)
		if err != nil {
			return nil, &sandbox.UnavailableError{
				Tier: sandbox.Container, What: err.Error(),
				Next: "start it, correct the address, or leave the address out",
			}
		}
		return &Daemon{address: strings.TrimPrefix(cfg.Address, "unix://"), version: v}, nil
	}
	d, why := system(ctx, cfg)
	if d != nil {
		return d, nil
	}
	if cfg.BinDir == "" {
		return nil, missing(why)
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if err := cfg.trusted(); err != nil {
		return nil, err
	}
	s, version, err := supervise(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &Daemon{address: cfg.socket(), version: version, supervised: s}, nil
}

// system tries the system's containerd; where that cannot be used it says why.
func system(ctx context.Context, cfg Config) (*Daemon, string) {
	address := cfg.System
	switch address {
	case "":
		address = SystemAddress
	case "none":
		return nil, "the system's containerd is passed over and there is no other"
	}
	if _, err := os.Stat(address); errors.Is(err, fs.ErrNotExist) {
		return nil, "there is no containerd at " + address
	}
	v, err := usable(ctx, address)
	if err != nil {
		cfg.Logger.Warn("the system's containerd is passed over", slog.Any("reason", err))
		return nil, err.Error()
	}
	return &Daemon{address: address, version: v}, ""
}

// Address is the path of the socket, stable across restarts.
func (d *Daemon) Address() string { return d.address }

// Version is the version that answered at the start, without a leading v.
func (d *Daemon) Version() string { return d.version }

// Supervised reports whether this process started it and Close ends it.
func (d *Daemon) Supervised() bool { return d.supervised != nil }

// Close ends a supervised containerd with TERM, then its whole process group
// with KILL after some seconds or when ctx ends, and waits until it is gone.
// Shims and containers outlive a containerd: end them first. It is
// idempotent, and does nothing to a containerd that is not ours.
func (d *Daemon) Close(ctx context.Context) error {
	if d.supervised == nil {
		return nil
	}
	return d.supervised.close(ctx)
}

// Time bounds of a supervised containerd's life.
const (
	startTimeout = 30 * time.Second
	stopGrace    = 5 * time.Second
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 10 * time.Second
	// healthy is how long one must have run for the backoff to start anew.
	healthy = time.Minute
)

// Phases of a supervisor. Only from starting can it go on to another one, so
// that a crash is either the start's failure or a reason to start again.
const (
	starting int32 = iota
	ready
	failed
)

// supervisor owns one containerd, restarted as needed.
type supervisor struct {
	cfg   Config
	locks []*os.File

	phase    atomic.Int32
	early    error         // why it ended while it was starting; read after done
	stop     chan struct{} // closed: end it politely
	kill     chan struct{} // closed: end it at once
	done     chan struct{} // closed: it is gone and nothing restarts it
	stopOnce sync.Once
	killOnce sync.Once
	err      error // what was left; read after done
}

func (s *supervisor) close(ctx context.Context) error {
	s.stopOnce.Do(func() { close(s.stop) })
	select {
	case <-s.done:
	case <-ctx.Done():
		s.killOnce.Do(func() { close(s.kill) })
		<-s.done // KILL is certain, so this is short
	}
	return s.err
}

// supervise starts containerd and waits until it answers.
func supervise(ctx context.Context, cfg Config) (*supervisor, string, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s := &supervisor{cfg: cfg, stop: make(chan struct{}), kill: make(chan struct{}), done: make(chan struct{})}
	for _, dir := range []string{cfg.Root, cfg.State} {
		lock, err := lockFolder(ctx, dir)
		if err != nil {
			s.unlock()
			return nil, "", err
		}
		s.locks = append(s.locks, lock)
	}
	if err := s.prepare(ctx); err != nil {
		s.unlock()
		return nil, "", err
	}
	started := make(chan error, 1)
	go s.run(started)
	if err := <-started; err != nil {
		<-s.done
		return nil, "", err
	}
	version, err := s.await(ctx)
	if err == nil && !s.phase.CompareAndSwap(starting, ready) {
		<-s.done
		err = s.early
	}
	if err != nil {
		gone, end := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
		defer end()
		return nil, "", errors.Join(err, s.close(gone))
	}
	return s, version, nil
}

// prepare ends what a former owner left and writes the configuration.
func (s *supervisor) prepare(ctx context.Context) error {
	if err := s.cfg.endStale(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(s.cfg.Root+"/tmp", 0o700); err != nil {
		return fmt.Errorf("containerd's folder: %w", err)
	}
	// A socket without a listener makes clients wait for nothing.
	for _, path := range []string{s.cfg.socket(), s.cfg.socket() + ".ttrpc"} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.WriteFile(s.cfg.file(), []byte(s.cfg.render()), 0o600)
}

func (s *supervisor) unlock() {
	for _, f := range s.locks {
		_ = f.Close() // gives the lock back; nothing was written
	}
}
