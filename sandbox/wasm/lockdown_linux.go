package wasm

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/landlock-lsm/go-landlock/landlock"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// lockDown takes from this process all that a worker does not need, before it
// reads anything that a stranger wrote: every path but the cache folder
// (readable), every new socket, process, signal to others and capability. It
// cannot be undone.
func lockDown(cacheDir string) error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("core limit: %w", err)
	}
	rule := landlock.RODirs(cacheDir)
	// The first layer must hold, whatever the kernel's version; the second adds
	// what later versions know (network, devices, signals).
	if err := landlock.V1.Restrict(rule); err != nil {
		return fmt.Errorf("landlock: %w", err)
	}
	if err := landlock.V11.BestEffort().Restrict(rule); err != nil {
		return fmt.Errorf("landlock: %w", err)
	}
	if err := dropCapabilities(); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("dumpable: %w", err)
	}
	if err := loadFilter(append(loadingCalls(), runningCalls()...), loadingConditions()); err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	return proveLocked()
}

// proveLocked tries what must now fail: a filter that only some threads got
// would otherwise go unnoticed.
func proveLocked() error {
	if fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); err == nil {
		return errors.Join(errors.New("seccomp: a socket could still be made"), unix.Close(fd))
	}
	if fd, err := unix.Open("/", unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
		return errors.Join(errors.New("landlock: a folder could still be opened"), unix.Close(fd))
	}
	return nil
}

// lockDownFurther follows once the module is loaded: no path is opened and no
// code becomes executable from here on.
func lockDownFurther() error {
	if err := loadFilter(runningCalls(), runningConditions()); err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	return nil
}

// dropCapabilities empties all three sets of every thread.
func dropCapabilities() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	_, _, e := psx.Syscall3(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&none)), 0) //nolint:gosec // the call reads both
	runtime.KeepAlive(&head)
	if e != 0 {
		return e
	}
	return nil
}

func loadFilter(names []string, conditional []seccomp.NameWithConditions) error {
	// Some older calls are missing on newer kinds of machine.
	info, err := arch.GetInfo("")
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(names, func(n string) bool { _, ok := info.SyscallNames[n]; return !ok })
	return seccomp.LoadFilter(seccomp.Filter{
		NoNewPrivs: true,
		Flag:       seccomp.FilterFlagTSync,
		Policy: seccomp.Policy{
			// What is not listed fails, it does not kill: the Go runtime tries
			// calls that it can do without.
			DefaultAction: seccomp.ActionErrno,
			Syscalls: []seccomp.SyscallGroup{
				// The C library falls back to clone only if this does not exist.
				{Action: seccomp.ActionErrno | seccomp.Action(unix.ENOSYS), Names: []string{"clone3"}},
				{Action: seccomp.ActionAllow, Names: names, NamesWithCondtions: conditional},
			},
		},
	})
}

// loadingCalls are needed only until the module is loaded.
func loadingCalls() []string {
	return []string{"openat", "newfstatat", "seccomp", "prctl"}
}

// runningCalls are what the Go runtime and the host functions use on
// descriptors that the worker already has.
func runningCalls() []string {
	return []string{
		// memory
		"brk", "madvise", "munmap", "mincore",
		// threads and time; clone is conditional
		"clock_gettime", "clock_nanosleep", "exit", "exit_group", "futex", "getpid", "gettid", "getrandom", "gettimeofday",
		"nanosleep", "restart_syscall", "rseq", "sched_getaffinity", "sched_yield", "set_robust_list",
		"rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack",
		// descriptors
		"close", "dup3", "epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_wait", "eventfd2", "fcntl",
		"fdatasync", "fstat", "fsync", "ftruncate", "getdents64", "lseek", "pipe2",
		"pread64", "pwrite64", "read", "readv", "write", "writev",
		// sockets that were handed over; none can be made, bound or connected
		"getpeername", "getsockname", "getsockopt", "recvfrom", "recvmsg", "sendmsg", "sendto", "shutdown",
	}
}

// bothConditions is what either filter allows under a condition.
func bothConditions() []seccomp.NameWithConditions {
	self := uint64(unix.Getpid())
	return []seccomp.NameWithConditions{
		// Threads, not processes.
		{Name: "clone", Conditions: seccomp.ArgumentConditions{{Argument: 0, Operation: seccomp.BitsSet, Value: unix.CLONE_THREAD}}},
		// The runtime preempts its own threads with signals.
		{Name: "tgkill", Conditions: seccomp.ArgumentConditions{{Argument: 0, Operation: seccomp.Equal, Value: self}}},
	}
}

func loadingConditions() []seccomp.NameWithConditions {
	// Loading makes compiled code executable.
	always := seccomp.ArgumentConditions{{Argument: 2, Operation: seccomp.LessOrEqual, Value: unix.PROT_READ | unix.PROT_WRITE | unix.PROT_EXEC}}
	return append(bothConditions(),
		seccomp.NameWithConditions{Name: "mmap", Conditions: always},
		seccomp.NameWithConditions{Name: "mprotect", Conditions: always})
}

func runningConditions() []seccomp.NameWithConditions {
	noExec := seccomp.ArgumentConditions{{Argument: 2, Operation: seccomp.BitsNotSet, Value: unix.PROT_EXEC}}
	return append(bothConditions(),
		seccomp.NameWithConditions{Name: "mmap", Conditions: noExec},
		seccomp.NameWithConditions{Name: "mprotect", Conditions: noExec})
}
