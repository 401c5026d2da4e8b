//go:build linux

package container

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

// A caller of the engine who is not root, and is in no user database; the
// further group is one that the caller is a member of.
const (
	callerUID     = 12345
	callerGID     = 23456
	callerFurther = 34567
)

// byCaller makes the request one of that caller's.
func byCaller(req *Request) {
	req.Owner, req.Group, req.Groups = callerUID, callerGID, []uint32{callerGID, callerFurther}
}

// callerFolder is a folder of the caller's with files of the caller's own,
// one of them in a further group, and one of root's.
func callerFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"mine": 0o600, "grouped": 0o600, "roots": 0o600, "public": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	for p, gid := range map[string]int{"": callerGID, "mine": callerGID, "grouped": callerFurther} {
		if err := os.Chown(filepath.Join(dir, p), callerUID, gid); err != nil {
			t.Fatal(err)
		}
	}
	// Nobody else may even enter: t.TempDir is open to all.
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func openPath(t *testing.T, p string) *os.File {
	t.Helper()
	fd, err := unix.Open(p, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), p)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func TestMounts(t *testing.T) {
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
		ro, rw := callerFolder(t), callerFolder(t)
		nested := filepath.Join(ro, "nested")
		if err := os.Mkdir(nested, 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("mount", "-t", "tmpfs", "tmpfs", nested).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(nested, 0); err != nil {
				t.Error(err)
			}
		})
		if err := os.WriteFile(filepath.Join(nested, "below"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		req := request()
		byCaller(&req)
		req.Spec.Isolation = tier
		req.Spec.Mounts = []sandbox.Mount{
			{Source: openPath(t, ro), Target: "/data/ro"},
			{Source: openPath(t, rw), Target: "/data/rw", ReadWrite: true},
			{Source: openPath(t, filepath.Join(ro, "public")), Target: "/home/mcp/one-file"},
		}
		g := start(t, newHost(t), req)

		for _, dir := range []string{"/data/ro/", "/data/rw/"} {
			if got := g.must("read", dir+"mine"); got != "mine" {
				t.Errorf("%smine: %q", dir, got)
			}
			if got := g.must("stat", dir+"mine"); got != "65532 65532 100600" {
				t.Errorf("%smine is %s", dir, got)
			}
			if got := g.must("read", dir+"grouped"); got != "grouped" {
				t.Errorf("%sgrouped: %q", dir, got)
			}
			if a := g.do("read", dir+"roots"); a.Err != "permission denied" {
				t.Errorf("%sroots: %q, %s", dir, a.Out, a.Err)
			}
			g.must("read", dir+"public")
		}
		if got := g.must("read", "/home/mcp/one-file"); got != "public" {
			t.Errorf("one file: %q", got)
		}
		if a := g.do("append", "/data/ro/mine", "x"); a.Err != "read-only file system" {
			t.Errorf("write through a read-only mount: %q", a.Err)
		}
		if a := g.do("write", "/data/ro/new", "x"); a.Err != "read-only file system" {
			t.Errorf("create through a read-only mount: %q", a.Err)
		}
		if a := g.do("read", "/data/ro/nested/below"); a.Err != "no such file or directory" {
			t.Errorf("a nested mount came along: %q", a.Err)
		}
		g.must("append", "/data/rw/mine", "+")
		g.must("write", "/data/rw/new", "x")
		if a := g.do("append", "/data/rw/public", "x"); a.Err != "permission denied" {
			t.Errorf("write to root's file: %q", a.Err)
		}
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(rw, "new"), &st); err != nil {
			t.Fatal(err)
		}
		if st.Uid != callerUID || st.Gid != callerGID {
			t.Errorf("the new file belongs to %d:%d on the host", st.Uid, st.Gid)
		}
		if b, err := os.ReadFile(filepath.Join(rw, "mine")); err != nil || string(b) != "mine+" {
			t.Errorf("on the host: %q, %v", b, err)
		}
	})
}

