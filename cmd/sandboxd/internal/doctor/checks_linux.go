package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

func userID() int { return os.Geteuid() }

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

func checks(cfg Config) []trial {
	out := cfg.runtimes()
	if cfg.Engine != "" {
		out = append(out, trial{nameEngine, cfg.engine})
	}
	return append(out,
		trial{nameUserNS, userNamespaces},
		trial{nameIDMap, cfg.idMapped},
		trial{nameCgroups, cgroups},
		trial{nameSeccomp, seccomp},
		trial{nameLandlock, landlock},
		trial{nameNftables, nftablesWork},
		trial{nameOverlay, overlay},
		trial{nameKVM, kvm},
	)
}

// onThread runs f on a thread that is thrown away afterwards, so that f may
// change its namespaces and its rights. The main thread is never taken: the
// process is seen by it.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // not unlocked: the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			err := onThread(f)
			runtime.UnlockOSThread()
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// landlock asks for the version of the kernel's interface.
func landlock(context.Context) Check {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return fail("not in this kernel: "+errno.Error(), "enable it with lsm=landlock,… on the kernel's command line, Linux 5.13 or later")
	}
	return ok("ABI " + strconv.Itoa(int(abi)))
}

// seccomp installs a filter on a thread that ends, and sees whether it bites.
func seccomp(context.Context) Check {
	err := onThread(func() error {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("no_new_privs: %w", err)
		}
		// Refuse getpgid, let all else pass. The architecture does not matter
		// for a filter that only we meet.
		prog := []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_GETPGID, Jf: 1},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOTSUP)},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		}
		fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
		_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&fprog))) //nolint:gosec // the kernel reads it during the call
		runtime.KeepAlive(prog)
		if errno != 0 {
			return fmt.Errorf("a filter cannot be installed: %w", errno)
		}
		if _, err := unix.Getpgid(0); !errors.Is(err, unix.ENOTSUP) {
			return fmt.Errorf("a filter was installed and does not bite: %v", err) //nolint:errorlint // nil is the point
		}
		return nil
	})
	if err != nil {
		return fail(err.Error(), "use a kernel with CONFIG_SECCOMP_FILTER")
	}
	return ok("a filter was installed and it bites")
}

// cgroups makes a group in each hierarchy that limits need, and removes it.
func cgroups(context.Context) Check {
	const top = "/sys/fs/cgroup"
	wanted := []string{"cpu", "memory", "pids"}
	var fs unix.Statfs_t
	if err := unix.Statfs(top, &fs); err != nil {
		return failed(top, err)
	}
	if fs.Type == unix.CGROUP2_SUPER_MAGIC {
		data, err := os.ReadFile(top + "/cgroup.controllers")
		if err != nil {
			return failed("version 2", err)
		}
		have := strings.Fields(string(data))
		for _, c := range wanted {
			if !slices.Contains(have, c) {
				return fail("version 2 without the "+c+" controller", "enable it, or limits cannot be kept")
			}
		}
		if err := tryGroup(top); err != nil {
			return groupFailed("version 2", err)
		}
		return warn("version 2: limits go through the libraries that serve it, and are less tested than on version 1", "")
	}
	for _, c := range wanted {
		if err := tryGroup(top + "/" + c); err != nil {
			return groupFailed("version 1, "+c, err)
		}
	}
	return ok("version 1 with " + strings.Join(wanted, ", "))
}

func tryGroup(parent string) error {
	dir, err := os.MkdirTemp(parent, "sandboxd-doctor-")
	if err != nil {
		return err
	}
	return os.Remove(dir)
}

func groupFailed(what string, err error) Check {
	if os.Geteuid() != 0 && (errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS)) {
		c := rootOnly()
		c.Detail = what + ", " + c.Detail
		return c
	}
	return fail(what+": a group cannot be made: "+err.Error(), "mount the cgroup hierarchies writable")
}

// kvm makes a virtual machine without anything in it.
func kvm(context.Context) Check {
	const getAPIVersion, createVM = 0xae00, 0xae01 // linux/kvm.h
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return absent("absent: no kata, and gVisor runs by systrap")
	case errors.Is(err, os.ErrPermission):
		return untried("", "/dev/kvm may not be opened by this user", "run sudo sandboxd doctor")
	case err != nil:
		return absent(err.Error())
	}
	defer f.Close() //nolint:errcheck // only read from
	v, err := unix.IoctlRetInt(int(f.Fd()), getAPIVersion)
	if err != nil {
		return absent("/dev/kvm does not answer: " + err.Error())
	}
	vm, err := unix.IoctlRetInt(int(f.Fd()), createVM)
	if err != nil {
		return absent("/dev/kvm makes no virtual machine: " + err.Error())
	}
	_ = unix.Close(vm)
	return ok("interface version " + strconv.Itoa(v) + ", a virtual machine was made")
}
