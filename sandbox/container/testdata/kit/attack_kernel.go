package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"
	"unsafe"
)

func mountTmpfs([]string) (string, error) {
	if err := os.MkdirAll("/tmp/mount", 0o755); err != nil {
		return "", err
	}
	if err := syscall.Mount("none", "/tmp/mount", "tmpfs", 0, ""); err != nil {
		return "", err
	}
	return "", syscall.Unmount("/tmp/mount", 0)
}

func remount([]string) (string, error) {
	if err := syscall.Mount("", "/", "", syscall.MS_REMOUNT|syscall.MS_BIND, ""); err != nil {
		return "", err
	}
	return "", os.WriteFile("/remounted", nil, 0o600)
}

func ptrace([]string) (string, error) {
	child := exec.Command("/kit", "sleep")
	if err := child.Start(); err != nil {
		return "", err
	}
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	const seize = 0x4206
	return kernelCall(syscall.SYS_PTRACE, seize, uintptr(child.Process.Pid), 0, 0)
}

func kernelCall(n, a, b, c, d uintptr) (string, error) {
	if _, _, errno := syscall.RawSyscall6(n, a, b, c, d, 0, 0); errno != 0 {
		return "", errno
	}
	return "", nil
}

// node makes a device where a device could work, and opens it.
func node(name string, minor int) (*os.File, error) {
	var errs []error
	for _, dir := range []string{"/dev/", "/", "/tmp/", "/data/rw/"} {
		err := syscall.Mknod(dir+name, syscall.S_IFCHR|0o666, 1<<8|minor)
		if err == nil || errors.Is(err, syscall.EEXIST) {
			f, err := os.OpenFile(dir+name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
			_ = os.Remove(dir + name)
			if err == nil {
				return f, nil
			}
			errs = append(errs, err)
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func device([]string) (string, error) {
	f, err := node("kit-zero", 5)
	if err != nil {
		return "", err
	}
	defer f.Close()
	_, err = io.ReadFull(f, make([]byte, 4))
	return "", err
}

func memoryDevice([]string) (string, error) {
	f, err := node("kit-mem", 1)
	if err != nil {
		f, err = os.Open("/proc/kcore")
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	_, err = f.Read(make([]byte, 4))
	return "", err
}

func kernelLog([]string) (string, error) {
	f, err := node("kit-kmsg", 11)
	if err != nil {
		return "", err
	}
	defer f.Close()
	_, err = f.Read(make([]byte, 8192))
	return "", err
}

func keyring([]string) (string, error) {
	kind, name, data := []byte("user\x00"), []byte("sandboxd-kit\x00"), []byte("x")
	const process = ^uintptr(1) // KEY_SPEC_PROCESS_KEYRING, -2
	_, _, errno := syscall.RawSyscall6(syscall.SYS_ADD_KEY, uintptr(unsafe.Pointer(&kind[0])), uintptr(unsafe.Pointer(&name[0])),
		uintptr(unsafe.Pointer(&data[0])), 1, process, 0)
	if errno != 0 {
		return "", errno
	}
	return "", nil
}

func userNamespace([]string) (string, error) {
	child := exec.Command("/kit", "noop")
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	return "", child.Run()
}

// clock sets the clock's frequency to what it is.
func clock([]string) (string, error) {
	var t syscall.Timex
	if _, err := syscall.Adjtimex(&t); err != nil {
		return "", err
	}
	const frequency = 2
	t.Modes = frequency
	_, err := syscall.Adjtimex(&t)
	return "", err
}

func hostName([]string) (string, error) { return "", syscall.Sethostname([]byte("kit")) }
