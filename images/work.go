package images

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
)

// A work folder is where one build keeps what is not yet whole. It lives as
// long as its lock is held: by this process, and by every program that it
// started there, which inherits the lock. So a folder whose lock is free has
// no owner, however that one ended.
type work struct {
	dir  string
	lock *os.File
}

const (
	lockSuffix = ".lock"
	guardName  = "guard"
)

// newWork makes a work folder below tmp. The guard keeps a cleaner away from
// the moment between making the lock's file and taking the lock.
func newWork(ctx context.Context, tmp string) (*work, error) {
	guard, err := lockFile(ctx, filepath.Join(tmp, guardName), true)
	if err != nil {
		return nil, err
	}
	defer guard.Close() //nolint:errcheck // closing a lock's file loses nothing
	dir, err := os.MkdirTemp(tmp, "build-")
	if err != nil {
		return nil, err
	}
	lock, err := lockFile(ctx, dir+lockSuffix, false)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &work{dir: dir, lock: lock}, nil
}

// sub makes a folder inside.
func (w *work) sub(name string) (string, error) {
	dir := filepath.Join(w.dir, name)
	return dir, os.Mkdir(dir, 0o700)
}

// close removes the folder and gives up the lock, in this order.
func (w *work) close() error {
	return errors.Join(removeTree(w.dir), os.Remove(w.dir+lockSuffix), w.lock.Close())
}

// sweep removes the work folders that have no owner any more.
func sweep(tmp string, log *slog.Logger) error {
	guard, err := lockFile(context.Background(), filepath.Join(tmp, guardName), false)
	if err != nil {
		return err
	}
	defer guard.Close() //nolint:errcheck // closing a lock's file loses nothing
	entries, err := os.ReadDir(tmp)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		if name == guardName || strings.HasSuffix(name, lockSuffix) && e.Type().IsRegular() && exists(filepath.Join(tmp, strings.TrimSuffix(name, lockSuffix))) {
			continue // looked at with its folder
		}
		path := filepath.Join(tmp, strings.TrimSuffix(name, lockSuffix))
		lock, err := tryLock(path + lockSuffix)
		switch {
		case errors.Is(err, fs.ErrNotExist): // never got as far as its lock
		case err != nil:
			return err
		case lock == nil:
			continue // in use
		}
		log.Info("removing what an interrupted build left", "folder", name)
		err = errors.Join(removeTree(path), os.RemoveAll(path+lockSuffix))
		if lock != nil {
			err = errors.Join(err, lock.Close())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
