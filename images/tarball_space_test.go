package images

import (
	"errors"
	"io"
	"os"
	"syscall"
	"testing"
)

// TestFullDisk: a disk that is full is not blamed on the registry.
func TestFullDisk(t *testing.T) {
	for _, no := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
		if err := brokenOff(&os.PathError{Op: "write", Path: "x", Err: no}, "p"); !errors.Is(err, ErrTool) || errors.Is(err, ErrNetwork) {
			t.Errorf("%v: %v", no, err)
		}
	}
	if err := brokenOff(io.ErrUnexpectedEOF, "p"); !errors.Is(err, ErrNetwork) {
		t.Error(err)
	}
}
