package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// openMountSource opens a path without reading it: O_PATH asks for no more
// than the right to reach it. That this user may also read it, and write where
// write is set, is asked here so that no image is built for a mount that the
// engine refuses; what holds is the engine's own check.
func openMountSource(source string, write bool) (*os.File, error) {
	fd, err := unix.Open(source, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Faccessat2(fd, "", unix.R_OK, unix.AT_EMPTY_PATH|unix.AT_EACCESS); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("you may not read it: %w", err)
	}
	if write {
		if err := unix.Faccessat2(fd, "", unix.W_OK, unix.AT_EMPTY_PATH|unix.AT_EACCESS); err != nil {
			_ = unix.Close(fd)
			return nil, fmt.Errorf("you may not write to it (leave :rw away, or mount what is yours): %w", err)
		}
	}
	return os.NewFile(uintptr(fd), source), nil
}
