package sandboxtest

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

func (s *suite) testMemoryLimit(t *testing.T) {
	s.needs(t, Memory)
	spec := s.spec("alloc")
	spec.Limits.MemoryBytes = 128 << 20
	b := s.start(t, spec, nil)
	b.ready()
	e := b.wait()
	if e.Cause != sandbox.OOM {
		t.Errorf("exit %+v", e)
	}
	// The kernel charges memory by the batch, so its peak may be pages over.
	const batch = 1 << 20
	if e.PeakMemoryBytes > spec.Limits.MemoryBytes+batch {
		t.Errorf("it had %d bytes", e.PeakMemoryBytes)
	}
}

func (s *suite) testWallLimit(t *testing.T) {
	spec := s.spec("stubborn")
	spec.Limits.Wall = 500 * time.Millisecond
	began := time.Now()
	b := s.start(t, spec, nil)
	e := b.wait()
	if e.Cause != sandbox.Deadline || e.Code != 137 || e.Detail == "" {
		t.Errorf("exit %+v", e)
	}
	if d := time.Since(began); d < spec.Limits.Wall || d > slack {
		t.Errorf("it lived for %s", d)
	}
}

func (s *suite) testPIDsLimit(t *testing.T) {
	s.needs(t, Processes)
	s.needs(t, PIDs)
	spec := s.spec("serve")
	spec.Limits.PIDs = 64
	b := s.start(t, spec, nil)
	if got := b.ask("fork 200"); !strings.HasPrefix(got, "error: after ") {
		t.Errorf("200 processes within 64: %q", got)
	}
	b.close(t.Context())
	if e := b.wait(); e.PeakPIDs > spec.Limits.PIDs {
		t.Errorf("it had %d processes", e.PeakPIDs)
	}
}

func (s *suite) testExitCodes(t *testing.T) {
	for _, code := range []int{1, 125} {
		b := s.start(t, s.spec("exit", strconv.Itoa(code)), nil)
		b.ended(sandbox.Exited, code)
	}
}

func (s *suite) testExitBySignal(t *testing.T) {
	s.needs(t, Signals)
	b := s.start(t, s.spec("kill", "9"), nil)
	if e := b.wait(); e.Cause != sandbox.Killed || e.Signal != 9 || e.Code != 137 {
		t.Errorf("exit %+v", e)
	}
}

// testWaitIsShared: every caller gets the same exit, before and after it, and
// a caller whose context ends gets that.
func (s *suite) testWaitIsShared(t *testing.T) {
	b := s.start(t, s.spec("echo"), nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if e, err := b.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait of a cancelled caller: %+v, %v", e, err)
	}
	var wg sync.WaitGroup
	exits := make([]sandbox.Exit, 8)
	for i := range exits {
		wg.Go(func() {
			var err error
			if exits[i], err = b.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	if err := b.Stdio().In.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	want := b.wait()
	for range 20 { // a known exit beats an ended context, always
		if e, err := b.Wait(ctx); err != nil || e != want {
			t.Fatalf("Wait after the end, with a context that ended: %+v, %v", e, err)
		}
	}
	b.close(t.Context())
	for _, e := range append(exits, b.wait()) {
		if e != want || e.Cause != sandbox.Exited {
			t.Errorf("exit %+v, another caller's %+v", e, want)
		}
	}
}

// testNothingOutlives: Wait returns once a child that has left its parent is
// gone as well.
func (s *suite) testNothingOutlives(t *testing.T) {
	s.needs(t, Processes)
	b := s.start(t, s.spec("leave"), nil)
	if got := b.ask("hello"); got != "hello" {
		t.Fatalf("the guest said %q", got)
	}
	if err := b.Stdio().In.Close(); err != nil {
		t.Error(err)
	}
	b.ended(sandbox.Exited, 0)
	if left := processesWith(t, s.marker); len(left) > 0 {
		t.Errorf("left running: %q", left)
	}
}
