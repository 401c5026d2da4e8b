package sandboxtest

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/guest"
)

// testCloseIsPolite: a guest that ends with its input has ended by itself, and
// closing again changes nothing.
func (s *suite) testCloseIsPolite(t *testing.T) {
	spec := s.spec("echo")
	spec.Limits.StopGrace = slack
	b := s.start(t, spec, nil)
	if got := b.ask("hello"); got != "hello" {
		t.Fatalf("the guest said %q", got)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := b.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	b.close(t.Context())
	b.ended(sandbox.Exited, 0)
	if _, err := b.Stdio().In.Write([]byte("x")); err == nil {
		t.Error("the input still takes bytes")
	}
}

func (s *suite) testCloseSendsTERM(t *testing.T) {
	s.needs(t, Signals)
	spec := s.spec("term")
	b := s.start(t, spec, nil)
	b.ready()
	b.close(t.Context())
	b.ended(sandbox.Exited, guest.StatusTerm)
}

func (s *suite) testCloseEndsTheStubborn(t *testing.T) {
	for _, command := range [][]string{{"stubborn"}, {"flood", "out"}, {"flood", "err"}} {
		b := s.start(t, s.spec(command...), nil)
		if command[0] == "stubborn" {
			b.ready()
		}
		began := time.Now()
		b.close(t.Context())
		if d := time.Since(began); d > slack {
			t.Errorf("%q: Close took %s", command, d)
		}
		if e := b.wait(); command[0] == "stubborn" && (e.Cause != sandbox.Killed || e.Code != 128+e.Signal) {
			t.Errorf("%q: exit %+v", command, e)
		}
	}
}

// testCloseUnblocksStdio: neither a reader nor a writer hangs on a guest that
// is being closed.
func (s *suite) testCloseUnblocksStdio(t *testing.T) {
	b := s.start(t, s.spec("stubborn"), nil)
	b.ready()
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(io.Discard, b.out) })
	wg.Go(func() { _, _ = io.Copy(io.Discard, b.Stdio().Err) })
	wg.Go(func() {
		if _, err := b.Stdio().In.Write(make([]byte, 4<<20)); err == nil {
			t.Error("a guest that reads nothing took 4 MiB")
		}
	})
	b.close(t.Context())
	within(t, "a blocked stream", func() error { wg.Wait(); return nil })
}

// testCloseHeedsItsContext: when it ends, the ladder is cut short.
func (s *suite) testCloseHeedsItsContext(t *testing.T) {
	spec := s.spec("stubborn")
	spec.Limits.StopGrace = time.Minute
	b := s.start(t, spec, nil)
	b.ready()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	b.close(ctx)
	if d := time.Since(began); d > slack {
		t.Errorf("Close took %s", d)
	}
	if e := b.wait(); e.Cause != sandbox.Killed || e.Signal != 9 {
		t.Errorf("exit %+v", e)
	}
}

// testRuntimeClose: the runtime's Close ends what runs and what is starting,
// and nothing starts after it.
func (s *suite) testRuntimeClose(t *testing.T) {
	rt := s.cfg.New(t)
	running, e := &egress{}, &egress{}
	sb, err := rt.Start(t.Context(), s.spec("stubborn"), running)
	if err != nil {
		t.Fatal(err)
	}
	s.remember(sb.ID())
	began := make(chan struct{}, 3)
	var wg sync.WaitGroup
	for range cap(began) {
		wg.Go(func() {
			began <- struct{}{}
			sb, err := rt.Start(t.Context(), s.spec("stubborn"), nil)
			if err != nil {
				return // refused, or ended while it started
			}
			s.remember(sb.ID())
			if _, err := sb.Wait(t.Context()); err != nil {
				t.Error(err)
			}
			if err := sb.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	for range cap(began) {
		<-began
	}
	s.closeRuntime(t, rt)
	within(t, "what was started", func() error { wg.Wait(); return nil })
	if e, err := sb.Wait(t.Context()); err != nil || e.Cause == sandbox.Exited {
		t.Errorf("exit %+v, %v", e, err)
	}
	running.isClosed(t, "Runtime.Close")
	if err := sb.Close(t.Context()); err != nil {
		t.Errorf("Close after the runtime's: %v", err)
	}
	if sb, err := rt.Start(t.Context(), s.spec("echo"), e); !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("a start after Close gave %v, %v", sb, err)
	}
	e.isClosed(t, "a start after Close")
	s.closeRuntime(t, rt)
}
