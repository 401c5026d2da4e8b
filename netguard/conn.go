package netguard

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
)

// conn is a connection handed to a guest or to the bridge: it counts bytes
// against the budget and writes the close line when it ends.
type conn struct {
	net.Conn
	a        *attempt
	up, down atomic.Int64
	once     sync.Once
	closeErr error
}

var errBudget = errors.New("the policy's byte budget is used up")

func newConn(a *attempt, raw net.Conn) *conn { return &conn{Conn: raw, a: a} }

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if !c.a.e.budget.take(0, int64(n)) {
		c.abort()
		return 0, errBudget
	}
	c.down.Add(int64(n))
	return n, err
}

func (c *conn) Write(p []byte) (int, error) {
	if !c.a.e.budget.take(int64(len(p)), 0) {
		c.abort()
		return 0, errBudget
	}
	n, err := c.Conn.Write(p)
	c.up.Add(int64(n))
	return n, err
}

// CloseWrite half-closes the connection, where it can be.
func (c *conn) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return errors.ErrUnsupported
}

// Close ends the connection and writes its close line.
func (c *conn) Close() error {
	c.once.Do(func() {
		c.closeErr = c.Conn.Close()
		c.a.finish(c.up.Load(), c.down.Load())
	})
	return c.closeErr
}

// abort ends the connection from outside: with a reset, so that a peer does
// not take the cut for an end.
func (c *conn) abort() {
	if l, ok := c.Conn.(interface{ SetLinger(sec int) error }); ok {
		_ = l.SetLinger(0)
	}
	_ = c.Close()
}
