//go:build linux

package wasm_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/sandbox"
)

// tree makes a folder to mount, beside a secret that must stay out of reach.
func tree(t *testing.T) (inside, outside string) {
	t.Helper()
	base := t.TempDir()
	inside, outside = filepath.Join(base, "inside"), filepath.Join(base, "outside")
	for p, text := range map[string]string{
		"inside/a.txt": "alpha", "inside/sub/b.txt": "beta", "outside/secret": "secret",
	} {
		p = filepath.Join(base, p)
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{
		"good": "sub/b.txt", "up": "../outside/secret", "abs": filepath.Join(outside, "secret"), "updir": "..", "absdir": outside, "loop": "loop",
	} {
		if err := os.Symlink(target, filepath.Join(inside, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(inside, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	return inside, outside
}

// runFS runs file operations in a guest and compares what came of each.
func runFS(t *testing.T, tier sandbox.Isolation, mounts []sandbox.Mount, want [][2]string) {
	t.Helper()
	s := spec(t, tier)
	s.Mounts = mounts
	runFSIn(t, newRuntime(t), s, want)
}

func runFSIn(t *testing.T, r sandbox.Runtime, s sandbox.Spec, want [][2]string) sandbox.Exit {
	t.Helper()
	args := []string{"guest", "fs"}
	expected, got := []string{}, []string{}
	for _, w := range want {
		args = append(args, w[0])
		expected = append(expected, w[0]+": "+w[1])
	}
	s.Args = args
	sb := start(t, r, s, nil)
	for _, l := range strings.Split(strings.TrimSuffix(sb.rest(), "\n"), "\n") {
		// the operation's name and path in the middle are Go's business
		if op, err, ok := strings.Cut(l, ": error: "); ok {
			l = op + ": error:" + err[strings.LastIndex(err, ":")+1:]
		}
		got = append(got, l)
	}
	if d := cmp.Diff(expected, got); d != "" {
		t.Error(d)
	}
	return sb.wait()
}

func TestReadOnlyMount(t *testing.T) {
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		inside, _ := tree(t)
		runFS(t, tier, []sandbox.Mount{mount(t, inside, "/data", false)}, [][2]string{
			{"read /data/a.txt", "alpha"},
			{"read /data/sub/b.txt", "beta"},
			{"read /data/sub/../a.txt", "alpha"},
			{"read /data/good", "beta"},
			{"pread /data/a.txt", "lph"},
			{"ls /data", "a.txt abs absdir fifo good loop sub/ up updir"},
			{"ls /data/sub", "b.txt"},
			{"stat /data/a.txt", "5 ----------"},
			{"stat /data/sub", "4096 d---------"},
			{"lstat /data/good", "L---------"},
			{"readlink /data/good", "sub/b.txt"},
			{"write /data/new x", "error: Read-only file system"},
			{"write /data/a.txt x", "error: Read-only file system"},
			{"append /data/a.txt x", "error: Read-only file system"},
			{"truncate /data/a.txt", "error: Read-only file system"},
			{"touch /data/a.txt", "error: Read-only file system"},
			{"mkdir /data/new", "error: Read-only file system"},
			{"rm /data/a.txt", "error: Read-only file system"},
			{"mv /data/a.txt /data/c", "error: Read-only file system"},
			{"ln /data/a.txt /data/c", "error: Read-only file system"},
			{"symlink a.txt /data/c", "error: Read-only file system"},
		})
		if b, err := os.ReadFile(filepath.Join(inside, "a.txt")); string(b) != "alpha" || err != nil {
			t.Errorf("the file became %q, %v", b, err)
		}
	})
}

func TestReadWriteMount(t *testing.T) {
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		inside, _ := tree(t)
		other := t.TempDir()
		mounts := []sandbox.Mount{mount(t, inside, "/data", true), mount(t, other, "/other", true)}
		runFS(t, tier, mounts, [][2]string{
			{"write /data/new hello", "ok"},
			{"append /data/new _more", "ok"},
			{"read /data/new", "hello_more"},
			{"truncate /data/new", "ok"},
			{"read /data/new", "he"},
			{"touch /data/new", "2001-09-09T01:46:40Z"},
			{"mkdir /data/dir", "ok"},
			{"mkdir /data/dir", "error: File exists"},
			{"mv /data/new /data/dir/moved", "ok"},
			{"read /data/dir/moved", "he"},
			{"ln /data/dir/moved /data/linked", "ok"},
			{"symlink dir/moved /data/soft", "ok"},
			{"read /data/soft", "he"},
			{"rm /data/dir", "error: Directory not empty"},
			{"rm /data/soft", "ok"},
			{"mv /data/a.txt /other/a.txt", "error: Cross-device link"},
			{"write /data/sub x", "error: Is a directory"},
			{"ls /data/a.txt", "error: Not a directory"},
			{"read /nowhere/x", "error: Bad file number"},
		})
	})
}

// TestEscapes tries every way out of a mount that a path can take.
func TestEscapes(t *testing.T) {
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		inside, outside := tree(t)
		sock, err := net.Listen("unix", filepath.Join(inside, "sock"))
		if err != nil {
			t.Fatal(err)
		}
		defer sock.Close()
		const no = "error: Operation not permitted"
		runFS(t, tier, []sandbox.Mount{mount(t, inside, "/data", true)}, [][2]string{
			{"read /data/up", no},
			{"read /data/abs", no},
			{"read /data/updir/outside/secret", no},
			{"read /data/absdir/secret", no},
			{"write /data/up x", no},
			{"write /data/absdir/new x", no},
			{"ls /data/updir", no},
			{"stat /data/up", no},
			{"mkdir /data/updir/new", no},
			{"rm /data/absdir/secret", no},
			{"mv /data/absdir/secret /data/x", no},
			{"mv /data/a.txt /data/absdir/x", no},
			{"ln /data/absdir/secret /data/x", no},
			{"symlink /etc/passwd /data/x", no},
			{"symlink ../x /data/x", no},
			{"symlink ../../x /data/sub/x", no},
			{"symlink ../a.txt /data/sub/ok", "ok"},
			{"read /data/sub/ok", "alpha"},
			{"read /data/loop", "error: Too many symbolic links"},
			{"read /data/fifo", "error: No such device or address"},
			{"write /data/fifo x", "error: No such device or address"},
			{"read /data/sock", "error: No such device or address"},
			{"mv /data/sub /data/updir/x", no},
		})
		for name, want := range map[string]string{"secret": "secret"} {
			if b, err := os.ReadFile(filepath.Join(outside, name)); string(b) != want || err != nil {
				t.Errorf("%s became %q, %v", name, b, err)
			}
		}
		if list, _ := os.ReadDir(outside); len(list) != 1 {
			t.Errorf("outside now holds %v", list)
		}
	})
}

