//go:build linux

package engine

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

const (
	ordinaryUID   = 64321
	ordinaryGroup = 64322
	// ordinarySupplementary is a group beside the user's own.
	ordinarySupplementary = 64323
)

// userTask is what a child of the test does as an ordinary user.
type userTask struct {
	Socket string
	Image  sandbox.Image
	// UID and GID are who does it; 0 means ordinaryUID and ordinaryGroup.
	UID, GID uint32
	// Starts sandboxes of Command and waits for stdin to close.
	Starts  int
	Command []string
	// Mounts are tried one by one, each with its own start; or, with Ask, are
	// all there for one guest, which is asked line by line.
	Mounts []userMount
	Ask    []string
}

type userMount struct {
	Path  string
	Write bool
}

// asUser runs this test binary again as an ordinary user with one task.
func asUser(t *testing.T, task userTask, groups ...uint32) (*exec.Cmd, io.WriteCloser, *bufio.Scanner) {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("this test needs root, to become an ordinary user")
		}
		t.Skip("this test needs root, to become an ordinary user")
	}
	if task.UID == 0 {
		task.UID, task.GID = ordinaryUID, ordinaryGroup
	}
	b, err := json.Marshal(task)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{roleVar + "=" + string(b), "PATH=/usr/bin:/bin"}
	cmd.Dir = "/"
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: task.UID, Gid: task.GID, Groups: groups}}
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
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, in, bufio.NewScanner(out)
}

// playRole is the ordinary user's side.
func playRole(role string) int {
	if socket, ok := strings.CutPrefix(role, engineRole); ok {
		return playEngine(socket)
	}
	var task userTask
	if err := json.Unmarshal([]byte(role), &task); err != nil {
		fmt.Println("task:", err)
		return 2
	}
	ctx := context.Background()
	c, err := Dial(ctx, ClientConfig{Socket: task.Socket})
	if err != nil {
		fmt.Println("dial:", err)
		return 1
	}
	if len(task.Ask) > 0 {
		if err := askGuest(ctx, c, task); err != nil {
			fmt.Println("ask:", err)
			return 1
		}
		return 0
	}
	for _, m := range task.Mounts {
		fmt.Println(tryMount(ctx, c, task, m))
	}
	for range task.Starts {
		if _, err := c.Start(ctx, testSpec(task.Image, task.Command...), nil); err != nil {
			fmt.Println("start:", err)
			return 1
		}
		fmt.Println("started")
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

func askGuest(ctx context.Context, c *Client, task userTask) error {
	spec := testSpec(task.Image, task.Command...)
	for i, m := range task.Mounts {
		f, err := os.Open(m.Path)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		spec.Mounts = append(spec.Mounts, sandbox.Mount{Source: f, Target: fmt.Sprintf("/m%d", i), ReadWrite: m.Write})
	}
	sb, err := c.Start(ctx, spec, nil)
	if err != nil {
		return err
	}
	out := bufio.NewScanner(sb.Stdio().Out)
	for _, line := range task.Ask {
		if _, err := io.WriteString(sb.Stdio().In, line+"\n"); err != nil {
			return err
		}
		if !out.Scan() {
			return errors.New("no answer")
		}
		fmt.Println(out.Text())
	}
	return sb.Close(ctx)
}

func tryMount(ctx context.Context, c *Client, task userTask, m userMount) string {
	fd, err := unix.Open(m.Path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return "open: " + err.Error()
	}
	f := os.NewFile(uintptr(fd), m.Path)
	defer func() { _ = f.Close() }()
	spec := testSpec(task.Image, "/bin/true")
	spec.Mounts = []sandbox.Mount{{Source: f, Target: "/m", ReadWrite: m.Write}}
	sb, err := c.Start(ctx, spec, nil)
	switch {
	case errors.Is(err, sandbox.ErrInvalid):
		return "refused"
	case err != nil:
		return err.Error()
	}
	if err := sb.Close(ctx); err != nil {
		return err.Error()
	}
	return "mounted"
}

// TestOrdinaryUserMountsOnlyItsOwn: an O_PATH descriptor can be had for any
// file in a folder that can be walked; the engine asks the kernel whether its
// caller could open it.
func TestOrdinaryUserMountsOnlyItsOwn(t *testing.T) {
	e := startEngine(t, func(c *Config) { c.Group = fmt.Sprint(ordinarySupplementary) })
	dir := publicDir(t)
	make := func(name string, mode os.FileMode, uid, gid int) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Chown(p, uid, gid), os.Chmod(p, mode)); err != nil {
			t.Fatal(err)
		}
		return p
	}
	folder := filepath.Join(dir, "folder")
	if err := errors.Join(os.Mkdir(folder, 0o711), os.Chmod(folder, 0o711)); err != nil {
		t.Fatal(err)
	}
	own := make("own", 0o600, ordinaryUID, ordinaryGroup)
	shared := make("shared", 0o640, 0, ordinarySupplementary)
	barred := make("barred", 0o604, 0, ordinarySupplementary)
	public := make("public", 0o644, 0, 0)
	secret := make("secret", 0o600, 0, 0)
	for _, tc := range []struct {
		path  string
		write bool
		want  string
	}{
		{own, true, "mounted"},
		{shared, false, "mounted"},
		{shared, true, "refused"},
		{barred, false, "refused"},
		{public, false, "mounted"},
		{public, true, "refused"},
		{secret, false, "refused"},
		{secret, true, "refused"},
		{"/etc/shadow", false, "refused"},
		{folder, false, "refused"},
		{dir, false, "mounted"},
		{dir, true, "refused"},
	} {
		task := userTask{Socket: e.socket, Image: layout(t, "m"), Mounts: []userMount{{tc.path, tc.write}}}
		_, in, out := asUser(t, task, ordinarySupplementary)
		if !out.Scan() || out.Text() != tc.want {
			t.Errorf("%s, write %v: %q, want %q", tc.path, tc.write, out.Text(), tc.want)
		}
		_ = in.Close()
	}
	if got := e.host.last(); got.Owner != ordinaryUID || got.Group != ordinaryGroup || !slices.Equal(got.Groups, []uint32{ordinarySupplementary}) {
		t.Errorf("owner %d, group %d, further groups %v", got.Owner, got.Group, got.Groups)
	}
	// The questions were asked as the user; this process still is root.
	if err := unix.Faccessat2(unix.AT_FDCWD, secret, unix.R_OK, unix.AT_EACCESS); err != nil {
		t.Errorf("root lost its rights: %v", err)
	}
}

