//go:build linux

package engine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

const engineRole = "engine "

// playEngine serves a localHost until it is killed.
func playEngine(socket string) int {
	s, err := NewServer(testConfig(socket))
	if err == nil {
		err = s.Serve(context.Background(), newLocalHost())
	}
	fmt.Println(err)
	return 1
}

func engineProcess(t *testing.T, socket string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{roleVar + "=" + engineRole + socket}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	awaitSocket(t, socket)
	return cmd
}

// TestKilledEngine: its sandboxes end as host faults, nothing hangs, and the
// same client works with the next engine at the same socket.
func TestKilledEngine(t *testing.T) {
	socket := filepath.Join(publicDir(t), "engine.sock")
	image := layout(t, "o")
	c, cmd := (*Client)(nil), (*exec.Cmd)(nil)
	for round := range 3 {
		cmd = engineProcess(t, socket)
		if c == nil {
			var err error
			if c, err = Dial(t.Context(), ClientConfig{Socket: socket}); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close(context.Background()) }()
		}
		e := &tableEgress{}
		sb, err := c.Start(t.Context(), testSpec(image, "/bin/cat"), e)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if _, err := io.WriteString(sb.Stdio().In, "x\n"); err != nil {
			t.Fatal(err)
		}
		out := bufio.NewReader(sb.Stdio().Out)
		if line, err := out.ReadString('\n'); err != nil {
			t.Fatal(line, err)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_, readErr := out.ReadString('\n')
		exit, err := sb.Wait(t.Context())
		if err != nil || exit.Cause != sandbox.HostFault || !strings.Contains(exit.Detail, "engine") || readErr == nil {
			t.Errorf("exit %+v, %v; read %v", exit, err, readErr)
		}
		if err := sb.Close(t.Context()); err != nil || !e.closed {
			t.Errorf("Close: %v; egress closed: %v", err, e.closed)
		}
		_ = cmd.Wait()
	}
	var missing *sandbox.UnavailableError
	if _, err := c.Start(t.Context(), testSpec(image, "/bin/cat"), nil); !errors.As(err, &missing) {
		t.Errorf("Start without an engine: %v", err)
	}
}

// TestFrozenEngine: a stopped engine holds up no call beyond its context.
func TestFrozenEngine(t *testing.T) {
	socket := filepath.Join(publicDir(t), "engine.sock")
	cmd := engineProcess(t, socket)
	c, err := Dial(t.Context(), ClientConfig{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(context.Background()) }()
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	waitStopped(t, cmd.Process.Pid)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := c.List(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("List: %v", err)
	}
	if _, err := Dial(ctx, ClientConfig{Socket: socket}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Dial: %v", err)
	}
}

// waitStopped waits until every thread of a process has taken its SIGSTOP.
func waitStopped(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		running := err != nil || len(stats) == 0
		for _, f := range stats {
			b, err := os.ReadFile(f)
			_, rest, _ := strings.Cut(string(b), ") ")
			running = running || err == nil && !strings.HasPrefix(rest, "T")
		}
		if !running {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the process does not stop")
		}
	}
}

// TestImportIsBounded: an archive that is too big, cut, or never comes ends
// its import and nothing else.
func TestImportIsBounded(t *testing.T) {
	e := startEngine(t, func(c *Config) { c.MaxImageBytes = 1 << 16 })
	c := dialTest(t, e)
	if _, err := c.Start(t.Context(), testSpec(layout(t, "p"), "/bin/true"), nil); !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), "size limit") {
		t.Errorf("a big archive: %v", err)
	}
	image := layoutOf(t, []byte("small"))
	p := dialRaw(t, e, true)
	p.must(2, &importMsg{Digest: image.Digest})
	id, m, files, err := p.recv()
	if err != nil || id != 2 || m.kind() != kindPipe || len(files) != 1 {
		t.Fatal(id, m, files, err)
	}
	// Held open and silent: given up by the caller, ended by the engine.
	p.must(3, &stopMsg{Target: 2})
	seen := map[uint32]kind{}
	for range 2 {
		id, m, _, err := p.recv()
		if err != nil {
			t.Fatal(err)
		}
		seen[id] = m.kind()
	}
	if seen[2] != kindError || seen[3] != kindDone {
		t.Errorf("replies %v", seen)
	}
	if _, err := files[0].Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("the pipe is still read: %v", err)
	}
	closeAll(files)
	// Imports are free again for others.
	sb, err := c.Start(t.Context(), testSpec(image, "/bin/true"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
