//go:build !linux

package netguard

import (
	"errors"
	"net"
	"syscall"
)

// pipePool has nothing to lend where splice(2) does not exist: the gateway
// itself is Linux only, and the copy through user space serves tests.
type pipePool struct{}

func (*pipePool) close() {}

func (r *relay) splice(dst, src syscall.Conn, c *byteCounter) error {
	d, ok1 := dst.(net.Conn)
	s, ok2 := src.(net.Conn)
	if !ok1 || !ok2 {
		return errors.ErrUnsupported
	}
	return r.copyBuffer(d, s, c)
}

func isNotConnected(error) bool { return false }