func TestSingleFileMounts(t *testing.T) {
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		inside, outside := tree(t)
		mounts := []sandbox.Mount{
			mount(t, filepath.Join(inside, "a.txt"), "/etc/a.txt", false),
			mount(t, filepath.Join(outside, "secret"), "/etc/b.txt", true),
		}
		runFS(t, tier, mounts, [][2]string{
			{"read /etc/a.txt", "alpha"},
			{"ls /etc", "a.txt b.txt"},
			{"stat /etc", "0 d---------"},
			{"stat /etc/a.txt", "5 ----------"},
			{"write /etc/a.txt x", "error: Read-only file system"},
			{"write /etc/b.txt x", "ok"},
			{"read /etc/b.txt", "x"},
			{"read /etc/c.txt", "error: No such file or directory"},
			{"write /etc/c.txt x", "error: Read-only file system"},
			{"rm /etc/a.txt", "error: Read-only file system"},
			{"read /etc/../x", "error: Bad file number"},
		})
	})
}

// TestLongListing needs several calls of fd_readdir.
func TestLongListing(t *testing.T) {
	dir := t.TempDir()
	want := []string{}
	for i := range 3000 {
		name := fmt.Sprintf("%04d-%s", i, strings.Repeat("n", i%100))
		want = append(want, name)
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := spec(t, sandbox.WASMInProcess, "fs", "ls /d")
	s.Mounts = []sandbox.Mount{mount(t, dir, "/d", false)}
	sb := start(t, newRuntime(t), s, nil)
	if d := cmp.Diff("ls /d: "+strings.Join(want, " "), sb.line()); d != "" {
		t.Error(d)
	}
}
