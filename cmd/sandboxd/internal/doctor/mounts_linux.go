package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// mapBase is where the trial maps root to: the same range as sandboxes get.
const mapBase = 1879048192

// newUserNS makes a user namespace and returns a descriptor of it. The process
// that carries it is stopped before it runs a single instruction, then killed.
func newUserNS(hostID int) (*os.File, error) {
	var ns *os.File
	err := onThread(func() error { // the tracer is a thread
		ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: hostID, Size: 1}}
		p, err := os.StartProcess("/proc/self/exe", []string{"sandboxd-doctor"}, &os.ProcAttr{
			Env: []string{},
			Sys: &syscall.SysProcAttr{
				Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids,
				Ptrace: true, Pdeathsig: syscall.SIGKILL,
			},
		})
		if err != nil {
			return err
		}
		var openErr error
		ns, openErr = os.Open("/proc/" + strconv.Itoa(p.Pid) + "/ns/user")
		err = errors.Join(openErr, p.Kill())
		for { // a traced child reports its stop first
			var ws unix.WaitStatus
			_, waitErr := unix.Wait4(p.Pid, &ws, unix.WALL, nil)
			if errors.Is(waitErr, unix.EINTR) || waitErr == nil && ws.Stopped() {
				continue
			}
			return errors.Join(err, waitErr)
		}
	})
	return ns, err
}

func userNamespaces(context.Context) Check {
	host := mapBase
	if os.Geteuid() != 0 {
		host = os.Geteuid() // all that an ordinary user may map
	}
	ns, err := newUserNS(host)
	if err != nil {
		next := "raise user.max_user_namespaces with sysctl"
		if os.Geteuid() != 0 {
			next = "only the engine needs them: run sudo sandboxd doctor for its answer"
			return warn("refused to this user: "+err.Error(), next)
		}
		return fail(err.Error(), next)
	}
	_ = ns.Close()
	return ok("one was made, with ids mapped")
}

// idMapped maps the ids of a mount and looks whether the files' owner changes,
// since old kernels and file systems accept and ignore much.
func (c Config) idMapped(context.Context) Check {
	if os.Geteuid() != 0 {
		return rootOnly()
	}
	base := c.Dir
	if base == "" {
		base = os.TempDir()
	}
	dir, err := os.MkdirTemp(base, "sandboxd-doctor-")
	if err != nil {
		return failed("a folder for the trial", err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // what cannot go is a temporary file
	ns, err := newUserNS(mapBase)
	if err != nil {
		return failed("a user namespace for the trial", err)
	}
	defer ns.Close() //nolint:errcheck // only read from
	owner, err := mappedOwner(dir, ns)
	switch {
	case err != nil:
		return fail(base+": "+err.Error(), "keep mounts on ext4, xfs, btrfs or tmpfs, Linux 5.19 or later")
	case owner != mapBase:
		return fail(fmt.Sprintf("%s: the mount was mapped, yet its owner is %d", base, owner), "keep mounts on another file system")
	}
	return ok("a mount on " + base + " was mapped and its owner with it")
}

func mappedOwner(dir string, ns *os.File) (uint32, error) {
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return 0, fmt.Errorf("open_tree: %w", err)
	}
	defer unix.Close(tree) //nolint:errcheck // the mount goes with it, or with us
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return 0, fmt.Errorf("mount_setattr: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(tree, &st); err != nil {
		return 0, err
	}
	return st.Uid, nil
}

// overlay mounts one in a mount namespace that goes with its thread.
func overlay(context.Context) Check {
	if os.Geteuid() != 0 {
		c := rootOnly()
		if data, err := os.ReadFile("/proc/filesystems"); err == nil && strings.Contains(string(data), "\toverlay\n") {
			c.Detail = "known to the kernel; " + c.Detail
		}
		return c
	}
	dir, err := os.MkdirTemp("", "sandboxd-doctor-")
	if err != nil {
		return failed("a folder for the trial", err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // what cannot go is a temporary file
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("a mount namespace: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("private mounts: %w", err)
		}
		// On a tmpfs, so that the answer is not that of what lies below.
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=1m"); err != nil {
			return fmt.Errorf("tmpfs: %w", err)
		}
		at := func(name string) string { return filepath.Join(dir, name) }
		for _, name := range []string{"lower", "upper", "work", "merged"} {
			if err := os.Mkdir(at(name), 0o700); err != nil {
				return err
			}
		}
		if err := os.WriteFile(at("lower/file"), nil, 0o600); err != nil {
			return err
		}
		options := "lowerdir=" + at("lower") + ",upperdir=" + at("upper") + ",workdir=" + at("work")
		if err := unix.Mount("overlay", at("merged"), "overlay", 0, options); err != nil {
			return fmt.Errorf("mount: %w", err)
		}
		_, err := os.Stat(at("merged/file"))
		return err
	})
	if err != nil {
		return fail(err.Error(), "load the kernel's module: modprobe overlay")
	}
	return ok("one was mounted")
}