// TestMountTricks: links out of a mount lead into the guest's own root, and
// device nodes and setuid files in it are nothing special.
func TestMountTricks(t *testing.T) {
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
		rw := callerFolder(t)
		outside := filepath.Join(t.TempDir(), "outside")
		if err := os.WriteFile(outside, []byte("host's"), 0o644); err != nil {
			t.Fatal(err)
		}
		for link, to := range map[string]string{"abs": outside, "rel": "../../../../../../../../.." + outside, "root": "/", "fd": "/proc/self/root" + outside} {
			if err := os.Symlink(to, filepath.Join(rw, link)); err != nil {
				t.Fatal(err)
			}
		}
		dev := filepath.Join(rw, "zero")
		if err := unix.Mknod(dev, unix.S_IFCHR|0o666, 1<<8|5); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dev, 0o666); err != nil {
			t.Fatal(err)
		}
		req := request()
		byCaller(&req)
		req.Spec.Isolation = tier
		req.Spec.Mounts = []sandbox.Mount{{Source: openPath(t, rw), Target: "/data", ReadWrite: true}}
		g := start(t, newHost(t), req)
		for _, p := range []string{"/data/abs", "/data/rel", "/data/fd", "/data/root" + outside, "/data/.." + outside} {
			if a := g.do("read", p); a.Err == "" {
				t.Errorf("%s: read %q", p, a.Out)
			}
		}
		// gVisor answers with a zero device of its own, and never opens the host's.
		if a := g.do("append", "/data/zero", "x"); a.Err == "" && tier == sandbox.Container {
			t.Error("wrote to a device in a mount")
		}
		if got := g.must("stat", "/data/root/kit"); got != g.must("stat", "/kit") {
			t.Errorf("the link to / leads to a kit that is %s", got)
		}
	})
}

// TestSocketInAMount: a socket file in a mount is no way to the host.
func TestSocketInAMount(t *testing.T) {
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
		dir := callerFolder(t)
		l, err := net.Listen("unix", filepath.Join(dir, "sock"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		if err := os.Chmod(filepath.Join(dir, "sock"), 0o777); err != nil {
			t.Fatal(err)
		}
		h := newHost(t)
		req := request()
		byCaller(&req)
		req.Spec.Isolation = tier
		req.Spec.Mounts = []sandbox.Mount{{Source: openPath(t, dir), Target: "/data"}}
		if a := start(t, h, req).do("dial", "unix", "/data/sock"); a.Err == "" {
			t.Error("the guest reached a socket of the host's")
		}
		// Shown to work where nothing keeps it from it, and own sockets work.
		if c, err := net.Dial("unix", filepath.Join(dir, "sock")); err != nil {
			t.Error(err)
		} else {
			_ = c.Close()
		}
		req.Spec.Mounts = nil
		if got := start(t, h, req).must("loopback", "/tmp/own"); got != "self" {
			t.Errorf("own socket: %q", got)
		}
	})
}

func TestMountsThatAreRefused(t *testing.T) {
	h := newHost(t)
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	closed := openPath(t, dir)
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]sandbox.Mount{
		"proc":         {Source: openPath(t, "/proc"), Target: "/data"},
		"proc file":    {Source: openPath(t, "/proc/sys/kernel/core_pattern"), Target: "/data"},
		"sys":          {Source: openPath(t, "/sys"), Target: "/data"},
		"fifo":         {Source: openPath(t, fifo), Target: "/data"},
		"device":       {Source: openPath(t, "/dev/zero"), Target: "/data"},
		"over proc":    {Source: openPath(t, dir), Target: "/proc/self"},
		"over dev":     {Source: openPath(t, dir), Target: "/dev"},
		"over resolv":  {Source: openPath(t, dir), Target: "/etc"},
		"over home":    {Source: openPath(t, dir), Target: "/home"},
		"not absolute": {Source: openPath(t, dir), Target: "data"},
		"not clean":    {Source: openPath(t, dir), Target: "/data/../etc"},
		"closed":       {Source: closed, Target: "/data"},
	} {
		req := request()
		req.Spec.Mounts = []sandbox.Mount{m}
		if _, _, err := h.Start(t.Context(), req); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	req := request()
	req.Spec.Mounts = []sandbox.Mount{{Source: openPath(t, dir), Target: "/a/b"}, {Source: openPath(t, dir), Target: "/a"}}
	if _, _, err := h.Start(t.Context(), req); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("nested: %v", err)
	}
	if left, err := os.ReadDir(h.boxesDir()); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestStartFailsWhole: a start that fails late leaves nothing either.
func TestStartFailsWhole(t *testing.T) {
	h := newHost(t)
	warm(t, h)
	before := trace(t, h)
	req := request()
	req.Gateway = true
	req.Spec.Mounts = []sandbox.Mount{{Source: openPath(t, callerFolder(t)), Target: "/kit/below-a-file"}}
	_, _, err := h.Start(t.Context(), req)
	_ = req.Spec.Mounts[0].Source.Close()
	if err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("start: %v", err)
	}
	req = request()
	req.Spec.Image.Digest = "sha256:" + strings.Repeat("0", 64)
	if _, _, err := h.Start(t.Context(), req); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("no image: %v", err)
	}
	before.compare(t, h)
}
