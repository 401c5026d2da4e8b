//go:build linux

package container

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// tmpEvery is how often a box's tmpfs are looked at: the kernel keeps no peak
// of them.
const tmpEvery = time.Second

// tmpUse follows what lies in a box's private tmpfs. Its descriptors keep them
// there until it is closed, so that it can look once more when the guest is
// gone. A nil tmpUse knows nothing.
type tmpUse struct {
	files []*os.File
	peak  int64
}

// newTmpUse opens the tmpfs of the guest whose first process this is. What
// cannot be opened, or is no tmpfs of the size that its guest was given, is
// left out: the guest may be gone already, and its number another's.
func newTmpUse(pid uint32, tmpBytes int64) *tmpUse {
	u := &tmpUse{}
	for dir, size := range map[string]int64{"/tmp": tmpBytes, guestHome: tmpBytes, "/dev/shm": shmBytes} {
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/root%s", pid, dir), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		f := os.NewFile(uintptr(fd), strings.TrimPrefix(dir, "/"))
		var st unix.Statfs_t
		if err := unix.Fstatfs(fd, &st); err != nil || st.Type != unix.TMPFS_MAGIC || (int64(st.Blocks)*st.Bsize-size)>>20 != 0 {
			_ = f.Close()
			continue
		}
		u.files = append(u.files, f)
	}
	return u
}

// look returns the most that was seen so far, in bytes.
func (u *tmpUse) look() int64 {
	if u == nil {
		return 0
	}
	var sum int64
	for _, f := range u.files {
		var st unix.Statfs_t
		if err := unix.Fstatfs(int(f.Fd()), &st); err == nil {
			sum += int64(st.Blocks-st.Bfree) * st.Bsize
		}
	}
	u.peak = max(u.peak, sum)
	return u.peak
}

func (u *tmpUse) close() {
	if u == nil {
		return
	}
	for _, f := range u.files {
		_ = f.Close()
	}
}
