//go:build linux

package wasm_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wasm"
)

// workers returns the process ids of a process's workers.
func workers(t testing.TB, parent int) []int {
	t.Helper()
	var pids []int
	list, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		b, err := os.ReadFile(p)
		if err != nil {
			continue
		}
		s := string(b)
		f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
		if len(f) < 2 || f[0] == "Z" || f[1] != strconv.Itoa(parent) {
			continue
		}
		dir := filepath.Dir(p)
		if c, err := os.ReadFile(filepath.Join(dir, "cmdline")); err == nil && strings.Contains(string(c), "sandboxd-wasm-worker") {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestWorkerIsLockedDown looks at a worker's threads from outside, while a
// guest runs in it.
func TestWorkerIsLockedDown(t *testing.T) {
	t.Setenv("HOST_SECRET", "must not be seen")
	sb := start(t, newRuntime(t), spec(t, sandbox.WASM, "sleep"), newEgress(nil))
	sb.expect("ready")
	pids := workers(t, os.Getpid())
	if len(pids) != 1 {
		t.Fatalf("%d workers", len(pids))
	}
	dir := "/proc/" + strconv.Itoa(pids[0])
	tasks, err := filepath.Glob(dir + "/task/*/status")
	if err != nil || len(tasks) < 2 {
		t.Fatalf("%d threads, %v", len(tasks), err)
	}
	for _, p := range tasks {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"NoNewPrivs:\t1", "Seccomp:\t2", "Seccomp_filters:\t2", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000"} {
			if !strings.Contains(string(b), want+"\n") {
				t.Errorf("%s lacks %q", p, want)
			}
		}
	}
	if b, err := os.ReadFile(dir + "/environ"); err != nil || strings.Contains(string(b), "SECRET") {
		t.Errorf("environment %q, %v", b, err)
	}
	fds, err := filepath.Glob(dir + "/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		target, err := os.Readlink(fd)
		if err != nil {
			continue // closed just now
		}
		kind, _, _ := strings.Cut(target, ":")
		if kind != "socket" && kind != "pipe" && kind != "anon_inode" && target != "/dev/null" && !strings.HasPrefix(target, "/memfd:guest") {
			t.Errorf("a worker holds %s", target)
		}
	}
}

// TestNeighbours: a spinning guest takes its own worker along, and nobody
// else's.
func TestNeighbours(t *testing.T) {
	r := newRuntime(t)
	other := spec(t, sandbox.WASM, "echo")
	other.Tenant = "another tenant"
	stranger := start(t, r, other, nil)
	sibling := start(t, r, spec(t, sandbox.WASM, "echo"), nil)
	spinner := start(t, r, spec(t, sandbox.WASM, "spin"), nil)
	if n := len(workers(t, os.Getpid())); n != 2 {
		t.Errorf("%d workers", n)
	}
	spinner.expect("ready")
	if err := spinner.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if exit := sibling.wait(); exit.Cause != sandbox.Killed || !strings.Contains(exit.Detail, "another sandbox of the same tenant") {
		t.Errorf("sibling: %+v", exit)
	}
	stranger.write("still here\n")
	stranger.expect("still here")
	again := start(t, r, spec(t, sandbox.WASM, "echo"), nil)
	again.write("back\n")
	again.expect("back")
	// a guest that merely waits is stopped alone
	sleeper := start(t, r, spec(t, sandbox.WASM, "sleep"), nil)
	sleeper.expect("ready")
	if err := sleeper.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	again.write("and still\n")
	again.expect("and still")
}

// TestWorkerKilled: what the kernel's out-of-memory killer would do.
func TestWorkerKilled(t *testing.T) {
	r := newRuntime(t)
	e := newEgress(nil)
	sb := start(t, r, spec(t, sandbox.WASM, "sleep"), e)
	sb.expect("ready")
	for _, pid := range workers(t, os.Getpid()) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	if exit := sb.wait(); exit.Cause != sandbox.Killed || exit.Code != 137 || !strings.Contains(exit.Detail, "from outside") {
		t.Errorf("exit %+v", exit)
	}
	if !e.isClosed() {
		t.Error("egress left open")
	}
	sb = start(t, r, spec(t, sandbox.WASM, "echo"), nil)
	sb.write("again\n")
	sb.expect("again")
}

// TestWorkerCrash: a worker that breaks by itself is a fault of the host's,
// and says why.
func TestWorkerCrash(t *testing.T) {
	r := newRuntime(t)
	sb := start(t, r, spec(t, sandbox.WASM, "sleep"), nil)
	sb.expect("ready")
	for _, pid := range workers(t, os.Getpid()) {
		if err := syscall.Kill(pid, syscall.SIGQUIT); err != nil { // the Go runtime dumps and exits
			t.Fatal(err)
		}
	}
	if exit := sb.wait(); exit.Cause != sandbox.HostFault || !strings.Contains(exit.Detail, "SIGQUIT") {
		t.Errorf("exit %+v", exit)
	}
}

func TestWorkerEndsWhenIdle(t *testing.T) {
	r, err := wasm.New(wasm.Config{CacheDir: built.cache, WorkerCommand: []string{"/proc/self/exe"}, WorkerIdle: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close(context.Background())
	sb := start(t, r, spec(t, sandbox.WASM, "exit", "0"), nil)
	sb.wait()
	for range 500 {
		if len(workers(t, os.Getpid())) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond) // another process's end; there is nothing to wait on
	}
	t.Error("the worker is still there")
}

func TestWorkerUnavailable(t *testing.T) {
	for _, cfg := range []wasm.Config{{CacheDir: built.cache}, {WorkerCommand: []string{"/proc/self/exe"}}} {
		r, err := wasm.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		var un *sandbox.UnavailableError
		if _, err = r.Start(context.Background(), spec(t, sandbox.WASM, "echo"), nil); !errors.As(err, &un) || un.Next == "" {
			t.Errorf("%v", err)
		}
		if err := r.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
	r, err := wasm.New(wasm.Config{CacheDir: built.cache, WorkerCommand: []string{"/bin/false"}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close(context.Background())
	if _, err := r.Start(context.Background(), spec(t, sandbox.WASM, "echo"), nil); err == nil || !strings.Contains(err.Error(), "new wasm worker") {
		t.Errorf("%v", err)
	}
}

// TestDamagedCache: a worker that cannot use what is in the cache does not
// compile by itself; the host does, once.
func TestDamagedCache(t *testing.T) {
	cache := t.TempDir()
	r, err := wasm.New(wasm.Config{CacheDir: cache, WorkerCommand: []string{"/proc/self/exe"}, WorkerIdle: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close(context.Background())
	s := spec(t, sandbox.WASM)
	s.Image = program(t, 0x01)
	start(t, r, s, nil).wait()
	files, err := filepath.Glob(filepath.Join(cache, "*", "*", "*", "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	if err := os.WriteFile(files[0], []byte("WAZEVO of another kind"), 0o600); err != nil {
		t.Fatal(err)
	}
	r2, err := wasm.New(wasm.Config{CacheDir: cache, WorkerCommand: []string{"/proc/self/exe"}})
	if err != nil {
		t.Fatal(err)
	}
	defer r2.Close(context.Background())
	if exit := start(t, r2, s, nil).wait(); exit.Cause != sandbox.Exited || exit.Code != 0 {
		t.Errorf("exit %+v", exit)
	}
}

// hostArgument makes the test binary a host with one spinning guest.
const hostArgument = "sandboxd-wasm-host"

func hostMain() {
	if len(os.Args) != 4 || os.Args[1] != hostArgument {
		return
	}
	r, err := wasm.New(wasm.Config{CacheDir: os.Args[2], WorkerCommand: []string{"/proc/self/exe"}})
	if err == nil {
		var s sandbox.Spec
		s.Tenant, s.Name, s.Isolation, s.Args = "t", "spin", sandbox.WASM, []string{"guest", "spin"}
		digest, path, _ := strings.Cut(os.Args[3], "@")
		s.Image = sandbox.Image{Digest: digest, Path: path}
		var sb sandbox.Sandbox
		if sb, err = r.Start(context.Background(), s, nil); err == nil {
			line, _ := bufio.NewReader(sb.Stdio().Out).ReadString('\n')
			fmt.Print(line)
			select {}
		}
	}
	fmt.Println(err)
	os.Exit(1)
}

// TestHostKilled: a worker whose guest spins, and which can therefore run
// nothing of its own, still ends with its host.
func TestHostKilled(t *testing.T) {
	img := image(t, "guest")
	cmd := exec.Command("/proc/self/exe", hostArgument, built.cache, img.Digest+"@"+img.Path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	pids := workers(t, cmd.Process.Pid)
	if len(pids) != 1 {
		t.Fatalf("%d workers", len(pids))
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for range 500 {
		if syscall.Kill(pids[0], 0) != nil {
			return
		}
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pids[0]) + "/stat")
		if err != nil || strings.Contains(string(b), ") Z ") {
			return
		}
		time.Sleep(10 * time.Millisecond) // another process's end; there is nothing to wait on
	}
	t.Error("the worker outlived its host")
}
