package wasip1

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// openNoWait keeps an open from waiting and from gaining a terminal.
const openNoWait = unix.O_NONBLOCK | unix.O_NOCTTY

// reopenPath names what a descriptor refers to, whatever happened to its path
// since. It works for O_PATH descriptors too.
func reopenPath(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// duplicate makes an independent descriptor of the same file.
func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
