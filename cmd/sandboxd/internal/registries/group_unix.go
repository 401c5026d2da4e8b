//go:build unix

package registries

import (
	"os/exec"
	"syscall"
)

// wholeGroup has cancellation end the client's children as well: some clients
// are scripts around others.
func wholeGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
