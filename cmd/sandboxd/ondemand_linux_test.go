package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/container"
	"github.com/sandboxd/sandboxd/sandbox/engine"
)

// noBoxes is the Host of an engine that is only connected to.
type noBoxes struct{ container.Host }

func (noBoxes) Collect(context.Context) error { return nil }
func (noBoxes) Close(context.Context) error   { return nil }

// TestOnDemandEngine is the engine that the test below starts, where it is run
// with a socket as its environment names it.
func TestOnDemandEngine(t *testing.T) {
	socket := os.Getenv("SANDBOXD_ENGINE_CACHE") // one of the few variables that get through
	if !filepath.IsAbs(socket) || filepath.Base(socket) != "engine.sock" {
		t.Skip("run by TestStartEngine")
	}
	if err := os.WriteFile(socket+".env", []byte(strings.Join(os.Environ(), "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	srv, err := engine.NewServer(engine.Config{Socket: socket, Tiers: []sandbox.Isolation{sandbox.Container}, Idle: 2 * time.Second})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := srv.Serve(context.Background(), noBoxes{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func startTestEngine(t *testing.T, socket string) (*engine.Client, error) {
	t.Helper()
	t.Setenv("SANDBOXD_ENGINE_CACHE", socket)
	cfg := engine.ClientConfig{Socket: socket, Logger: slog.New(slog.DiscardHandler)}
	return startEngine(t.Context(), cfg, "/proc/self/exe", "-test.run=^TestOnDemandEngine$")
}

// shortSocket is a socket's path that fits into an address.
func shortSocket(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sbd-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s", "engine.sock")
}

func TestStartEngine(t *testing.T) {
	socket := shortSocket(t)
	t.Setenv("API_TOKEN", "hunter2")

	// An engine that was killed leaves a socket on which nobody listens.
	if err := os.Mkdir(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()

	c, err := startTestEngine(t, socket)
	if err != nil {
		t.Fatal(err)
	}
	env, err := os.ReadFile(socket + ".env")
	if err != nil || strings.Contains(string(env), "hunter2") {
		t.Errorf("the engine has its caller's environment: %v\n%s", err, env)
	}
	for _, fd := range []int{1, 2} {
		mine, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		if err != nil {
			t.Fatal(err)
		}
		if held := engineHolds(t, socket, fd); held == mine && !strings.HasPrefix(mine, "/dev/null") {
			t.Errorf("the engine holds its caller's descriptor %d, %s", fd, mine)
		}
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	// It ends by itself when it has been idle: its lock is free then.
	lock, err := os.OpenFile(socket+".lock", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
}

// engineHolds says where a descriptor of the process at the other end of the
// socket leads.
func engineHolds(t *testing.T, socket string, fd int) string {
	t.Helper()
	conn, err := net.Dial("unixpacket", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var cred *unix.Ucred
	if cerr := raw.Control(func(s uintptr) { cred, err = unix.GetsockoptUcred(int(s), unix.SOL_SOCKET, unix.SO_PEERCRED) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	at, err := os.Readlink("/proc/" + strconv.Itoa(int(cred.Pid)) + "/fd/" + strconv.Itoa(fd))
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// TestStartEngineThatLosesTheRace: where two callers start an engine at once,
// both get to the one that took the socket.
func TestStartEngineThatLosesTheRace(t *testing.T) {
	socket := shortSocket(t)
	srv, err := engine.NewServer(engine.Config{Socket: socket, Tiers: []sandbox.Isolation{sandbox.Container}})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		for { // until the loser has ended
			text, err := os.ReadFile(socket + ".log")
			if err == nil && strings.Contains(string(text), engine.ErrRunning.Error()) || t.Context().Err() != nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		served <- srv.Serve(context.Background(), noBoxes{})
	}()
	c, err := startTestEngine(t, socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.Close(t.Context()), srv.Close(t.Context()), <-served); err != nil {
		t.Error(err)
	}
}

func TestStartEngineSaysWhyItEnded(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "engine.sock")
	cfg := engine.ClientConfig{Socket: socket, Logger: slog.New(slog.DiscardHandler)}
	for _, why := range []string{"the parts are missing", "runc is too old"} {
		_, err := startEngine(t.Context(), cfg, "/bin/sh", "-c", "echo "+why+" >&2; exit 3")
		if err == nil || !strings.HasSuffix(err.Error(), "exit status 3); it said: "+why) {
			t.Errorf("got %v", err)
		}
	}
	fi, err := os.Stat(socket + ".log")
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("its log: %v, %v", fi, err)
	}
}

func TestEngineEnv(t *testing.T) {
	got := engineEnv([]string{"PATH=/bin", "API_TOKEN=x", "SANDBOXD_PARTS=/p", "HOME=/root", "PATHX=y"})
	if want := []string{"PATH=/bin", "SANDBOXD_PARTS=/p", "HOME=/root"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
