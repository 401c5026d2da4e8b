//go:build unix

package gowasm

import (
	"os/exec"
	"syscall"
)

// ownGroup puts the program and its children into a process group that is
// killed as one.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
