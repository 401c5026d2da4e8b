//go:build unix

package wasip1

import (
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// renameIn renames as rename(2) does: a folder may take the place of an empty
// one, which os.Root refuses.
func renameIn(root *os.Root, from, to string) error {
	return inParent(root, from, func(fromDir int, fromName string) error {
		return inParent(root, to, func(toDir int, toName string) error {
			return unix.Renameat(fromDir, fromName, toDir, toName)
		})
	})
}

// setLinkTimes sets the times of a symbolic link itself, in nanoseconds since
// 1970.
func setLinkTimes(root *os.Root, name string, atim, mtim int64) error {
	// With a slash at its end the kernel would follow the link, and out.
	return inParent(root, strings.TrimRight(name, "/"), func(dir int, name string) error {
		times := []unix.Timespec{unix.NsecToTimespec(atim), unix.NsecToTimespec(mtim)}
		return unix.UtimesNanoAt(dir, name, times, unix.AT_SYMLINK_NOFOLLOW)
	})
}

// inParent opens the folder that a path's last element is in, which os.Root
// keeps below the root, and gives its descriptor with that element.
func inParent(root *os.Root, name string, do func(dir int, last string) error) error {
	trimmed := strings.TrimRight(name, "/")
	dir, last := path.Split(trimmed)
	if last == ".." || last == "" {
		return unix.EBUSY
	}
	d, err := root.Open(path.Clean("./" + dir))
	if err != nil {
		return err
	}
	defer d.Close() //nolint:errcheck // only looked through
	// A slash at the end asks for a folder, which the kernel checks.
	return do(int(d.Fd()), last+name[len(trimmed):])
}
