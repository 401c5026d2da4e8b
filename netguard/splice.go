package netguard

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// halfClosedIdle is how long one direction may stay silent after the other
// has ended: long enough for a slow answer, short enough that a peer that
// never closes does not keep its connection for ever.
const halfClosedIdle = 5 * time.Minute

// copyBufferSize is the buffer of a copy through user space, in bytes.
const copyBufferSize = 32 << 10

// byteCounter counts one direction of one connection. spend is asked before
// bytes are passed on, and refuses what would go over the sandbox's budget.
type byteCounter struct {
	n     atomic.Int64
	spend func(n int64) bool
}

func (c *byteCounter) add(n int64) error {
	if c.spend != nil && !c.spend(n) {
		return errBudget
	}
	c.n.Add(n)
	return nil
}

// relay moves bytes both ways between a guest and an origin. Each direction
// has a goroutine of its own, so a peer that does not read stops only the
// bytes meant for it.
type relay struct {
	guest, origin net.Conn
	up, down      byteCounter
	pipes         *pipePool
	idle          time.Duration // 0: halfClosedIdle
	// inspect, where set, passes on the guest's first bytes, or all of them,
	// as it judges them. It returns true to have the rest copied unread.
	inspect func() (raw bool, err error)

	ended atomic.Bool // one direction has ended
}

// run returns when both directions have ended, or after resetting both when
// one of them failed. ctx ends it early.
func (r *relay) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, r.abort)
	defer stop()
	var (
		wg      sync.WaitGroup
		errDown error
	)
	wg.Go(func() { errDown = r.finish(r.guest, r.origin, r.copy(r.guest, r.origin, &r.down)) })
	errUp := r.finish(r.origin, r.guest, r.upward())
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	// The direction that failed first aborted the other, whose error is then
	// only that its socket was closed.
	if errUp == nil || errors.Is(errUp, net.ErrClosed) && errDown != nil {
		return errDown
	}
	return errUp
}

func (r *relay) upward() error {
	if r.inspect != nil {
		if raw, err := r.inspect(); err != nil || !raw {
			return err
		}
	}
	return r.copy(r.origin, r.guest, &r.up)
}

// finish passes the end of one direction on, or resets both sides.
func (r *relay) finish(dst, src net.Conn, err error) error {
	if err == nil {
		err = closeWrite(dst)
	}
	if err != nil {
		r.abort()
		return err
	}
	if !r.ended.Swap(true) {
		r.extend(dst, src)
	}
	return nil
}

// extend gives the direction that is still open its next idle period.
func (r *relay) extend(a, b net.Conn) {
	idle := r.idle
	if idle == 0 {
		idle = halfClosedIdle
	}
	deadline := time.Now().Add(idle)
	_ = a.SetDeadline(deadline)
	_ = b.SetDeadline(deadline)
}

// progress keeps a half-closed connection alive while bytes move.
func (r *relay) progress() {
	if r.ended.Load() {
		r.extend(r.guest, r.origin)
	}
}

// abort resets both sides: an end that a peer could take for a proper one
// would turn a cut transfer into a complete one.
func (r *relay) abort() {
	reset(r.guest)
	reset(r.origin)
}

// copy picks the kernel's path where both ends are its sockets.
func (r *relay) copy(dst, src net.Conn, c *byteCounter) error {
	d, ok1 := dst.(syscall.Conn)
	s, ok2 := src.(syscall.Conn)
	if ok1 && ok2 && r.pipes != nil {
		return r.splice(d, s, c)
	}
	return r.copyBuffer(dst, src, c)
}

// copyBuffer is the path through user space.
func (r *relay) copyBuffer(dst io.Writer, src io.Reader, c *byteCounter) error {
	buf := make([]byte, copyBufferSize)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			if err := r.forward(dst, buf[:n], c); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// forward counts and writes bytes that were read.
func (r *relay) forward(dst io.Writer, b []byte, c *byteCounter) error {
	if err := c.add(int64(len(b))); err != nil {
		return err
	}
	if _, err := dst.Write(b); err != nil {
		return err
	}
	r.progress()
	return nil
}

// closeWrite ends one direction.
func closeWrite(c net.Conn) error {
	if w, ok := c.(interface{ CloseWrite() error }); ok {
		err := w.CloseWrite()
		if isNotConnected(err) {
			return nil // the peer is gone already: nothing is left to tell it
		}
		return err
	}
	return c.Close()
}

// reset closes c so that its peer sees a reset, never an orderly end.
func reset(c net.Conn) {
	if l, ok := c.(interface{ SetLinger(sec int) error }); ok {
		_ = l.SetLinger(0)
	}
	_ = c.Close()
}
