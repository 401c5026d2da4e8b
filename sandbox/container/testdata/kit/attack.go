package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// attacks each try one thing that no guest may do. What works returns no
// error; the words that it returns are its proof, where the attacker has one.
var attacks = map[string]func(args []string) (string, error){
	"attack host file": hostFile, "attack memory": foreignMemory, "attack sysctl": sysctl, "attack core pattern": corePattern,
	"attack release agent": releaseAgent, "attack mount": mountTmpfs, "attack remount": remount, "attack ptrace": ptrace,
	"attack device": device, "attack memory device": memoryDevice, "attack kernel log": kernelLog, "attack keyring": keyring,
	"attack unix socket": unixSocket, "attack netlink": netlink, "attack interface": interfaceDown,
	"attack socket": socketOf, "attack user namespace": userNamespace, "attack hard link": hardLink,
	"attack descriptors": descriptors, "attack set-uid": setUID, "attack set-uid file": setUIDFile,
	"attack core dump": coreDump, "attack clock": clock, "attack host name": hostName, "attack cgroup": ownCgroup,
	"inodes": inodes, "close stdin": closeStdin,
}

var errNothing = errors.New("nothing found")

// hostFile looks for a file of the host's by every way that a path can take.
func hostFile(args []string) (string, error) {
	up := strings.Repeat("/..", 12)
	ways := []string{"", "/proc/1/root", "/proc/1/cwd" + up, "/proc/self/root" + up, "/proc/self/cwd" + up, "/data/rw" + up, "/dev/fd/0" + up}
	more, err := filepath.Glob("/proc/[0-9]*/root")
	if err != nil {
		return "", err
	}
	for _, w := range append(ways, more...) {
		if b, err := os.ReadFile(w + args[0]); err == nil {
			return string(b), nil
		}
	}
	return "", errNothing
}

// foreignMemory looks for a token in the memory of other kits: their
// environment, and what their stacks hold.
func foreignMemory(args []string) (string, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return "", err
	}
	for _, d := range dirs {
		line, err := os.ReadFile(d + "/cmdline")
		if err != nil || !strings.HasPrefix(string(line), "/kit") || filepath.Base(d) == strconv.Itoa(os.Getpid()) {
			continue
		}
		if b, err := os.ReadFile(d + "/environ"); err == nil && bytes.Contains(b, []byte(args[0])) {
			return "environment of " + d, nil
		}
		if bytes.Contains(stackOf(d), []byte(args[0])) {
			return "stack of " + d, nil
		}
	}
	return "", errNothing
}

func stackOf(proc string) []byte {
	maps, err := os.ReadFile(proc + "/maps")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		if !strings.Contains(line, "[stack]") {
			continue
		}
		if n, _ := fmt.Sscanf(line, "%x-%x", &from, &to); n != 2 {
			continue
		}
		f, err := os.Open(proc + "/mem")
		if err != nil {
			return nil
		}
		defer f.Close()
		b := make([]byte, to-from)
		n, _ := f.ReadAt(b, from)
		return b[:n]
	}
	return nil
}

func sysctl([]string) (string, error) {
	const p = "/proc/sys/net/ipv4/ip_default_ttl" // of the own network namespace
	if err := os.WriteFile(p, []byte("63"), 0); err != nil {
		return "", err
	}
	b, err := os.ReadFile(p)
	if err == nil && string(bytes.TrimSpace(b)) != "63" {
		err = errNothing
	}
	return "", err
}

// corePattern only opens it: its content is the whole host's.
func corePattern([]string) (string, error) {
	f, err := os.OpenFile("/proc/sys/kernel/core_pattern", os.O_WRONLY, 0)
	if err != nil {
		return "", err
	}
	return "", f.Close()
}

