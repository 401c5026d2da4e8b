//go:build linux

package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

// stdio is a box's three fifos. Their host ends go to the caller; the guest's
// are opened by the runtime's entry script. The names are gone once the guest
// has them.
type stdio struct {
	dir                   string
	stdin, stdout, stderr *os.File
	held                  []*os.File // keep the script's opens from blocking
}

var fifoNames = []string{"in", "out", "err"}

// newStdio makes the fifos in dir, owned by the host id of the guest's user,
// so that a guest that opens /dev/stderr anew gets it.
func newStdio(dir string, owner int) (_ *stdio, err error) {
	s := &stdio{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	for _, name := range fifoNames {
		p := filepath.Join(dir, name)
		if err := unix.Mkfifo(p, 0o600); err != nil {
			return nil, fmt.Errorf("make fifo: %w", err)
		}
		if err := os.Lchown(p, owner, owner); err != nil {
			return nil, fmt.Errorf("make fifo: %w", err)
		}
	}
	keep, err := openFifo(dir, "in", unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	s.held = append(s.held, keep)
	if s.stdin, err = openFifo(dir, "in", unix.O_WRONLY); err != nil {
		return nil, err
	}
	if s.stdout, err = openFifo(dir, "out", unix.O_RDONLY); err != nil {
		return nil, err
	}
	if s.stderr, err = openFifo(dir, "err", unix.O_RDONLY); err != nil {
		return nil, err
	}
	return s, nil
}

// maxEnvironment bounds a guest's environment, so that it fits into a pipe
// that nobody reads yet.
const maxEnvironment = 512 << 10

// environment puts the guest's environment into its stdin, for the init to
// take out again before the server starts. It is in no other place.
func (s *stdio) environment(env []string) error {
	var b []byte
	for _, e := range env {
		b = append(append(b, e...), 0)
	}
	if len(b) > maxEnvironment {
		return fmt.Errorf("%w: an environment of %d bytes is over %d", sandbox.ErrInvalid, len(b), maxEnvironment)
	}
	raw, err := s.stdin.SyscallConn()
	if err != nil {
		return fmt.Errorf("environment: %w", err)
	}
	var perr error
	if err := raw.Control(func(fd uintptr) {
		_, perr = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, 2*maxEnvironment)
	}); err != nil || perr != nil {
		return fmt.Errorf("environment: %w", errors.Join(err, perr))
	}
	if _, err := s.stdin.Write(append(fmt.Appendf(nil, "%08x", len(b)), b...)); err != nil {
		return fmt.Errorf("environment: %w", err)
	}
	return nil
}

// openFifo opens one end without waiting for the other. The end stays
// non-blocking, so that its user's close unblocks its reads.
func openFifo(dir, name string, flag int) (*os.File, error) {
	fd, err := unix.Open(filepath.Join(dir, name), flag|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open fifo: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// started drops what only the start needed: the names and the guest's ends.
func (s *stdio) started() error {
	var errs []error
	for _, f := range s.held {
		errs = append(errs, f.Close())
	}
	s.held = nil
	for _, name := range fifoNames {
		if err := os.Remove(filepath.Join(s.dir, name)); err != nil && !os.IsNotExist(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// close also closes the caller's ends, for a start that failed.
func (s *stdio) close() error {
	err := s.started()
	for _, f := range []*os.File{s.stdin, s.stdout, s.stderr} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}
