//go:build linux

package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

// kernelFS are file systems that speak for the kernel rather than hold a
// caller's files. A mount of one would hand the guest what its masked paths
// keep from it.
var kernelFS = []int64{
	unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC,
	unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, unix.BPF_FS_MAGIC,
	unix.DEVPTS_SUPER_MAGIC, unix.NSFS_MAGIC, unix.PSTOREFS_MAGIC, unix.EFIVARFS_MAGIC, unix.BINDERFS_SUPER_MAGIC,
}

// reserved are the targets that belong to the tier's own layout.
var reserved = []string{"/proc", "/sys", "/dev", "/etc/resolv.conf", "/etc/hosts"}

// checkMounts refuses what no box may show its guest. One mount in another
// is refused since its mount point would have to be made in the caller's
// folder.
func checkMounts(ms []sandbox.Mount) error {
	for _, m := range ms {
		if err := checkMount(m); err != nil {
			return err
		}
		for _, other := range ms {
			if strings.HasPrefix(other.Target, m.Target+"/") {
				return fmt.Errorf("%w: mount target %.200q lies in another's", sandbox.ErrInvalid, other.Target)
			}
		}
	}
	return nil
}

func checkMount(m sandbox.Mount) error {
	for _, r := range reserved {
		if m.Target == r || strings.HasPrefix(m.Target, r+"/") || strings.HasPrefix(r, m.Target+"/") {
			return fmt.Errorf("%w: mount target %.200q is reserved", sandbox.ErrInvalid, m.Target)
		}
	}
	if strings.HasPrefix(guestHome, m.Target+"/") {
		return fmt.Errorf("%w: mount target %.200q would hide %s", sandbox.ErrInvalid, m.Target, guestHome)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(m.Source.Fd()), &st); err != nil {
		return fmt.Errorf("%w: mount %.200q: %w", sandbox.ErrInvalid, m.Target, err)
	}
	if k := st.Mode & unix.S_IFMT; k != unix.S_IFDIR && k != unix.S_IFREG {
		return fmt.Errorf("%w: mount %.200q is neither a folder nor a regular file", sandbox.ErrInvalid, m.Target)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(m.Source.Fd()), &fs); err != nil {
		return fmt.Errorf("%w: mount %.200q: %w", sandbox.ErrInvalid, m.Target, err)
	}
	if slices.Contains(kernelFS, int64(fs.Type)) {
		return fmt.Errorf("%w: mount %.200q is a kernel file system", sandbox.ErrInvalid, m.Target)
	}
	return nil
}

// stage attaches a copy of the caller's mount at dir, where the runtime can
// name it: only the mount that the descriptor is on (nothing mounted below it
// comes along), with the caller's ids mapped to the guest's user, and
// read-only unless asked. The attributes are set before it has a name.
func stage(m sandbox.Mount, dir string, idmap *os.File) (specs.Mount, error) {
	const flags = unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH
	fd, err := unix.OpenTree(int(m.Source.Fd()), "", flags)
	if err != nil {
		return specs.Mount{}, fmt.Errorf("mount %.200q: copy: %w", m.Target, err)
	}
	tree := os.NewFile(uintptr(fd), "mount")
	defer tree.Close() //nolint:errcheck // the attached mount outlives it
	attr := &unix.MountAttr{
		Attr_set:    unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_IDMAP,
		Propagation: unix.MS_PRIVATE, Userns_fd: uint64(idmap.Fd()),
	}
	options := []string{"bind", "nosuid", "nodev"}
	if m.ReadWrite {
		options = append(options, "rw")
	} else {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
		options = append(options, "ro")
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, attr); err != nil {
		return specs.Mount{}, fmt.Errorf("mount %.200q: map ids: %w", m.Target, err)
	}
	if err := mountPoint(m.Source, dir); err != nil {
		return specs.Mount{}, fmt.Errorf("mount %.200q: %w", m.Target, err)
	}
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return specs.Mount{}, fmt.Errorf("mount %.200q: attach: %w", m.Target, err)
	}
	return specs.Mount{Destination: m.Target, Type: "bind", Source: dir, Options: options}, nil
}

// mountPoint makes what the mount can be attached to: a folder or a file.
func mountPoint(source *os.File, path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(source.Fd()), &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return os.Mkdir(path, 0o700)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// stageAll stages a box's mounts in dir; first is the first of its host ids.
func stageAll(req Request, dir string, first uint32) ([]specs.Mount, error) {
	if len(req.Spec.Mounts) == 0 {
		return nil, nil
	}
	idmap, err := mount.GetUsernsFD(diskIDs(first, req.Owner), diskIDs(first, req.Group, req.Groups...))
	if err != nil {
		return nil, fmt.Errorf("map ids: %w", err)
	}
	defer idmap.Close() //nolint:errcheck // the mounts hold the namespace
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("stage mounts: %w", err)
	}
	var out []specs.Mount
	for i, m := range req.Spec.Mounts {
		sm, err := stage(m, filepath.Join(dir, strconv.Itoa(i)), idmap)
		if err != nil {
			return nil, err
		}
		out = append(out, sm)
	}
	return out, nil
}

// unstage detaches whatever is attached in dir and removes the folder. It is also
// what Collect does for an engine that died.
func unstage(dir string) error {
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("unstage mounts: %w", err)
	}
	var errs []error
	for _, e := range entries {
		p := filepath.Join(dir, e.Name())
		for {
			err := unix.Unmount(p, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
			if errors.Is(err, unix.EINVAL) {
				break // no mount (any more)
			}
			if err != nil {
				return fmt.Errorf("unstage %s: %w", p, err)
			}
		}
		// Never RemoveAll: were a mount still there, it would empty it.
		errs = append(errs, os.Remove(p))
	}
	return errors.Join(append(errs, os.Remove(dir))...)
}

// maxGroups bounds how many of a caller's further groups are mapped: the
// kernel takes 340 ranges.
const maxGroups = 256

// diskIDs writes a mapping with the ids on disk on the left and the ids of the
// running box, whose first is given, on the right: the caller is the guest's
// user. The second pair is for gVisor, which makes a file as the box's root
// before it gives it away; on disk that is an id that nobody else has. The
// rest become ids that nobody in the guest is: gVisor opens a file by a
// capability, which reaches no file whose group the box cannot name.
func diskIDs(first, caller uint32, further ...uint32) string {
	const furtherBase = guestUID - 1 // downwards from here
	m := fmt.Sprintf("%d:%d:1,%d:%d:1", caller, first+guestUID, first, first)
	mapped := map[uint32]bool{caller: true, first: true}
	for _, id := range further {
		if mapped[id] || len(mapped) > maxGroups {
			continue
		}
		m += fmt.Sprintf(",%d:%d:1", id, first+furtherBase-uint32(len(mapped)))
		mapped[id] = true
	}
	return m
}
