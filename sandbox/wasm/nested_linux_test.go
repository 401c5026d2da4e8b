package wasm_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

// A file system mounted below a mounted folder is not carried in, and one that
// is an interface to the kernel is not shown at all.
func TestNestedMountsStayOut(t *testing.T) {
	dir := t.TempDir()
	nested := filepath.Join(dir, "nested")
	if err := os.Mkdir(nested, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("none", nested, "tmpfs", 0, "size=1m"); err != nil {
		if errors.Is(err, syscall.EPERM) {
			t.Skip("needs root to mount something")
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(nested, syscall.MNT_DETACH) })
	if err := os.WriteFile(filepath.Join(nested, "secret"), []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nested", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		const no = "error: Cross-device link"
		runFS(t, tier, []sandbox.Mount{mount(t, dir, "/data", true)}, [][2]string{
			{"read /data/nested/secret", no},
			{"read /data/link/secret", no},
			{"write /data/nested/secret x", no},
			{"write /data/link/new x", no},
			{"stat /data/nested/secret", no},
			{"mkdir /data/nested/new", no},
			{"rm /data/nested/secret", no},
			{"ls /data/nested", no},
			{"write /data/beside ok", "ok"},
			{"read /data/beside", "ok"},
		})
	})
	if b, err := os.ReadFile(filepath.Join(nested, "secret")); string(b) != "secret" || err != nil {
		t.Errorf("the secret became %q, %v", b, err)
	}
}

func TestKernelFileSystemsAreNotShown(t *testing.T) {
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		for _, path := range []string{"/proc", "/proc/self", "/sys", "/proc/self/environ"} {
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			s := spec(t, tier, "exit", "0")
			s.Mounts = []sandbox.Mount{{Source: f, Target: "/p"}}
			sb, err := newRuntime(t).Start(t.Context(), s, nil)
			if err == nil {
				_ = sb.Close(t.Context())
			}
			if err == nil || !strings.Contains(err.Error(), "holds no data") {
				t.Errorf("%s: %v, want it refused", path, err)
			}
		}
	})
}
