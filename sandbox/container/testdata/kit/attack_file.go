package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

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
