//go:build linux

package engine

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/container"
)

const (
	slotCount = 8
	stdioMask = 0b0000_0111
)

// fileSlots gives the fields of Files in the order in which they travel.
func fileSlots(f *container.Files) [slotCount]**os.File {
	return [slotCount]**os.File{
		&f.Stdin, &f.Stdout, &f.Stderr, &f.TCP4, &f.TCP6, &f.UDP4, &f.UDP6, &f.Refused,
	}
}

// packFiles lists the descriptors that are there, and which those are.
func packFiles(f container.Files) (present uint8, list []*os.File) {
	for i, slot := range fileSlots(&f) {
		if *slot != nil {
			present |= 1 << i
			list = append(list, *slot)
		}
	}
	return present, list
}

// unpackFiles takes the descriptors over, in a form whose reads and writes
// end when the file is closed. On an error it has closed all of them.
func unpackFiles(present uint8, list []*os.File) (container.Files, error) {
	var f container.Files
	var err error
	if present&stdioMask != stdioMask {
		err = fmt.Errorf("%w: a sandbox without its streams", ErrProtocol)
	}
	rest := list
	for i, slot := range fileSlots(&f) {
		if err != nil || present&(1<<i) == 0 {
			continue
		}
		if len(rest) == 0 {
			err = fmt.Errorf("%w: a sandbox with too few descriptors", ErrProtocol)
			break
		}
		*slot, err = pollable(rest[0])
		rest = rest[1:]
	}
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%w: a sandbox with too many descriptors", ErrProtocol)
	}
	closeAll(list)
	if err != nil {
		closeFiles(&f)
		return container.Files{}, err
	}
	return f, nil
}

// pollable gives a copy of f that the runtime's poller watches, so that Close
// unblocks what waits on it.
func pollable(f *os.File) (*os.File, error) {
	var copied *os.File
	err := withDescriptors([]*os.File{f}, nil, func(fds []int) error {
		fd, err := unix.FcntlInt(uintptr(fds[0]), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return err
		}
		if err := unix.SetNonblock(fd, true); err != nil {
			return errors.Join(err, unix.Close(fd))
		}
		copied = os.NewFile(uintptr(fd), f.Name())
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("taking a descriptor over: %w", err)
	}
	return copied, nil
}

func closeFiles(f *container.Files) {
	for _, slot := range fileSlots(f) {
		if *slot != nil {
			_ = (*slot).Close()
		}
	}
}
