//go:build linux

package engine

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/internal/hostfs"
)

// checkMount says whether the caller may have this descriptor mounted: a
// folder or a regular file, opened with O_PATH (so that neither holding nor
// closing it touches what it stands for), on a file system that holds data,
// which the caller itself could open that way. Errors wrap ErrInvalid.
func checkMount(cred credentials, m sandbox.Mount) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: mount %q: %s", sandbox.ErrInvalid, m.Target, fmt.Sprintf(format, args...))
	}
	for _, reserved := range []string{"/proc", "/sys", "/dev"} {
		if m.Target == reserved || strings.HasPrefix(m.Target, reserved+"/") {
			return refuse("nothing can be mounted below %s", reserved)
		}
	}
	if strings.IndexByte(m.Target, 0) >= 0 || len(m.Target) > maxPath {
		return refuse("the target is too long or holds a NUL byte")
	}
	return withDescriptors([]*os.File{m.Source}, nil, func(fds []int) error {
		fd := fds[0]
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err != nil {
			return refuse("its descriptor: %v", err)
		}
		if flags&unix.O_PATH == 0 {
			return refuse("its descriptor was not opened with O_PATH")
		}
		var st unix.Stat_t
		if err := hostfs.HoldsData(fd); err != nil {
			return refuse("%v", err)
		}
		if err := unix.Fstat(fd, &st); err != nil {
			return refuse("its descriptor: %v", err)
		}
		kind := st.Mode & unix.S_IFMT
		if kind != unix.S_IFDIR && kind != unix.S_IFREG {
			return refuse("it is neither a folder nor a regular file")
		}
		if onDevices(st.Dev) {
			return refuse("it lies in the host's /dev")
		}
		if cred.uid == 0 {
			return nil
		}
		if err := cred.mayAccess(fd, kind == unix.S_IFDIR, m.ReadWrite); err != nil {
			return refuse("you may not open it: %v", err)
		}
		return nil
	})
}

// onDevices reports whether dev is the host's devtmpfs, whose magic number is
// tmpfs's.
func onDevices(dev uint64) bool {
	var d, root unix.Stat_t
	if unix.Stat("/dev", &d) != nil || unix.Stat("/", &root) != nil {
		return true
	}
	return dev == d.Dev && d.Dev != root.Dev
}
