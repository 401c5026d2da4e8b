//go:build linux

package engine

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

// mountable lists the file systems whose folders and files may be shown to a
// guest: those that hold data. Everything else (proc, sysfs, cgroup, bpf,
// debugfs, devpts, …) is an interface to the kernel and is refused, as is any
// that a later kernel adds.
var mountable = map[uint32]string{
	unix.EXT4_SUPER_MAGIC: "ext", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs",
	unix.F2FS_SUPER_MAGIC: "f2fs", unix.TMPFS_MAGIC: "tmpfs", unix.RAMFS_MAGIC: "ramfs",
	unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.SQUASHFS_MAGIC: "squashfs", unix.EROFS_SUPER_MAGIC_V1: "erofs",
	unix.ISOFS_SUPER_MAGIC: "iso9660", unix.MSDOS_SUPER_MAGIC: "vfat", unix.EXFAT_SUPER_MAGIC: "exfat",
	unix.NFS_SUPER_MAGIC: "nfs", unix.V9FS_MAGIC: "9p", unix.ECRYPTFS_SUPER_MAGIC: "ecryptfs",
	unix.FUSE_SUPER_MAGIC: "fuse", unix.CIFS_SUPER_MAGIC: "cifs", unix.SMB2_SUPER_MAGIC: "smb2",
	0x2fc12fc1: "zfs", 0xca451a4e: "bcachefs", 0x5346544e: "ntfs", 0x7366746e: "ntfs3",
}

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
		var fs unix.Statfs_t
		if err := unix.Fstatfs(fd, &fs); err != nil {
			return refuse("its file system: %v", err)
		}
		if mountable[uint32(fs.Type)] == "" {
			return refuse("file system type %#x holds no data to show", uint32(fs.Type))
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
