package sandboxtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

// Ability is something that not every tier can do.
type Ability string

// The abilities that the suite asks about.
const (
	// Memory: a guest that needs more than Limits.MemoryBytes ends with OOM.
	Memory Ability = "memory limit"
	// PIDs: Limits.PIDs bounds the guest's processes exactly.
	PIDs Ability = "pids limit"
	// Signals: the guest can be signalled, by itself and by the stop ladder.
	Signals Ability = "signals"
	// Processes: the guest can start others.
	Processes Ability = "processes"
	// Mounts: host folders can be shown to the guest.
	Mounts Ability = "mounts"
	// CloseOutput: a guest that closes its output shows its reader the end.
	CloseOutput Ability = "closing its own output"
	// Network: there is a network that a guest could be kept from.
	Network Ability = "network"
)

// Config says what the suite runs on.
type Config struct {
	// New returns a runtime that the suite closes. It may share an engine with
	// others, but no sandboxes.
	New func(t *testing.T) sandbox.Runtime
	// Spec is how to run package guest: tier, image and Args, to which the
	// suite adds the command.
	Spec sandbox.Spec
	// AddsEnv names the variables that the tier gives a guest by itself.
	AddsEnv []string
	// Lacks names what the tier cannot do, each with the reason.
	Lacks map[Ability]string
	// Left lists what is left of sandboxes beyond what the suite finds by
	// itself (processes, mounts and cgroups by name). May be nil.
	Left func(t *testing.T) []string
}

const (
	// grace is the specs' StopGrace.
	grace = 200 * time.Millisecond
	// slack is what a busy machine may add to any bound.
	slack = 15 * time.Second
	// patience bounds every step of the suite, so that what hangs is named.
	patience = time.Minute
)

// suite is one run of Run.
type suite struct {
	cfg    Config
	rt     sandbox.Runtime
	marker string // the last argument of every guest, to find it by

	mu  sync.Mutex
	ids []string
}

// Run runs the suite as subtests, and at the end holds the host to what it was
// before.
func Run(t *testing.T, cfg Config) {
	t.Helper()
	for a, reason := range cfg.Lacks {
		if reason == "" {
			t.Fatalf("the tier lacks %q for no reason", a)
		}
	}
	raw := make([]byte, 8)
	if _, err := rand.Read(raw); err != nil {
		t.Fatal(err)
	}
	s := &suite{cfg: cfg, marker: "sandboxtest-" + hex.EncodeToString(raw)}
	var before stock
	t.Run("WarmStart", func(t *testing.T) {
		s.warm(t)
		before = takeStock(t)
	})
	s.rt = cfg.New(t)
	for _, c := range []struct {
		name string
		run  func(*suite, *testing.T)
	}{
		{"Stdio", (*suite).testStdio},
		{"LargeOutput", (*suite).testLargeOutput},
		{"GuestClosesOutput", (*suite).testGuestClosesOutput},
		{"StdinOfTheDead", (*suite).testStdinOfTheDead},
		{"SeesOnlyItsSpec", (*suite).testSeesOnlyItsSpec},
		{"MemoryLimit", (*suite).testMemoryLimit},
		{"WallLimit", (*suite).testWallLimit},
		{"PIDsLimit", (*suite).testPIDsLimit},
		{"ExitCodes", (*suite).testExitCodes},
		{"ExitBySignal", (*suite).testExitBySignal},
		{"WaitIsShared", (*suite).testWaitIsShared},
		{"NothingOutlivesTheGuest", (*suite).testNothingOutlives},
		{"CloseIsPolite", (*suite).testCloseIsPolite},
		{"CloseSendsTERM", (*suite).testCloseSendsTERM},
		{"CloseEndsTheStubborn", (*suite).testCloseEndsTheStubborn},
		{"CloseUnblocksStdio", (*suite).testCloseUnblocksStdio},
		{"CloseHeedsItsContext", (*suite).testCloseHeedsItsContext},
		{"NoEgressNoNetwork", (*suite).testNoEgressNoNetwork},
		{"EgressEndsWithTheSandbox", (*suite).testEgressEnds},
		{"FailedStarts", (*suite).testFailedStarts},
		{"CancelledStarts", (*suite).testCancelledStarts},
		{"Mounts", (*suite).testMounts},
		{"ManyAtOnce", (*suite).testManyAtOnce},
		{"RuntimeCloseEndsAll", (*suite).testRuntimeClose},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(s, t) })
	}
	s.closeRuntime(t, s.rt)
	t.Run("LeavesNothing", func(t *testing.T) { s.testLeavesNothing(t, before) })
}

// needs skips a test of what the tier cannot do, by name and with its reason.
func (s *suite) needs(t *testing.T, a Ability) {
	t.Helper()
	if reason, ok := s.cfg.Lacks[a]; ok {
		t.Skipf("%s has no %s: %s", s.cfg.Spec.Isolation, a, reason)
	}
}

// warm opens what the first start opens for good.
func (s *suite) warm(t *testing.T) {
	t.Helper()
	s.rt = s.cfg.New(t)
	b := s.start(t, s.spec("exit", "0"), nil)
	b.wait()
	b.close(t.Context())
	s.closeRuntime(t, s.rt)
}

func (s *suite) closeRuntime(t *testing.T, rt sandbox.Runtime) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := rt.Close(ctx); err != nil {
		t.Errorf("Runtime.Close: %v", err)
	}
}

// spec is the tier's spec with a command of package guest.
func (s *suite) spec(command ...string) sandbox.Spec {
	spec := s.cfg.Spec
	spec.Args = append(append(slices.Clone(spec.Args), command...), s.marker)
	spec.Limits.StopGrace = grace
	return spec
}

func (s *suite) remember(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids = append(s.ids, id)
}
