//go:build unix

package netguard

import (
	"fmt"
	"net"
	"os"
	"syscall"
)

// connPair is a connected pair of the kernel's sockets, which half-close and
// can be spliced.
func connPair() (near, far net.Conn, err error) {
	syscall.ForkLock.RLock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, fmt.Errorf("socket pair: %w", err)
	}
	if near, err = fileConn(fds[0]); err != nil {
		_ = syscall.Close(fds[1])
		return nil, nil, err
	}
	if far, err = fileConn(fds[1]); err != nil {
		_ = near.Close()
		return nil, nil, err
	}
	return near, far, nil
}

// fileConn takes the descriptor over.
func fileConn(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "guest")
	defer func() { _ = f.Close() }() // FileConn duplicated it
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("socket pair: %w", err)
	}
	return c, nil
}
