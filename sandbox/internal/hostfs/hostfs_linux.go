package hostfs

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
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

// HoldsData reports whether the descriptor lies on a file system that holds
// data; the error says which one it is otherwise.
func HoldsData(fd int) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return fmt.Errorf("its file system: %w", err)
	}
	if mountable[uint32(fs.Type)] == "" {
		return fmt.Errorf("file system type %#x holds no data to show", uint32(fs.Type))
	}
	return nil
}

// MountID names the mount that an open file lies in (statx, Linux 5.8), which
// tells a nested mount from its surroundings where device numbers may not.
func MountID(f *os.File) (uint64, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var st unix.Statx_t
	var serr error
	if err := raw.Control(func(fd uintptr) {
		serr = unix.Statx(int(fd), "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st)
	}); err != nil {
		return 0, err
	}
	if serr != nil {
		return 0, os.NewSyscallError("statx", serr)
	}
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return 0, fmt.Errorf("the kernel does not say which mount a file lies in: Linux 5.8 or later is needed")
	}
	return st.Mnt_id, nil
}
