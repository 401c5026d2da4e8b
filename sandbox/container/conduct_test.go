//go:build linux

package container

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

// TestFloodsAreHeld: what a guest writes and nobody reads costs the host a
// pipe's buffer, a line without an end like any other.
func TestFloodsAreHeld(t *testing.T) {
	h := newHost(t)
	rows := newTable(t)
	for _, to := range []string{"out", "err"} {
		name := "flood of std" + to + ", one line without end"
		t.Run(to, func(t *testing.T) {
			eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
				req := request("flood", to)
				req.Spec.Isolation = tier
				g := start(t, h, req)
				f := g.files.Stdout
				if to == "err" {
					f = g.files.Stderr
				}
				// It goes on for as long as somebody reads: who kept it all would
				// run out of memory.
				if _, err := io.CopyN(io.Discard, f, 8<<20); err != nil {
					t.Fatal(err)
				}
				rows.add(name, "weakened", true, "8 MiB came, and no end was in sight")
				waiting := pending(t, f)
				for range 20 { // until it has filled all that it can
					time.Sleep(10 * time.Millisecond)
					waiting = max(waiting, pending(t, f))
				}
				if rows.add(name, tier.String(), waiting > 1<<20, fmt.Sprintf("%d bytes wait for a reader", waiting)); waiting > 1<<20 {
					t.Errorf("%d bytes wait for a reader", waiting)
				}
				began := time.Now()
				if err := g.box.Stop(t.Context()); err != nil {
					t.Error(err)
				}
				if d := time.Since(began); d > 5*time.Second {
					t.Errorf("stop took %s", d)
				}
			})
		})
	}
}

func pending(t *testing.T, f *os.File) int {
	t.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var n int
	var ierr error
	if err := raw.Control(func(fd uintptr) { n, ierr = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); err != nil || ierr != nil {
		t.Fatal(err, ierr)
	}
	return n
}

// heldUp reports whether writes to a guest's input go nowhere, and what came.
func heldUp(t *testing.T, g *guest, patience time.Duration) (bool, error) {
	t.Helper()
	if err := g.files.Stdin.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	var err error
	for range 64 {
		if _, err = g.files.Stdin.Write(make([]byte, 1<<16)); err != nil {
			break
		}
	}
	return err == nil || os.IsTimeout(err), err
}

// TestGuestClosesStdin: a caller that writes to a guest that has closed its
// input is told so, and is not held up, as it is where something else keeps
// the input open.
func TestGuestClosesStdin(t *testing.T) {
	h := newHost(t)
	rows := newTable(t)
	const name = "closing stdin"
	g := start(t, h, request())
	raw, err := g.files.Stdin.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var other *os.File
	if err := raw.Control(func(fd uintptr) { other, err = os.Open("/proc/self/fd/" + strconv.Itoa(int(fd))) }); err != nil || other == nil {
		t.Fatal(err)
	}
	defer other.Close()
	g.must("close stdin")
	held, err := heldUp(t, g, 200*time.Millisecond)
	if rows.add(name, "weakened", held, fmt.Sprint(err)); !held {
		t.Errorf("where something else has the input open: %v", err)
	}
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
		req := request()
		req.Spec.Isolation = tier
		g := start(t, h, req)
		g.must("close stdin")
		held, err := heldUp(t, g, 20*time.Second)
		if rows.add(name, tier.String(), held, fmt.Sprint(err)); held {
			t.Errorf("writing to a closed input: %v", err)
		}
	})
}

// TestIgnoringTERM: what ignores TERM lives on where TERM is all that there
// is, and ends within the ladder's time in both tiers.
func TestIgnoringTERM(t *testing.T) {
	h := newHost(t)
	rows := newTable(t)
	const name = "ignoring SIGTERM"
	ready := func(g *guest) {
		if line, err := g.out.ReadString('\n'); line != "ready\n" {
			t.Fatalf("%q, %v", line, err)
		}
	}
	g := start(t, h, request("stubborn"))
	ready(g)
	if err := g.box.(*box).terminate(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone := g.box.(*box).gone(t.Context(), 300*time.Millisecond)
	if rows.add(name, "weakened", !gone, "after TERM alone it was there"); gone {
		t.Error("TERM ended what ignores it")
	}
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
		req := request("stubborn")
		req.Spec.Isolation = tier
		g := start(t, h, req)
		ready(g)
		began := time.Now()
		err := g.box.Stop(t.Context())
		took := time.Since(began)
		if rows.add(name, tier.String(), err != nil || took > 10*time.Second, fmt.Sprintf("ended %s after the ladder began", took.Round(time.Millisecond))); err != nil || took > 10*time.Second {
			t.Errorf("Stop took %s: %v", took, err)
		}
		if e := g.exit(); e.Cause != sandbox.Killed || e.Signal != int(unix.SIGKILL) {
			t.Errorf("exit %+v", e)
		}
	})
}

// leftBare runs the double fork with no sandbox at all, says how many
// processes outlived the server, and ends them.
func leftBare(t *testing.T) int {
	t.Helper()
	mark := "KIT=" + strconv.Itoa(os.Getpid()) + "-double-fork"
	cmd := exec.Command(filepath.Join(need(t).dir, "kit"), "leave")
	cmd.Env = []string{mark}
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "left\n" { // its input ends at once
		t.Fatalf("%q, %v", out, err)
	}
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil || string(b) != mark+"\x00" {
			continue
		}
		n++
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	return n
}

// TestDoubleFork: a process that has left its parent and its session outlives
// a server that runs bare, and ends with it in both tiers.
func TestDoubleFork(t *testing.T) {
	rows := newTable(t)
	const name = "double fork"
	left := func(t *testing.T, h *host, tier sandbox.Isolation) int {
		req := request("leave")
		req.Spec.Isolation = tier
		g := start(t, h, req)
		if line, err := g.out.ReadString('\n'); err != nil {
			t.Fatalf("%q, %v", line, err)
		}
		if err := g.files.Stdin.Close(); err != nil {
			t.Fatal(err)
		}
		g.exit()
		// gVisor's own processes end a moment after the guest's kernel.
		n := 0
		for range 500 {
			n = 0
			for _, dir := range hierarchies(g.box.(*box).group) {
				b, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
				n = max(n, len(strings.Fields(string(b))))
			}
			if n == 0 {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		return n
	}
	n := leftBare(t)
	if rows.add(name, "weakened", n > 0, fmt.Sprintf("%d processes outlived the server", n)); n == 0 {
		t.Error("nothing outlives the server where nothing ends it")
	}
	h := newHost(t)
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
		n := left(t, h, tier)
		if rows.add(name, tier.String(), n > 0, fmt.Sprintf("%d processes outlived the server", n)); n > 0 {
			t.Errorf("%d processes outlived the server", n)
		}
	})
}
