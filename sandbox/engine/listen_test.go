//go:build linux

package engine

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

func testConfig(socket string) Config {
	return Config{Socket: socket, Tiers: []sandbox.Isolation{sandbox.Container}}
}

func TestOneEngineASocket(t *testing.T) {
	e := startEngine(t, nil)
	if _, err := NewServer(testConfig(e.socket)); !errors.Is(err, ErrRunning) {
		t.Errorf("a second engine: %v", err)
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	socket := filepath.Join(publicDir(t), "engine.sock")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	serve := func() (*Server, *localHost, chan error) {
		s, err := NewServer(testConfig(socket))
		if err != nil {
			t.Fatal(err)
		}
		h, ended := newLocalHost(), make(chan error, 1)
		go func() { ended <- s.Serve(context.Background(), h) }()
		return s, h, ended
	}
	// Somebody who takes no lock, but answers.
	s, h, ended := serve()
	if err := <-ended; !errors.Is(err, ErrRunning) || !h.closed {
		t.Errorf("Serve: %v, host closed %v", err, h.closed)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	s, h, ended = serve()
	awaitSocket(t, socket)
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil || h.collected != 1 {
		t.Errorf("Serve: %v, collected %d times", err, h.collected)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	// What is no socket is not touched.
	if err := os.WriteFile(socket, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, _, ended = serve()
	if err := <-ended; err == nil {
		t.Error("Serve replaced a file")
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(socket); err != nil || string(b) != "mine" {
		t.Error(b, err)
	}
}

func TestSocketFolderMustBeOurs(t *testing.T) {
	dir := publicDir(t)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := NewServer(testConfig(filepath.Join(dir, "engine.sock"))); err == nil {
		t.Error("a folder that all can write to was taken")
	}
	link := filepath.Join(publicDir(t), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if _, err := NewServer(testConfig(filepath.Join(link, "engine.sock"))); err == nil {
		t.Error("a symbolic link was taken")
	}
}

func TestSocketPermissions(t *testing.T) {
	for group, want := range map[string]os.FileMode{"": 0o600, "nogroup": 0o660} {
		e := startEngine(t, func(c *Config) { c.Group = group })
		fi, err := os.Stat(e.socket)
		if err != nil || fi.Mode().Perm() != want {
			t.Errorf("group %q: %v, %v", group, fi.Mode(), err)
		}
	}
	if _, err := NewServer(Config{Socket: "/nonexistent/x", Group: "no-such-group", Tiers: []sandbox.Isolation{sandbox.Container}}); err == nil {
		t.Error("an unknown group was taken")
	}
}

func TestEngineEndsWhenIdle(t *testing.T) {
	e := startEngine(t, func(c *Config) { c.Idle = 1500 * time.Millisecond })
	c := dialTest(t, e)
	sb, err := c.Start(t.Context(), testSpec(layout(t, "k"), "/bin/cat"), nil)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-e.ended:
		t.Fatalf("ended with a sandbox running: %v", err)
	case <-time.After(2 * time.Second):
	}
	if err := sb.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-e.ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("still running")
	}
	var missing *sandbox.UnavailableError
	if _, err := Dial(t.Context(), ClientConfig{Socket: e.socket}); !errors.As(err, &missing) || missing.Next != "start it with: sudo sandboxd engine --group GROUP, where GROUP is one of yours" {
		t.Errorf("Dial: %v", err)
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	socket := filepath.Join(publicDir(t), "engine.sock")
	s, err := NewServer(testConfig(socket))
	if err != nil {
		t.Fatal(err)
	}
	h := newLocalHost()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, h) }()
	awaitSocket(t, socket)
	c, err := Dial(t.Context(), ClientConfig{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	sb, err := c.Start(t.Context(), testSpec(layout(t, "l"), "/bin/sleep", "600"), nil)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	h.awaitEmpty(t)
	if exit, err := sb.Wait(t.Context()); err != nil || exit.Cause != sandbox.HostFault {
		t.Errorf("exit %+v, %v", exit, err)
	}
	if err := errors.Join(sb.Close(t.Context()), c.Close(t.Context()), s.Close(t.Context())); err != nil {
		t.Error(err)
	}
	if _, err := NewServer(testConfig(socket)); err != nil {
		t.Errorf("the lock is still held: %v", err)
	}
}
