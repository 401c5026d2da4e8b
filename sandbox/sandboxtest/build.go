package sandboxtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// BuildGuest builds package guest as a program for a system, with the Go
// command, and returns its path. The file goes with the test.
func BuildGuest(t testing.TB, goos, goarch string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "guest-"+goos)
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", out,
		"github.com/sandboxd/sandboxd/sandbox/sandboxtest/guest/sandboxguest")
	build.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0", "GOFLAGS=")
	if b, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the guest: %v\n%s", err, b)
	}
	return out
}
