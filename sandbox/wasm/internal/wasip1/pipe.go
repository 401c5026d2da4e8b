package wasip1

import (
	"io"
	"os"
	"sync"
)

// Pipe is a bounded queue of bytes between the guest and the host. The guest's
// side never blocks (it waits in System.wait instead); the host's side blocks
// and is safe for concurrent use.
type Pipe struct {
	mu   sync.Mutex
	cond sync.Cond
	buf  []byte // data is buf[off:]
	off  int
	max  int
	// wclosed: nothing more will be written; rclosed: nobody will read.
	wclosed, rclosed bool
	err              Errno // what a reader gets instead of the end, once drained
	wake             func()
}

// NewPipe makes a pipe that holds at most max bytes. It is of no use until
// New has taken it up.
func NewPipe(max int) *Pipe {
	p := &Pipe{max: max, wake: func() {}}
	p.cond.L = &p.mu
	return p
}

func (p *Pipe) setWake(f func()) {
	p.mu.Lock()
	p.wake = f
	p.mu.Unlock()
}

// put appends what fits and returns how much. p.mu is held.
func (p *Pipe) put(b []byte) int {
	n := min(len(b), p.max-(len(p.buf)-p.off))
	if p.off > 0 && len(p.buf)+n > cap(p.buf) {
		p.buf = p.buf[:copy(p.buf, p.buf[p.off:])]
		p.off = 0
	}
	p.buf = append(p.buf, b[:n]...)
	return n
}

// get moves bytes out. p.mu is held.
func (p *Pipe) get(b []byte) int {
	n := copy(b, p.buf[p.off:])
	if p.off += n; p.off == len(p.buf) {
		p.buf, p.off = p.buf[:0], 0
	}
	return n
}

// tryRead is the guest's read: EAGAIN when there is nothing yet, 0 and Success
// at the end.
func (p *Pipe) tryRead(b []byte) (int, Errno) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.rclosed:
		return 0, EBADF
	case len(p.buf) > p.off:
		n := p.get(b)
		p.cond.Broadcast()
		return n, Success
	case p.wclosed:
		return 0, p.err
	case len(b) == 0:
		return 0, Success
	}
	return 0, EAGAIN
}

// tryPeek is tryRead that leaves the bytes in place.
func (p *Pipe) tryPeek(b []byte) (int, Errno) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.rclosed:
		return 0, EBADF
	case len(p.buf) > p.off:
		return copy(b, p.buf[p.off:]), Success
	case p.wclosed:
		return 0, p.err
	}
	return 0, EAGAIN
}

// tryWrite is the guest's write: it takes what fits, EAGAIN when nothing does.
func (p *Pipe) tryWrite(b []byte) (int, Errno) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rclosed || p.wclosed {
		return 0, EPIPE
	}
	n := p.put(b)
	if n == 0 && len(b) > 0 {
		return 0, EAGAIN
	}
	p.cond.Broadcast()
	return n, Success
}

// readable says whether tryRead would return now, with how many bytes, and
// whether the other side is gone.
func (p *Pipe) readable() (ready bool, n int, hangup bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n = len(p.buf) - p.off
	return n > 0 || p.wclosed || p.rclosed, n, p.wclosed || p.rclosed
}

// writable is readable's counterpart.
func (p *Pipe) writable() (ready bool, n int, hangup bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n = p.max - (len(p.buf) - p.off)
	gone := p.wclosed || p.rclosed
	return n > 0 || gone, n, gone
}

// Read is the host's blocking read. It ends with io.EOF.
func (p *Pipe) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.rclosed:
			return 0, os.ErrClosed
		case len(b) == 0:
			return 0, nil
		case len(p.buf) > p.off:
			n := p.get(b)
			p.wake()
			return n, nil
		case p.wclosed:
			return 0, io.EOF
		}
		p.cond.Wait()
	}
}

// take blocks until there are bytes and takes all of them at once, so that an
// idle connection holds no buffer.
func (p *Pipe) take() ([]byte, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.buf) == p.off && !p.wclosed && !p.rclosed {
		p.cond.Wait()
	}
	if p.rclosed || len(p.buf) == p.off {
		return nil, false
	}
	b := p.buf[p.off:]
	p.buf, p.off = nil, 0
	p.wake()
	return b, true
}

// Write is the host's blocking write. Once the guest's side is gone it fails
// with io.ErrClosedPipe.
func (p *Pipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	done := 0
	for {
		if p.wclosed || p.rclosed {
			return done, io.ErrClosedPipe
		}
		if n := p.put(b[done:]); n > 0 {
			done += n
			p.wake()
		}
		if done == len(b) {
			return done, nil
		}
		p.cond.Wait()
	}
}

// CloseWrite ends the stream: readers drain it and then see the end, or err
// where it is not Success.
func (p *Pipe) closeWrite(err Errno) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.wclosed {
		p.wclosed, p.err = true, err
	}
	p.cond.Broadcast()
	p.wake()
}

// closeRead drops what is queued and fails every later write.
func (p *Pipe) closeRead() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rclosed, p.buf, p.off = true, nil, 0
	p.cond.Broadcast()
	p.wake()
}

// Writer returns the host's end for writing to the guest.
func (p *Pipe) Writer() io.WriteCloser { return pipeWriter{p} }

// Reader returns the host's end for reading from the guest.
func (p *Pipe) Reader() io.ReadCloser { return pipeReader{p} }

type pipeWriter struct{ *Pipe }

func (w pipeWriter) Close() error { w.closeWrite(Success); return nil }

type pipeReader struct{ *Pipe }

func (r pipeReader) Close() error { r.closeRead(); return nil }
