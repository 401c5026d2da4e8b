//go:build unix

package images

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"
)

// lockFile takes a lock on the file at path, made if missing, and waits for it
// as long as ctx lasts. Closing the file gives the lock back, and so does the
// end of the last process that inherited it.
func lockFile(ctx context.Context, path string, shared bool) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	how := syscall.LOCK_EX
	if shared {
		how = syscall.LOCK_SH
	}
	// flock(2) cannot be cancelled, so the wait asks again and again. Builds
	// take seconds; nobody notices a twentieth of one.
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		switch {
		case err == nil:
			return f, nil
		case errors.Is(err, syscall.EWOULDBLOCK), errors.Is(err, syscall.EINTR):
		default:
			return nil, errors.Join(&os.PathError{Op: "flock", Path: path, Err: err}, f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), f.Close())
		case <-tick.C:
		}
	}
}

// tryLock takes the lock only if nobody holds it; nil means that somebody
// does.
func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, f.Close()
		}
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
