package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// openMountSource opens a path without reading it: O_PATH asks for no more
// than the right to reach it.
func openMountSource(source string) (*os.File, error) {
	fd, err := unix.Open(source, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), source), nil
}
