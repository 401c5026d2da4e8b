//go:build linux

package engine

import (
	"fmt"
	"net"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// credentials are who connected, as the kernel recorded it at connect time.
type credentials struct {
	uid, gid uint32
	groups   []uint32
}

// peerCredentials asks the kernel who is at the other end.
func peerCredentials(c *net.UnixConn) (credentials, error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return credentials{}, err
	}
	var cred credentials
	var inner error
	err = rc.Control(func(fd uintptr) {
		var uc *unix.Ucred
		if uc, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); inner != nil {
			return
		}
		cred.uid, cred.gid = uc.Uid, uc.Gid
		cred.groups, inner = peerGroups(fd)
	})
	if err == nil {
		err = inner
	}
	if err != nil {
		return credentials{}, fmt.Errorf("reading the caller's credentials: %w", err)
	}
	return cred, nil
}

// peerGroups reads the caller's supplementary groups (SO_PEERGROUPS).
func peerGroups(fd uintptr) ([]uint32, error) {
	groups := make([]uint32, 64)
	for {
		size := uint32(len(groups) * 4)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0) //nolint:gosec // no helper in x/sys
		switch {
		case errno == 0:
			return groups[:size/4], nil
		case errno == unix.ERANGE && int(size/4) > len(groups):
			groups = make([]uint32, size/4)
		default:
			return nil, errno
		}
	}
}

// mayAccess asks the kernel whether the caller could open what fd stands for:
// for reading, and for writing too where write is set. An O_PATH descriptor
// alone proves only that its path could be walked.
//
// The question is asked on a thread of its own that takes the caller's file
// system identity. That identity drops the capabilities that override file
// permissions, and nothing else changes: the caller can neither signal nor
// trace the thread. The thread ends with the question.
func (c credentials) mayAccess(fd int, dir, write bool) error {
	mode := uint32(unix.R_OK)
	if dir {
		mode |= unix.X_OK
	}
	if write {
		mode |= unix.W_OK
	}
	result := make(chan error)
	go func() {
		// Never unlocked: the runtime ends the thread with the goroutine, so
		// that no other code ever runs under the caller's groups.
		runtime.LockOSThread()
		result <- c.ask(fd, mode)
	}()
	return <-result
}

func (c credentials) ask(fd int, mode uint32) error {
	var list unsafe.Pointer
	if len(c.groups) > 0 {
		list = unsafe.Pointer(&c.groups[0]) //nolint:gosec // the raw call changes this thread alone
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(c.groups)), uintptr(list), 0); errno != 0 {
		return fmt.Errorf("taking the caller's groups: %w", errno)
	}
	for _, call := range []struct {
		nr uintptr
		id uint32
	}{{unix.SYS_SETFSGID, c.gid}, {unix.SYS_SETFSUID, c.uid}} {
		// setfsuid reports no error; asking again gives what now holds.
		_, _, _ = unix.RawSyscall(call.nr, uintptr(call.id), 0, 0)
		if now, _, _ := unix.RawSyscall(call.nr, uintptr(call.id), 0, 0); uint32(now) != call.id {
			return fmt.Errorf("taking the caller's identity: %w", unix.EPERM)
		}
	}
	err := unix.Faccessat2(fd, "", mode, unix.AT_EMPTY_PATH|unix.AT_EACCESS)
	// The main thread is parked rather than ended: leave it as it was.
	_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, 0, 0, 0)
	_, _, _ = unix.RawSyscall(unix.SYS_SETFSGID, 0, 0, 0)
	return err
}
