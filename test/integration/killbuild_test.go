package integration

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/test/integration/lab"
)

// TestKillBuild ends an image's build at random moments, politely and as a
// crash would. The programs that it had started are gone soon after, and what
// it had half done is gone once the cache is used again.
func TestKillBuild(t *testing.T) {
	// A registry that never answers keeps the package's part from an end.
	hang := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(hang.Close)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	home := lab.UserDir(t)
	env := append(npmEnv(), "SANDBOXD_CACHE="+filepath.Join(home, "cache"), "npm_config_registry="+hang.URL)
	for i, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGKILL, syscall.SIGINT} {
		r := startProgram(t, home, env, "image", "build", "--build-unsandboxed", "npm:some-package")
		r.says(t, "fetching")
		seen := map[string]string{}
		for end := time.Now().Add(time.Duration(rng.Int64N(int64(4 * time.Second)))); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			family(t, r.cmd.Process.Pid, seen)
		}
		if err := r.cmd.Process.Signal(sig); err != nil {
			t.Fatalf("round %d: it ended before: %v\n%s", i, err, r.stderr)
		}
		if got := r.status(t, time.Minute); sig != syscall.SIGKILL && got != 1 {
			t.Errorf("%s: status %d:\n%s", sig, got, r.stderr)
		}
		var left []string
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if left = alive(seen); len(left) == 0 {
				break
			}
		}
		t.Logf("%s to the builder of %d programs", sig, len(seen))
		if len(left) > 0 {
			t.Errorf("round %d, %s: of %d programs there still run %q", i, sig, len(seen), left)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := lab.UserCommand(ctx, home, program, "image", "prune")
	cmd.Env = append(cmd.Env, env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// A base or a Node that was finished before is whole, recorded and kept.
	var finished strings.Builder
	records, err := filepath.Glob(filepath.Join(home, "cache/images/shared/*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range records {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		finished.Write(b)
	}
	for _, dir := range []string{"tmp", "refs", "lock", "oci/blobs/sha256"} {
		list, err := filepath.Glob(filepath.Join(home, "cache/images", dir, "*"))
		list = slices.DeleteFunc(list, func(p string) bool {
			return filepath.Base(p) == "guard" || strings.Contains(finished.String(), filepath.Base(p)) // a lock
		})
		if err != nil || len(list) > 0 {
			t.Errorf("the cache still holds %q, %v", list, err)
		}
	}
}

// family adds a process's descendants to seen: identity -> command.
func family(t *testing.T, root int, seen map[string]string) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	parent := map[int]int{}
	for _, dir := range dirs {
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			if f := statFields(pid); f != nil {
				parent[pid], _ = strconv.Atoi(f[1])
			}
		}
	}
	for pid := range parent {
		for a := parent[pid]; a > 1; a = parent[a] {
			if a == root {
				line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				if id := identity(pid); id != "" {
					seen[id] = string(bytes.ReplaceAll(line, []byte{0}, []byte(" ")))
				}
				break
			}
		}
	}
}

// statFields are the fields of /proc/PID/stat from the state on.
func statFields(pid int) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
}

// identity is a process's number and start time; empty for one that is gone
// or only waits to be reaped.
func identity(pid int) string {
	f := statFields(pid)
	if len(f) < 20 || f[0] == "Z" {
		return ""
	}
	return fmt.Sprint(pid, " ", f[19])
}

func alive(seen map[string]string) []string {
	var out []string
	for id, command := range seen {
		pid, _, _ := strings.Cut(id, " ")
		if n, err := strconv.Atoi(pid); err == nil && identity(n) == id {
			out = append(out, command)
		}
	}
	return out
}
