package main

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const mountHelper = "SANDBOXD_TEST_MOUNT"

// TestMountsAreAskedFirst: a folder that this user may not read or write is
// refused before anything is built for it.
func TestMountsAreAskedFirst(t *testing.T) {
	if dir := os.Getenv(mountHelper); dir != "" {
		for source, says := range map[string]string{"shut": "may not read", "fixed": "may not write"} {
			_, _, err := openMounts([]mountSpec{{source: filepath.Join(dir, source), target: "/m", readWrite: true}})
			var usage usageError
			if !errors.As(err, &usage) || !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v", source, err)
			}
		}
		_, closeAll, err := openMounts([]mountSpec{{source: filepath.Join(dir, "fixed"), target: "/m"}})
		if err != nil {
			t.Fatal(err)
		}
		closeAll()
		return
	}
	if os.Getuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	dir := t.TempDir()
	for d := dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]os.FileMode{"shut": 0o700, "fixed": 0o755} {
		if err := os.Mkdir(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = self.Close() }()
	cmd := exec.Command("/proc/self/fd/3", "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.ExtraFiles = []*os.File{self}
	cmd.Dir, cmd.Env = "/", []string{mountHelper + "=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS") {
		t.Errorf("%v\n%s", err, out)
	}
}
