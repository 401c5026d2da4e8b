//go:build linux

package container

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

// TestNoCoreIsPiped: the kernel hands a crashed process to the host's
// core_pattern program under every limit but 1.
func TestNoCoreIsPiped(t *testing.T) {
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &own); err != nil {
		t.Fatal(err)
	}
	if own.Max == 0 {
		t.Skip("no process here may have a limit of 1")
	}
	req := request()
	req.Spec.Isolation = sandbox.Container
	g := start(t, newHost(t), req)
	for line := range strings.Lines(g.must("read", "/proc/self/limits")) {
		if rest, ok := strings.CutPrefix(line, "Max core file size"); ok {
			if got := strings.Fields(rest); len(got) < 2 || got[0] != "1" || got[1] != "1" {
				t.Errorf("limits on core files are %v, want 1 and 1", got)
			}
			return
		}
	}
	t.Error("no limit on core files to be seen")
}
