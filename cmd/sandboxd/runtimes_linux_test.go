package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

// TestASilentEngineHoldsNobodyUp: while one caller waits for an engine that
// does not answer, another's module starts, a third gives up in its own time,
// and Close waits for neither.
func TestASilentEngineHoldsNobodyUp(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "engine.sock")
	l, err := net.Listen("unixpacket", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r := newRuntimes(t.TempDir(), socket, slog.New(slog.DiscardHandler), nil)
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error, 1)
	go func() { _, err := r.forTier(ctx, sandbox.Container); waiting <- err }()
	if _, err := l.Accept(); err != nil { // and never answer
		t.Fatal(err)
	}
	if _, err := r.forTier(t.Context(), sandbox.WASM); err != nil {
		t.Errorf("a module beside it: %v", err)
	}
	late, end := context.WithCancel(t.Context())
	end()
	if _, err := r.forTier(late, sandbox.GVisor); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that gave up got %v", err)
	}
	if err := r.Close(t.Context()); err != nil {
		t.Error(err)
	}
	select {
	case err := <-waiting:
		t.Errorf("the first caller ended by itself: %v", err)
	default:
	}
	cancel()
	if err := <-waiting; err == nil {
		t.Error("an engine that never answered was taken")
	}
	if _, err := r.forTier(t.Context(), sandbox.WASM); !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("a start after Close got %v", err)
	}
}