// releaseAgent has the host's kernel run a program as the host's root, by a
// cgroup hierarchy of its own making.
func releaseAgent(args []string) (out string, err error) {
	const dir = "/tmp/hierarchy"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if err := syscall.Mount("none", dir, "cgroup", 0, "none,name=sandboxd-kit"); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, syscall.Unmount(dir, 0)) }()
	group := dir + "/group"
	child := exec.Command("/kit", "sleep")
	if err := errors.Join(os.WriteFile(dir+"/release_agent", []byte(args[0]), 0), os.Mkdir(group, 0o755),
		os.WriteFile(group+"/notify_on_release", []byte("1"), 0), child.Start()); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.Remove(group)) }()
	err = os.WriteFile(group+"/cgroup.procs", []byte(strconv.Itoa(child.Process.Pid)), 0)
	_ = child.Process.Kill()
	_ = child.Wait()
	if err != nil {
		return "", err
	}
	for range 100 { // the kernel's helper is nobody's child here
		if _, err := os.Stat(args[1]); err == nil {
			return "ran", nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return "armed", nil
}

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

func unixSocket(args []string) (string, error) {
	c, err := net.DialTimeout("unix", args[0], 5*time.Second)
	if err != nil {
		return "", err
	}
	return "", c.Close()
}

func socketOf(args []string) (string, error) {
	var n [3]int
	for i := range n {
		n[i], _ = strconv.Atoi(args[i])
	}
	fd, err := syscall.Socket(n[0], n[1], n[2])
	if err != nil {
		return "", err
	}
	return "", syscall.Close(fd)
}

// netlink tries the families that are not about routes.
func netlink([]string) (string, error) {
	var errs []error
	for _, family := range []int{syscall.NETLINK_NETFILTER, syscall.NETLINK_AUDIT, syscall.NETLINK_KOBJECT_UEVENT, syscall.NETLINK_GENERIC, syscall.NETLINK_XFRM} {
		fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW, family)
		if err == nil {
			return strconv.Itoa(family), syscall.Close(fd)
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

// interfaceDown changes the own loopback, for which it takes a capability.
func interfaceDown([]string) (string, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM, 0)
	if err != nil {
		return "", err
	}
	defer syscall.Close(fd)
	request := struct {
		name [16]byte
		mtu  int32
		_    [20]byte
	}{mtu: 1400}
	copy(request.name[:], "lo")
	return kernelCall(syscall.SYS_IOCTL, uintptr(fd), syscall.SIOCSIFMTU, uintptr(unsafe.Pointer(&request)), 0)
}

func userNamespace([]string) (string, error) {
	child := exec.Command("/kit", "noop")
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	return "", child.Run()
}

// hardLink gives a file of one mount a name in another, where it can be
// written.
func hardLink([]string) (string, error) {
	const to = "/data/rw/hard-link"
	if err := os.Link("/data/ro/file", to); err != nil {
		return "", err
	}
	defer os.Remove(to)
	return "", os.WriteFile(to, []byte("changed by its other name"), 0)
}

// descriptors looks for a way out among the open descriptors, the own ones or,
// with a second argument, those of a child that is given that folder.
func descriptors(args []string) (string, error) {
	child := exec.Command("/proc/self/exe", "scan", args[0])
	for fd := 3; fd < 64; fd++ {
		if dup, err := syscall.Dup(fd); err == nil {
			child.ExtraFiles = append(child.ExtraFiles, os.NewFile(uintptr(dup), "own"))
		}
	}
	if len(args) > 1 {
		f, err := os.Open(args[1])
		if err != nil {
			return "", err
		}
		child.ExtraFiles = append(child.ExtraFiles, f)
	}
	b, err := child.Output()
	for _, f := range child.ExtraFiles {
		f.Close()
	}
	return string(b), err
}

func scan(path string) int {
	up := strings.Repeat("../", 12)
	for fd := 3; fd < 128; fd++ {
		for _, p := range []string{up + path, filepath.Base(path)} {
			found, err := syscall.Openat(fd, p, syscall.O_RDONLY, 0)
			if err != nil {
				continue
			}
			b, err := io.ReadAll(os.NewFile(uintptr(found), p))
			if err == nil {
				os.Stdout.Write(b)
				return 0
			}
		}
	}
	return 1
}

// setUID runs a program of root's whose mode says set-uid.
func setUID([]string) (string, error) {
	b, err := exec.Command("/kit", "ids").Output()
	if err == nil && strings.TrimSpace(string(b)) != "0" {
		err = fmt.Errorf("it ran as %s", bytes.TrimSpace(b))
	}
	return "", err
}

func setUIDFile([]string) (string, error) {
	const p = "/data/rw/set-uid"
	if err := os.WriteFile(p, nil, 0o755); err != nil {
		return "", err
	}
	return "", syscall.Chmod(p, 0o4755)
}

// coreDump has a child die with its core in a writable mount.
func coreDump([]string) (string, error) {
	_ = syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{Cur: 1 << 20, Max: 1 << 20})
	child := exec.Command("/kit", "crash")
	child.Dir, child.Env = "/data/rw", []string{"GOTRACEBACK=crash"}
	var end *exec.ExitError
	if err := child.Run(); !errors.As(err, &end) {
		return "", fmt.Errorf("the child ended well: %w", err)
	}
	if s := end.Sys().(syscall.WaitStatus); !s.CoreDump() {
		return "", fmt.Errorf("no core: %v", end)
	}
	return "", nil
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

// ownCgroup raises the own limits, by whatever of the cgroup's it can see.
func ownCgroup([]string) (string, error) {
	const dir = "/tmp/limits"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if err := syscall.Mount("none", dir, "cgroup", 0, "pids"); err != nil {
		return "", err
	}
	return "", syscall.Unmount(dir, 0)
}

// inodes makes files without content.
func inodes(args []string) (string, error) {
	n, _ := strconv.Atoi(args[1])
	for i := range n {
		fd, err := syscall.Open(args[0]+"/"+strconv.Itoa(i), syscall.O_CREAT|syscall.O_WRONLY, 0o600)
		if err != nil {
			return strconv.Itoa(i), err
		}
		syscall.Close(fd)
	}
	return strconv.Itoa(n), nil
}

func closeStdin([]string) (string, error) { return "", syscall.Close(0) }

// flood writes without end.
func flood(to string) {
	b := bytes.Repeat([]byte("x"), 1<<16) // no line ever ends
	f := os.Stdout
	if to == "err" {
		f = os.Stderr
	}
	for {
		if _, err := f.Write(b); err != nil {
			return
		}
	}
}
