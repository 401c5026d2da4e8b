package netguard

import (
	"errors"
	"os"
	"sync"
	"syscall"
)

const (
	spliceMove     = 1    // SPLICE_F_MOVE
	spliceNonblock = 2    // SPLICE_F_NONBLOCK
	setPipeSize    = 1031 // F_SETPIPE_SZ
	// pipeSize is asked for: in bulk, a quarter of it costs this process near
	// half as much again of system time. It is the most that an unprivileged
	// user may ask for; one past its soft limit gets less, which costs system
	// calls and nothing else.
	pipeSize = 1 << 20
	// maxIdlePipes is how many empty pipes a sandbox keeps for its next bytes.
	// Few are in use at a time, and even idle ones count against the soft
	// limit on what a user's pipes may hold, 64 MiB in all.
	maxIdlePipes = 8
)

// pipe is a kernel buffer that bytes pass through without being copied.
type pipe struct{ r, w int }

func newPipe() (pipe, error) {
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK); err != nil {
		return pipe{}, os.NewSyscallError("pipe2", err)
	}
	_, _, _ = syscall.Syscall(syscall.SYS_FCNTL, uintptr(fds[0]), setPipeSize, pipeSize)
	return pipe{fds[0], fds[1]}, nil
}

func (p pipe) close() {
	_ = syscall.Close(p.r)
	_ = syscall.Close(p.w)
}

// pipePool lends pipes to directions that have bytes to move right now. An
// idle connection holds none, so 2,000 open connections cost two sockets each
// and not two pipes more.
type pipePool struct {
	mu     sync.Mutex
	free   []pipe
	closed bool
}

func (p *pipePool) get() (pipe, error) {
	p.mu.Lock()
	if k := len(p.free); k > 0 {
		got := p.free[k-1]
		p.free = p.free[:k-1]
		p.mu.Unlock()
		return got, nil
	}
	p.mu.Unlock()
	return newPipe()
}

// put takes back an empty pipe.
func (p *pipePool) put(got pipe) {
	p.mu.Lock()
	keep := !p.closed && len(p.free) < maxIdlePipes
	if keep {
		p.free = append(p.free, got)
	}
	p.mu.Unlock()
	if !keep {
		got.close()
	}
}

// close frees the idle pipes; those on loan are closed when they come back.
func (p *pipePool) close() {
	p.mu.Lock()
	free := p.free
	p.free, p.closed = nil, true
	p.mu.Unlock()
	for _, got := range free {
		got.close()
	}
}

// splicer is the state of one direction; its two methods are what the runtime
// poller calls back, kept as fields so that a round allocates nothing.
type splicer struct {
	pool *pipePool
	pipe pipe
	held bool
	n    int // bytes in the pipe
	err  error
}

// pull moves what is readable into a pipe. It takes a pipe only for the try,
// so waiting for a silent peer holds none.
func (s *splicer) pull(fd uintptr) bool {
	if s.pipe, s.err = s.pool.get(); s.err != nil {
		return true
	}
	var n int64
	for {
		n, s.err = syscall.Splice(int(fd), nil, s.pipe.w, nil, pipeSize, spliceMove|spliceNonblock)
		if !errors.Is(s.err, syscall.EINTR) {
			break
		}
	}
	if s.err != nil || n == 0 {
		s.pool.put(s.pipe)
		return !errors.Is(s.err, syscall.EAGAIN)
	}
	s.held, s.n = true, int(n)
	return true
}

// push moves the pipe's bytes to the other socket.
func (s *splicer) push(fd uintptr) bool {
	for s.n > 0 {
		n, err := syscall.Splice(s.pipe.r, nil, int(fd), nil, s.n, spliceMove|spliceNonblock)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EAGAIN):
			return false
		case err != nil:
			s.err = err
			return true
		default:
			s.n -= int(n)
		}
	}
	return true
}

// release gives an empty pipe back and destroys one with bytes in it.
func (s *splicer) release() {
	if !s.held {
		return
	}
	s.held = false
	if s.n == 0 {
		s.pool.put(s.pipe)
		return
	}
	s.pipe.close()
}

// splice copies src to dst within the kernel until src ends.
func (r *relay) splice(dst, src syscall.Conn, c *byteCounter) error {
	in, err := src.SyscallConn()
	if err != nil {
		return err
	}
	out, err := dst.SyscallConn()
	if err != nil {
		return err
	}
	s := splicer{pool: r.pipes}
	pull, push := s.pull, s.push
	defer s.release()
	for {
		if err := in.Read(pull); err != nil {
			return err
		}
		if s.err != nil {
			return os.NewSyscallError("splice", s.err)
		}
		if !s.held {
			return nil
		}
		if err := c.add(int64(s.n)); err != nil {
			return err
		}
		if err := out.Write(push); err != nil {
			return err
		}
		if s.err != nil {
			return os.NewSyscallError("splice", s.err)
		}
		s.release()
		r.progress()
	}
}

func isNotConnected(err error) bool { return errors.Is(err, syscall.ENOTCONN) }
