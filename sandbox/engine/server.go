//go:build linux

package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/container"
)

// Server is the engine's side of the protocol.
type Server struct {
	cfg  Config
	gid  int
	log  *slog.Logger
	lock *os.File

	// ctx ends when Serve shall end.
	ctx    context.Context
	cancel context.CancelFunc

	imports chan struct{} // a place for each running import

	mu       sync.Mutex
	served   bool
	done     chan struct{} // closed when Serve has returned
	accounts map[uint32]*account
	conns    int
	boxes    map[*job]Entry
	idle     *time.Timer
	wg       sync.WaitGroup // connections
}

// account is what one user holds.
type account struct {
	conns, boxes int
	memory       int64 // the sum of the boxes' limits, in bytes
	imports      chan struct{}
}

// NewServer checks the configuration and takes the socket's lock, so that from
// here on no other engine runs at this socket; it fails with ErrRunning where
// one does. Nothing listens before Serve. Close gives the lock back.
func NewServer(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	gid, err := groupID(cfg.Group)
	if err != nil {
		return nil, err
	}
	lock, err := lockSocket(cfg.Socket)
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, gid: gid, log: cfg.Logger, lock: lock,
		imports:  make(chan struct{}, cfg.Quota.Imports),
		done:     make(chan struct{}),
		accounts: map[uint32]*account{},
		boxes:    map[*job]Entry{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// Serve removes what an engine that died left behind (host.Collect), then
// listens and serves until ctx ends, Close is called or the engine has been
// idle for Config.Idle; then it ends every sandbox, waits for all of it and
// closes host. It returns nil after such an end. It can be called once.
func (s *Server) Serve(ctx context.Context, host container.Host) error {
	s.mu.Lock()
	if s.served || s.ctx.Err() != nil {
		s.mu.Unlock()
		return fmt.Errorf("engine: %w", sandbox.ErrClosed)
	}
	s.served = true
	s.mu.Unlock()
	defer close(s.done)
	defer waitClosed(ctx, s.cancel)()

	err := host.Collect(s.ctx) //nolint:contextcheck // it ends with ctx, and with Close
	if err != nil {
		err = fmt.Errorf("engine: removing what an earlier engine left: %w", err)
	} else {
		err = s.accept(host) //nolint:contextcheck // as above; removal is detached
	}
	s.cancel()
	s.wg.Wait()
	// Detached: the context that asked for the end has ended.
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return errors.Join(err, host.Close(end))
}

// accept serves connections until the server's context ends.
func (s *Server) accept(host container.Host) error {
	l, err := listen(s.cfg.Socket, s.gid)
	if err != nil {
		return err
	}
	// The lock is still held, so the path is still this engine's.
	defer func() { _ = os.Remove(s.cfg.Socket) }() //nolint:gosec // the operator named it
	defer func() { _ = l.Close() }()
	defer waitClosed(s.ctx, func() { _ = l.Close() })()

	s.log.Info("engine listening", "socket", s.cfg.Socket, "group", s.cfg.Group)
	s.mu.Lock()
	s.armIdle()
	s.mu.Unlock()
	for {
		c, err := l.AcceptUnix()
		if s.ctx.Err() != nil {
			if err == nil {
				_ = c.Close()
			}
			return nil
		}
		if err != nil {
			s.log.Warn("accepting a connection failed", "error", err)
			// Out of descriptors, most likely: let some end.
			select {
			case <-time.After(50 * time.Millisecond):
			case <-s.ctx.Done():
			}
			continue
		}
		s.admit(c, host)
	}
}

// admit counts a connection against its user and serves it.
func (s *Server) admit(c *net.UnixConn, host container.Host) {
	cred, err := peerCredentials(c)
	if err != nil {
		s.log.Warn("refusing a connection", "error", err)
		_ = c.Close()
		return
	}
	s.mu.Lock()
	a := s.accounts[cred.uid]
	if a == nil {
		a = &account{imports: make(chan struct{}, s.cfg.Quota.UserImports)}
	}
	full := s.conns >= s.cfg.Quota.Connections || a.conns >= s.cfg.Quota.UserConnections
	if !full {
		s.accounts[cred.uid] = a
		s.conns++
		a.conns++
		s.disarmIdle()
	}
	s.mu.Unlock()
	p := newPeer(s, host, c, cred, a)
	if full {
		s.log.Warn("refusing a connection: quota reached", "uid", cred.uid)
		_ = p.conn.send(0, toMessage(fmt.Errorf("%w: too many connections", ErrQuota)))
		p.cancel()
		p.conn.close()
		return
	}
	s.wg.Go(func() {
		p.serve()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.conns--
		if a.conns--; a.conns == 0 {
			delete(s.accounts, cred.uid)
		}
		s.armIdle()
	})
}

// armIdle starts the idle clock if there is nothing left; the caller holds mu.
// A sandbox never outlives its connection, so connections are what counts.
func (s *Server) armIdle() {
	if s.cfg.Idle == 0 || s.conns > 0 || s.ctx.Err() != nil {
		return
	}
	s.disarmIdle()
	s.idle = time.AfterFunc(s.cfg.Idle, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.conns == 0 && s.ctx.Err() == nil {
			s.log.Info("engine idle: ending", "idle", s.cfg.Idle)
			s.cancel()
		}
	})
}

func (s *Server) disarmIdle() {
	if s.idle != nil {
		s.idle.Stop()
		s.idle = nil
	}
}

// Close ends Serve, waits for it until ctx ends, and gives the lock back.
// Idempotent.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.cancel()
	s.disarmIdle()
	served := s.served
	s.mu.Unlock()
	if served {
		select {
		case <-s.done:
		case <-ctx.Done():
			return fmt.Errorf("engine: still ending sandboxes: %w", ctx.Err())
		}
	}
	if err := s.lock.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}
