//go:build linux

package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// DefaultSocket is where an engine listens unless told otherwise.
const DefaultSocket = "/run/sandboxd/engine.sock"

const listenBacklog = 128

// lockSocket makes the socket's folder and takes the lock that makes this
// process its only engine. It fails with ErrRunning where another holds it.
// The lock file stays behind on purpose: removing it would let two engines
// hold two different files.
func lockSocket(socket string) (*os.File, error) {
	dir := filepath.Dir(socket)
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // callers must reach the socket in it
		return nil, fmt.Errorf("engine socket: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return nil, fmt.Errorf("engine socket: folder %q: %w", dir, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return nil, fmt.Errorf("engine socket: %q must be a folder of this user that nobody else can write to", dir)
	}
	lock, err := os.OpenFile(socket+".lock", os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("engine socket: %w", err)
	}
	err = withDescriptors([]*os.File{lock}, nil, func(fds []int) error {
		return unix.Flock(fds[0], unix.LOCK_EX|unix.LOCK_NB)
	})
	if err != nil {
		_ = lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w at %s", ErrRunning, socket)
		}
		return nil, fmt.Errorf("engine socket: locking %q: %w", lock.Name(), err)
	}
	return lock, nil
}

// listen binds the socket under the lock. The permissions are in place before
// the first connection can queue.
func listen(socket string, gid int) (*net.UnixListener, error) {
	if err := removeStale(socket); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("engine socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), socket)
	defer func() { _ = f.Close() }()
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
		return nil, fmt.Errorf("engine socket: binding %q: %w", socket, err)
	}
	mode := os.FileMode(0o600)
	if gid >= 0 {
		mode = 0o660
	}
	err = os.Lchown(socket, -1, gid)
	if err == nil {
		err = os.Chmod(socket, mode)
	}
	if err == nil {
		err = unix.Listen(fd, listenBacklog)
	}
	var l net.Listener
	if err == nil {
		l, err = net.FileListener(f)
	}
	if err != nil {
		_ = os.Remove(socket)
		return nil, fmt.Errorf("engine socket: %w", err)
	}
	return l.(*net.UnixListener), nil //nolint:forcetypeassert // net gives this type for AF_UNIX
}

// removeStale removes a socket that an engine left when it was killed. It
// removes nothing else, and no socket that still answers.
func removeStale(socket string) error {
	fi, err := os.Lstat(socket)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("engine socket: %w", err)
	}
	if fi.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("engine socket: %q exists and is not a socket: choose another path or remove it", socket)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("engine socket: %w", err)
	}
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: socket})
	_ = unix.Close(fd)
	// EAGAIN is a full queue, EPROTOTYPE a socket of another kind: alive too.
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("%w at %s", ErrRunning, socket)
	}
	return os.Remove(socket)
}

// groupID reads a group's name or number; empty gives -1, which means none.
func groupID(group string) (int, error) {
	if group == "" {
		return -1, nil
	}
	g, err := user.LookupGroup(group)
	if err == nil {
		group = g.Gid
	}
	id, perr := strconv.ParseUint(group, 10, 31)
	if perr != nil {
		return -1, fmt.Errorf("engine group %q: no such group", group)
	}
	return int(id), nil
}
