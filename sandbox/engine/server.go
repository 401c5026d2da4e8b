package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/container"
)

// Config is what a Server needs. Only Tiers has no default.
type Config struct {
	// Socket is the path to listen on; empty means DefaultSocket. Its folder
	// is made where it is missing, and must be this user's alone to write.
	Socket string
	// Group, a name or a number, may connect beside root: the socket is then
	// root:GROUP 0660. Empty means root alone (0600).
	Group string
	// Version is the engine's own, as hello reports it.
	Version string
	// Tiers are those that Serve's Host can start.
	Tiers []sandbox.Isolation
	// Idle ends Serve when no connection and no sandbox has been there for
	// this long; 0 means never.
	Idle time.Duration
	// Quota bounds what callers hold at once.
	Quota Quota
	// Ceiling bounds each sandbox's limits; a zero field sets no bound, except
	// that memory and temporary space are bounded by the host's memory.
	Ceiling sandbox.Limits
	// MaxImageBytes bounds one imported archive; 0 means 8 GiB.
	MaxImageBytes int64
	// Logger receives diagnostics; nil discards them.
	Logger *slog.Logger
}

// Quota bounds what all callers, and each user (peer uid), hold at once. A
// zero field means its default.
type Quota struct {
	Sandboxes, UserSandboxes     int // 512 and 128
	Connections, UserConnections int // 1024 and 256
	// Imports and UserImports run at once (4 and 2); more of them wait.
	Imports, UserImports int
}

// withDefaults checks the configuration and fills in what it leaves out.
func (c Config) withDefaults() (Config, error) {
	if c.Socket == "" {
		c.Socket = DefaultSocket
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if len(c.Tiers) == 0 || len(c.Tiers) > maxTiers || len(c.Version) > maxName || c.Idle < 0 || c.MaxImageBytes < 0 {
		return c, errors.New("engine config: it needs at least one tier, a short version and no negative bound")
	}
	for _, t := range c.Tiers {
		if t.IsWASM() || t.String() == "none" {
			return c, fmt.Errorf("engine config: %s is not a container tier", t)
		}
	}
	c.Tiers = slices.Clone(c.Tiers)
	if c.MaxImageBytes == 0 {
		c.MaxImageBytes = 8 << 30
	}
	q := &c.Quota
	for _, f := range []struct {
		v     *int
		usual int
	}{
		{&q.Sandboxes, 512}, {&q.UserSandboxes, 128}, {&q.Connections, 1024},
		{&q.UserConnections, 256}, {&q.Imports, 4}, {&q.UserImports, 2},
	} {
		if *f.v < 0 {
			return c, errors.New("engine config: a negative quota")
		}
		if *f.v == 0 {
			*f.v = f.usual
		}
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return c, fmt.Errorf("engine config: reading the host's memory: %w", err)
	}
	ram := int64(info.Totalram) * int64(info.Unit) //nolint:gosec // far below 2^63
	for _, v := range []*int64{&c.Ceiling.MemoryBytes, &c.Ceiling.TmpBytes} {
		if *v == 0 || *v > ram {
			*v = ram
		}
	}
	return c, nil
}

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

	err := host.Collect(s.ctx)
	if err != nil {
		err = fmt.Errorf("engine: removing what an earlier engine left: %w", err)
	} else {
		err = s.accept(host)
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
	defer func() { _ = os.Remove(s.cfg.Socket) }()
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