func TestPermissionDeniedSaysWhichGroup(t *testing.T) {
	for group, want := range map[string]string{"": "serves root alone", "daemon": "usermod -aG daemon"} {
		e := startEngine(t, func(c *Config) { c.Group = group })
		_, _, out := asUser(t, userTask{Socket: e.socket})
		if !out.Scan() || !strings.HasPrefix(out.Text(), "dial: ") || !strings.Contains(out.Text(), want) {
			t.Errorf("group %q: %q", group, out.Text())
		}
	}
}

// TestKilledCallerLeavesNoSandbox kills the caller at random points of its
// starts.
func TestKilledCallerLeavesNoSandbox(t *testing.T) {
	e := startEngine(t, func(c *Config) { c.Group = fmt.Sprint(ordinarySupplementary) })
	image := layout(t, "n")
	rounds := 20
	if testing.Short() {
		rounds = 5
	}
	for i := range rounds {
		cmd, _, out := asUser(t, userTask{Socket: e.socket, Image: image, Starts: 6, Command: []string{"/bin/sleep", "600"}}, ordinarySupplementary)
		for range rand.IntN(7) {
			if !out.Scan() || out.Text() != "started" {
				t.Fatalf("round %d: %q", i, out.Text())
			}
		}
		time.Sleep(time.Duration(rand.IntN(4000)) * time.Microsecond) // where in a start it dies
		if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		e.host.awaitEmpty(t)
	}
	awaitNoPeers(t, e)
	e.host.awaitEmpty(t)
}

// awaitNoPeers waits until the server has let go of every connection.
func awaitNoPeers(t *testing.T, e *testEngine) {
	t.Helper()
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		e.srv.mu.Lock()
		n, boxes, accounts := e.srv.conns, len(e.srv.boxes), len(e.srv.accounts)
		e.srv.mu.Unlock()
		if n == 0 && boxes == 0 && accounts == 0 {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("%d connections, %d sandboxes, %d accounts left", n, boxes, accounts)
		}
	}
}
