//go:build linux

package daemon

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// ownerEnv makes the test program a process that owns a daemon, to be killed.
const ownerEnv = "SANDBOXD_TEST_DAEMON_OWNER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(ownerEnv); dir != "" {
		os.Exit(own(dir))
	}
	goleak.VerifyTestMain(m)
}

// own starts a daemon, says so on stdout and waits to be killed or for the end
// of stdin.
func own(dir string) int {
	d, err := Start(context.Background(), config(dir, engineParts()))
	if err != nil {
		fmt.Println("failed:", err)
		return 1
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := d.Close(context.Background()); err != nil {
		return 1
	}
	return 0
}

func config(dir, bin string) Config {
	return Config{
		System: "none", BinDir: bin,
		Root: filepath.Join(dir, "root"), State: filepath.Join(dir, "state"),
		Logger: slog.New(slog.DiscardHandler),
	}
}

// engineParts is where the pinned programs are built to.
func engineParts() string {
	if d := os.Getenv("SANDBOXD_ENGINE_DIR"); d != "" {
		return d
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(cache, "sandboxd", "engine", "current")
}

// need returns the programs' folder and a short-named folder for one daemon.
func need(t *testing.T) (bin, dir string) {
	t.Helper()
	lack := func(what string) {
		t.Helper()
		if os.Getenv("CI") != "" {
			t.Fatal(what)
		}
		t.Skip(what)
	}
	if os.Geteuid() != 0 {
		lack("supervising containerd needs root")
	}
	bin = engineParts()
	if _, err := os.Stat(filepath.Join(bin, "containerd")); err != nil {
		lack("the engine's parts are not built: run make engine")
	}
	// Sockets need short paths.
	dir, err := os.MkdirTemp("/run", "sbd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return bin, dir
}

// start is Start for tests that need it to work, closed at their end.
func start(t *testing.T, cfg Config) *Daemon {
	t.Helper()
	d, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return d
}

// owner starts another process that owns a daemon in dir.
func owner(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), ownerEnv+"="+dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "ready\n" {
		t.Fatalf("the owner says %q, %v", line, err)
	}
	return cmd
}

// handle opens a descriptor of the process, by which its end can be seen.
func handle(t *testing.T, pid int) int {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func ended(t *testing.T, fd int, within time.Duration) bool {
	t.Helper()
	gone, err := exited(t.Context(), fd, within)
	if err != nil {
		t.Fatal(err)
	}
	return gone
}

// eventually polls a condition that another process brings about.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	deadline := time.After(20 * time.Second)
	for !cond() {
		select {
		case <-deadline:
			t.Fatal("timed out: " + what)
		case <-poll.C:
		}
	}
}
