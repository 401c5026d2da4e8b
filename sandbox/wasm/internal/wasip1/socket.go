package wasip1

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	sockBytes = 1 << 16 // queued in each direction of a connection
	readChunk = 1 << 14
	// lingerTime bounds how long what the guest wrote before it closed a
	// socket may take to leave.
	lingerTime = 10 * time.Second
)

// sockState is where a socket is in its life. It only moves forward.
type sockState uint8

const (
	sockNew sockState = iota
	sockConnecting
	sockConnected
	sockFailed
)

// socket is a TCP connection, or the wish for one. Its mutex guards what the
// dialling goroutine hands over; the rest belongs to the guest's goroutine.
type socket struct {
	sys    *System
	v6     bool
	in     *Pipe // from the peer
	out    *Pipe // to the peer
	peer   netip.AddrPort
	cancel context.CancelFunc

	mu    sync.Mutex
	state sockState
	err   Errno // why it failed; SO_ERROR reads it once
	conn  net.Conn
	local netip.AddrPort
}

func (k *socket) status() (sockState, Errno) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state, k.err
}

// connect begins to dial address; peer is what the guest asked for.
func (k *socket) connect(address string, peer netip.AddrPort) Errno {
	s := k.sys
	if s.conns.Add(1) > int64(s.cfg.MaxFiles) {
		s.conns.Add(-1)
		return ENFILE
	}
	ctx, cancel := context.WithCancel(s.ctx)
	k.mu.Lock()
	k.state, k.peer, k.cancel = sockConnecting, peer, cancel
	k.mu.Unlock()
	k.in, k.out = NewPipe(sockBytes), NewPipe(sockBytes)
	k.in.setWake(s.notify)
	k.out.setWake(s.notify)
	s.wg.Go(func() {
		defer s.conns.Add(-1)
		defer cancel()
		k.run(ctx, address)
	})
	return Success
}

// run dials and then moves bytes until both directions are done.
func (k *socket) run(ctx context.Context, address string) {
	conn, err := k.sys.cfg.Dial(ctx, "tcp", address)
	k.mu.Lock()
	if err != nil {
		k.state, k.err = sockFailed, DialErrno(err)
	} else {
		k.state, k.conn = sockConnected, conn
		if a, ok := conn.LocalAddr().(*net.TCPAddr); ok {
			k.local = a.AddrPort()
		}
	}
	k.mu.Unlock()
	k.sys.notify()
	if err != nil {
		return
	}
	// The guest's end, or a close that need not linger, cuts the connection.
	unhook := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer unhook()
	var reader sync.WaitGroup
	reader.Go(func() { k.receive(conn) })
	clean := k.transmit(conn)
	if clean && !k.abandoned() {
		reader.Wait()
	}
	_ = conn.Close()
	reader.Wait()
}

// abandoned reports whether the guest has closed the socket, so that nobody
// will read what the peer still sends.
func (k *socket) abandoned() bool {
	k.in.mu.Lock()
	defer k.in.mu.Unlock()
	return k.in.rclosed
}

// receive moves bytes from the peer to the guest.
func (k *socket) receive(conn net.Conn) {
	buf := make([]byte, readChunk)
	for {
		n, err := conn.Read(buf)
		if _, werr := k.in.Write(buf[:n]); werr != nil {
			return
		}
		switch {
		case errors.Is(err, io.EOF):
			k.in.closeWrite(Success)
			return
		case err != nil:
			k.in.closeWrite(connErrno(err))
			k.out.closeRead()
			return
		}
	}
}

// transmit moves bytes from the guest to the peer and half closes the
// connection at their end. It reports whether all of them left.
func (k *socket) transmit(conn net.Conn) bool {
	for {
		b, ok := k.out.take()
		if !ok {
			break
		}
		if k.abandoned() {
			_ = conn.SetWriteDeadline(time.Now().Add(lingerTime))
		}
		if _, err := conn.Write(b); err != nil {
			k.out.closeRead()
			return false
		}
	}
	if c, ok := conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite() == nil
	}
	return true
}

// connErrno is what a guest sees of a broken connection.
func connErrno(err error) Errno {
	if e := DialErrno(err); e != ECONNREFUSED {
		return e
	}
	return ECONNRESET
}

// close gives the socket up. What was written still leaves, within a bound.
func (k *socket) close() {
	k.mu.Lock()
	state, conn, cancel := k.state, k.conn, k.cancel
	k.mu.Unlock()
	if state == sockNew {
		return
	}
	k.in.closeRead()
	k.out.closeWrite(Success)
	if state == sockConnecting {
		cancel()
	} else if conn != nil {
		_ = conn.SetWriteDeadline(time.Now().Add(lingerTime))
		_ = conn.SetReadDeadline(time.Now()) // nobody reads any more
	}
}

// ready is poll's question.
func (k *socket) ready(write bool) (ok bool, n int, hangup bool) {
	switch state, _ := k.status(); {
	case state == sockConnecting:
		return false, 0, false
	case state == sockNew || state == sockFailed:
		return true, 0, true // an operation would fail at once
	case write:
		return k.out.writable()
	}
	return k.in.readable()
}

// usable waits for a connect in progress if the socket blocks.
func (s *System) usable(f *file) Errno {
	for {
		state, err := f.sock.status()
		switch {
		case state == sockConnected:
			return Success
		case state == sockFailed:
			return err
		case state == sockNew:
			return ENOTCONN
		case f.nonblock():
			return EAGAIN
		}
		s.wait(time.Time{})
	}
}

func (s *System) recv(f *file, bufs [][]byte, peek bool) (int, Errno) {
	if e := s.usable(f); e != Success {
		return 0, e
	}
	f.in = f.sock.in
	return s.readStream(f, bufs, peek)
}

func (s *System) send(f *file, bufs [][]byte) (int, Errno) {
	if e := s.usable(f); e != Success {
		return 0, e
	}
	f.out = f.sock.out
	return s.writeStream(f, bufs)
}
