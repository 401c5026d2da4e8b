//go:build linux

package wasm_test

import (
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

// TestPrivateFolders: HOME and /tmp are writable, a guest's own, bounded, and
// gone with it.
func TestPrivateFolders(t *testing.T) {
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		r := newRuntime(t)
		s := spec(t, tier)
		s.Limits.TmpBytes = 64 << 10
		const full = "error: No space left on device"
		exit := runFSIn(t, r, s, [][2]string{
			{"ls /tmp", ""},
			{"write /tmp/a one", "ok"},
			{"append /tmp/a _two", "ok"},
			{"read /tmp/a", "one_two"},
			{"pread /tmp/a", "ne_"},
			{"truncate /tmp/a", "ok"},
			{"read /tmp/a", "on"},
			{"stat /tmp/a", "2 ----------"},
			{"touch /tmp/a", "2001-09-09T01:46:40Z"},
			{"mkdir /home/mcp/.config", "ok"},
			{"write /home/mcp/.config/b x", "ok"},
			{"ls /home/mcp", ".config/"},
			{"mv /home/mcp/.config /home/mcp/moved", "ok"},
			{"mv /home/mcp/moved /home/mcp/moved/x", "error: Invalid argument"},
			{"read /home/mcp/moved/b", "x"},
			{"rm /home/mcp/moved", "error: Directory not empty"},
			{"rmall /home/mcp/moved", "ok"},
			{"stat /home/mcp/moved", "error: No such file or directory"},
			{"mv /tmp/a /home/mcp/a", "error: Cross-device link"},
			{"kept /tmp/gone still", "still"},
			{"fill /tmp/big 40", "ok"},
			{"fill /tmp/more 40", full},
			{"fill /home/mcp/more 40", "ok"},
			{"rm /tmp/big", "ok"},
			{"fill /tmp/more 40", "ok"},
			{"fill /tmp/more 40", "ok"},
			{"symlink /etc/passwd /tmp/l", "error: Not supported"},
			{"read /tmp/../etc/passwd", "error: Bad file number"},
			{"read /home/other", "error: Bad file number"},
			{"write /tmp/b/ x", "error: Is a directory"},
			{"ls /tmp/a/", "error: Not a directory"},
		})
		if exit.PeakTmpBytes < 80<<10 || exit.PeakTmpBytes > 128<<10 {
			t.Errorf("a peak of %d bytes", exit.PeakTmpBytes)
		}
		runFSIn(t, r, s, [][2]string{{"ls /tmp", ""}, {"ls /home/mcp", ""}})
	})
}

// TestPrivateFoldersAreNotShared: two guests of one tenant and module, and so
// of one worker, do not see each other's files. A mount of the caller's takes
// the place of the guest's own.
func TestPrivateFoldersAreNotShared(t *testing.T) {
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		r := newRuntime(t)
		holder := spec(t, tier, "hold", "/tmp/secret")
		first := start(t, r, holder, nil)
		first.expect("ready")
		runFSIn(t, r, spec(t, tier), [][2]string{{"read /tmp/secret", "error: No such file or directory"}, {"ls /tmp", ""}})
		inside, _ := tree(t)
		s := spec(t, tier)
		s.Mounts = []sandbox.Mount{mount(t, inside, "/tmp", false)}
		runFSIn(t, r, s, [][2]string{{"read /tmp/a.txt", "alpha"}, {"write /tmp/x y", "error: Read-only file system"}, {"write /home/mcp/x y", "ok"}})
	})
}
