//go:build linux

package wasm_test

import (
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wasm"
)

func TestBudget(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		cpus float64
		used []time.Duration
		want []bool
	}{
		{1, []time.Duration{999 * ms, 0, 1000 * ms, 1000 * ms}, []bool{true, true, false, false}},
		{0.5, []time.Duration{600 * ms, 0, 0}, []bool{false, true, true}},                                                                                   // saved half a second, no more
		{0.1, []time.Duration{1000 * ms, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, []bool{false, false, false, false, false, false, false, false, false, false, true}}, // pays its debt
	} {
		if d := cmp.Diff(c.want, wasm.Budget(c.cpus, c.used...)); d != "" {
			t.Errorf("%g CPUs, %v: %s", c.cpus, c.used, d)
		}
	}
}

// TestProcessorBudget has a guest spin on a quarter of a processor: its worker
// gets no more, and ends at once all the same.
func TestProcessorBudget(t *testing.T) {
	s := spec(t, sandbox.WASM, "spin")
	s.Limits.CPUs = 0.25
	sb := start(t, newRuntime(t), s, nil)
	sb.expect("ready")
	pids := workers(t, os.Getpid())
	if len(pids) != 1 {
		t.Fatalf("%d workers", len(pids))
	}
	before, err := wasm.ProcessTime(pids[0])
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for used := time.Duration(0); time.Since(began) < 20*time.Second; {
		after, err := wasm.ProcessTime(pids[0])
		if err != nil {
			t.Fatal(err)
		}
		// What was saved up before, and two looks' worth too much.
		took := time.Since(began)
		if used = after - before; used > time.Duration(0.25*float64(took+wasm.Burst))+200*time.Millisecond {
			t.Fatalf("the worker used %v in %v", used, took)
		}
		if took > time.Second && used > 500*time.Millisecond {
			break // it has met its bound by now
		}
		time.Sleep(10 * time.Millisecond) // a reading every so often is enough
	}
	if err := sb.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if exit := sb.wait(); exit.Cause != sandbox.Killed {
		t.Errorf("exit %+v", exit)
	}
}
