//go:build linux

package wasm_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox/wasm"
)

// probeArgument makes the test binary a process that locks itself down and
// then tries everything.
const probeArgument = "sandboxd-wasm-probe"

// probeMain runs in that process. It reports what each attempt came to, in
// three stages: not locked down, while loading, while running.
func probeMain() {
	if len(os.Args) != 4 || os.Args[1] != probeArgument {
		return
	}
	cache, victim := os.Args[2], os.Args[3]
	report := map[string]map[string]string{"before": attemptAll(cache, victim)}
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	fail(wasm.LockDown(cache))
	report["loading"] = attemptAll(cache, victim)
	fail(wasm.LockDownFurther())
	report["running"] = attemptAll(cache, victim)
	fail(json.NewEncoder(os.Stdout).Encode(report))
	os.Exit(0)
}

// attemptAll tries everything on several threads: a filter that only one
// thread had would show.
func attemptAll(cache, victim string) map[string]string {
	merged := map[string]string{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for name, err := range attempts(cache, victim) {
				text := "works"
				if err != nil {
					text = err.Error()
				}
				mu.Lock()
				if merged[name] != "works" {
					merged[name] = text
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return merged
}

func call0(n uintptr, a ...uintptr) error {
	var p [6]uintptr
	copy(p[:], a)
	_, _, e := unix.RawSyscall6(n, p[0], p[1], p[2], p[3], p[4], p[5])
	if e != 0 {
		return e
	}
	return nil
}

func opens(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
	if err == nil {
		err = unix.Close(fd)
	}
	return err
}

func socket(domain, kind int) error {
	fd, err := unix.Socket(domain, kind, 0)
	if err == nil {
		err = unix.Close(fd)
	}
	return err
}

// attempts lists what a hostile guest that has taken over its worker would
// try.
func attempts(cache, victim string) map[string]error {
	zero := uintptr(0)
	path, _ := unix.BytePtrFromString("/bin/true")
	p := uintptr(unsafe.Pointer(path))
	var fds [2]int32
	exec := func() error {
		b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err == nil {
			err = unix.Munmap(b)
		}
		return err
	}
	remap := func() error {
		b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return err
		}
		return errors.Join(unix.Mprotect(b, unix.PROT_READ|unix.PROT_EXEC), unix.Munmap(b))
	}
	return map[string]error{
		"socket inet":      socket(unix.AF_INET, unix.SOCK_STREAM),
		"socket inet6 udp": socket(unix.AF_INET6, unix.SOCK_DGRAM),
		"socket unix":      socket(unix.AF_UNIX, unix.SOCK_STREAM),
		"socket netlink":   socket(unix.AF_NETLINK, unix.SOCK_RAW),
		"socketpair":       call0(unix.SYS_SOCKETPAIR, unix.AF_UNIX, unix.SOCK_STREAM, 0, uintptr(unsafe.Pointer(&fds))),
		"read cache":       opens(filepath.Join(cache, "code"), unix.O_RDONLY),
		"write cache":      opens(filepath.Join(cache, "code"), unix.O_RDWR),
		"add to cache":     opens(filepath.Join(cache, "new"), unix.O_WRONLY|unix.O_CREAT),
		"read a file":      opens(victim, unix.O_RDONLY),
		"write a file":     opens(victim, unix.O_RDWR),
		"list root":        opens("/", unix.O_RDONLY|unix.O_DIRECTORY),
		"list proc":        opens("/proc", unix.O_RDONLY|unix.O_DIRECTORY),
		"read environment": opens("/proc/self/environ", unix.O_RDONLY),
		"openat2":          call0(unix.SYS_OPENAT2, ^uintptr(99), p, zero, 24),
		"execve":           call0(unix.SYS_EXECVE, zero, zero, zero),
		"execveat":         call0(unix.SYS_EXECVEAT, zero, zero, zero, zero, 0),
		"kill parent":      unix.Kill(os.Getppid(), 0),
		"tgkill parent":    unix.Tgkill(os.Getppid(), os.Getppid(), 0),
		"pidfd_open":       call0(unix.SYS_PIDFD_OPEN, uintptr(os.Getppid()), 0),
		"ptrace":           call0(unix.SYS_PTRACE, unix.PTRACE_PEEKDATA, uintptr(os.Getppid()), 0),
		"process_vm_readv": call0(unix.SYS_PROCESS_VM_READV, uintptr(os.Getppid()), 0, 0, 0, 0),
		"unshare":          unix.Unshare(0),
		"setns":            call0(unix.SYS_SETNS, 0, 0),
		"mount":            unix.Mount("", "", "", 0, ""),
		"chroot":           unix.Chroot(""),
		"unlink":           unix.Unlink(victim + ".none"),
		"rename":           unix.Rename(victim, victim),
		"chmod":            unix.Chmod(victim, 0o600),
		"fchmod":           unix.Fchmod(0, 0o666),
		"stat":             func() error { var st unix.Stat_t; return unix.Stat(victim, &st) }(),
		"bpf":              call0(unix.SYS_BPF, 0, 0, 0),
		"perf_event_open":  call0(unix.SYS_PERF_EVENT_OPEN, 0, 0, 0, 0, 0),
		"io_uring_setup":   call0(unix.SYS_IO_URING_SETUP, 0, 0),
		"userfaultfd":      call0(unix.SYS_USERFAULTFD, 0),
		"keyctl":           call0(unix.SYS_KEYCTL, 0, 0, 0),
		"memfd_create":     call0(unix.SYS_MEMFD_CREATE, p, 0),
		"setuid":           call0(unix.SYS_SETUID, uintptr(os.Getuid())),
		"executable mmap":  exec(),
		"executable remap": remap(),
		"prctl":            call0(unix.SYS_PRCTL, unix.PR_GET_DUMPABLE),
	}
}

// TestWorkerLockdown tries from native code what a worker must not be able to
// do, on many threads at once.
func TestWorkerLockdown(t *testing.T) {
	dir := t.TempDir()
	cache, victim := filepath.Join(dir, "cache"), filepath.Join(dir, "victim")
	if err := os.Mkdir(cache, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{victim, filepath.Join(cache, "code")} {
		if err := os.WriteFile(p, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("/proc/self/exe", probeArgument, cache, victim)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var report map[string]map[string]string
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatal(err)
	}
	loading := map[string]bool{"read cache": true, "executable mmap": true, "executable remap": true, "stat": true, "prctl": true}
	for name, got := range report["loading"] {
		if (got == "works") != loading[name] {
			t.Errorf("while loading, %s: %s", name, got)
		}
	}
	for name, got := range report["running"] {
		if got == "works" {
			t.Errorf("while running, %s: %s", name, got)
		}
	}
	// The attempts themselves must be real.
	for _, name := range []string{"socket inet", "socket unix", "socketpair", "read a file", "write cache", "list root", "kill parent", "chmod", "memfd_create", "executable mmap"} {
		if got := report["before"][name]; got != "works" {
			t.Errorf("before the lockdown, %s: %s", name, got)
		}
	}
}
