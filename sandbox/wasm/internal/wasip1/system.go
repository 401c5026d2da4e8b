package wasip1

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tetratelabs/wazero/sys"
)

// Bounds of what one guest can make the host hold.
const (
	maxArgBytes    = 1 << 20 // arguments and environment, each
	maxFilesLimit  = 1 << 16
	stdioBytes     = 1 << 16 // queued in each direction
	maxPollSubs    = 1 << 16
	stoppedExit    = 137 // what a guest that the host stopped exits with
	dirEntriesMost = 1 << 20
)

// Config is all that a guest gets. The zero value gives it nothing.
type Config struct {
	// Args is the argument vector, the program first; Env is KEY=VALUE.
	Args, Env []string
	// Mounts serves the preopened folders; nil means none.
	Mounts Mounts
	// Private are folders of the guest's own.
	Private []PrivateSpec
	// Dial opens a connection; nil means no network. network is "tcp" and
	// address is host:port, where host is a name that was looked up before, or
	// a literal. It must watch ctx.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// CheckName says at look-up whether policy refuses the name, without
	// sending anything; nil leaves the answer to Dial.
	CheckName func(host string) error
	// MaxFiles bounds open descriptors, connections that are still closing
	// included; 0 means 1024.
	MaxFiles int
	// Stdin, Stdout and Stderr are the guest's streams; New makes the ones
	// that are nil.
	Stdin, Stdout, Stderr *Pipe
}

// System is what one guest instance sees of the host. Its host functions run
// on the guest's goroutine alone; Stop and the pipes are for everyone.
type System struct {
	cfg  Config
	done <-chan struct{}
	ctx  context.Context //nolint:containedctx // the instance's life, for dials that outlive the call that began them
	stop context.CancelFunc

	wake  chan struct{}
	timer *time.Timer
	began time.Time // what the guest's monotonic clock counts from
	files []*file   // index is the descriptor; nil is free
	free  int       // no free descriptor below this one
	// gaveUp says that some descriptor has fewer rights than it began with.
	gaveUp  bool
	private *withPrivate
	listed  int // entries of folders that descriptors hold
	names   lookups
	found   [][eventSize]byte // poll's scratch space

	conns  atomic.Int64 // sockets with goroutines, lingering ones included
	wg     sync.WaitGroup
	exited bool
	code   uint32
}

// New prepares a guest's view of the host. When ctx ends, every host call of
// the guest, waiting or not, ends the guest at once. The caller must Close the
// System after the guest is gone.
func New(ctx context.Context, cfg Config) (*System, error) {
	for what, list := range map[string][]string{"arguments": cfg.Args, "environment": cfg.Env} {
		n := 0
		for _, v := range list {
			if strings.IndexByte(v, 0) >= 0 {
				return nil, fmt.Errorf("the %s hold a NUL byte", what)
			}
			n += len(v) + 5
		}
		if n > maxArgBytes {
			return nil, fmt.Errorf("the %s take %d bytes, over %d", what, n, maxArgBytes)
		}
	}
	if cfg.MaxFiles == 0 {
		cfg.MaxFiles = 1024
	}
	if cfg.MaxFiles < 3 || cfg.MaxFiles > maxFilesLimit {
		return nil, fmt.Errorf("a limit of %d open files is not between 3 and %d", cfg.MaxFiles, maxFilesLimit)
	}
	if cfg.Mounts == nil {
		cfg.Mounts = &LocalMounts{}
	}
	private := addPrivate(cfg.Mounts, cfg.Private)
	cfg.Mounts = private
	cfg.MaxFiles += len(cfg.Private) // the host's wish, not the guest's
	s := &System{cfg: cfg, private: private, wake: make(chan struct{}, 1), timer: time.NewTimer(time.Hour), began: time.Now()}
	s.timer.Stop()
	s.ctx, s.stop = context.WithCancel(ctx)
	s.done = s.ctx.Done()
	for _, p := range []**Pipe{&s.cfg.Stdin, &s.cfg.Stdout, &s.cfg.Stderr} {
		if *p == nil {
			*p = NewPipe(stdioBytes)
		}
		(*p).setWake(s.notify)
	}
	s.files = []*file{
		{kind: typeUnknown, in: s.cfg.Stdin, rights: rightsStream | rightRead},
		{kind: typeUnknown, out: s.cfg.Stdout, rights: rightsStream | rightWrite},
		{kind: typeUnknown, out: s.cfg.Stderr, rights: rightsStream | rightWrite},
	}
	s.preopen()
	return s, nil
}

// Stdio returns the guest's three streams.
func (s *System) Stdio() (stdin, stdout, stderr *Pipe) {
	return s.cfg.Stdin, s.cfg.Stdout, s.cfg.Stderr
}

// Exited returns the status that the guest gave to proc_exit, once it is gone.
func (s *System) Exited() (code uint32, ok bool) { return s.code, s.exited }

// PrivatePeak is the most that the private folders held, in bytes. The guest
// must be gone.
func (s *System) PrivatePeak() int64 { return s.private.peak() }

// Stop ends the guest at its current or next host call.
func (s *System) Stop() { s.stop() }

// Close ends every connection, closes every descriptor and waits for all
// goroutines of the System. The guest must be gone. Readers of its output
// still get what it wrote.
func (s *System) Close() error {
	s.stop()
	var errs []error
	for fd, f := range s.files {
		if f != nil {
			errs = append(errs, s.release(f))
		}
		s.files[fd] = nil
	}
	s.cfg.Stdin.closeRead()
	s.cfg.Stdout.closeWrite(Success)
	s.cfg.Stderr.closeWrite(Success)
	s.wg.Wait()
	return errors.Join(errs...)
}

// notify tells a waiting guest to look again.
func (s *System) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// checkStop ends the guest if its time is up.
func (s *System) checkStop() {
	select {
	case <-s.done:
		panic(sys.NewExitError(stoppedExit))
	default:
	}
}

// wait blocks until something may have changed, or until the deadline (zero
// means none), which it reports. It is the only place where a guest waits, and
// does not return once the guest is to end.
func (s *System) wait(deadline time.Time) (expired bool) {
	var timeout <-chan time.Time
	if !deadline.IsZero() {
		d := time.Until(deadline)
		if d <= 0 {
			s.checkStop()
			return true
		}
		s.timer.Reset(d)
		defer s.timer.Stop()
		timeout = s.timer.C
	}
	select {
	case <-s.wake:
		s.checkStop()
	case <-timeout:
		expired = true
	case <-s.done:
		s.checkStop()
	}
	return expired
}
