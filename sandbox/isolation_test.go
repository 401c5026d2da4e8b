package sandbox_test

import (
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
)

// TestATierIsAMinimum: a weaker tier never passes for a stronger one, but for
// a WASM worker in a container's place where the policy says so; nothing
// passes for what is no tier.
func TestATierIsAMinimum(t *testing.T) {
	rising := []sandbox.Isolation{sandbox.WASMInProcess, sandbox.WASM, sandbox.Container, sandbox.GVisor, sandbox.Kata}
	for i, have := range rising {
		for j, least := range rising {
			for _, counts := range []bool{false, true} {
				want := i >= j || counts && have == sandbox.WASM && least == sandbox.Container
				if got := have.Satisfies(least, counts); got != want {
					t.Errorf("%s for %s, WASM counts %v: %v", have, least, counts, got)
				}
			}
		}
		if parsed, err := sandbox.ParseIsolation(have.String()); err != nil || parsed != have {
			t.Errorf("%s is read as %s, %v", have, parsed, err)
		}
	}
	for _, none := range []sandbox.Isolation{0, -1, sandbox.Kata + 1} {
		if none.Satisfies(sandbox.WASMInProcess, true) || none.Satisfies(0, true) {
			t.Errorf("tier %d satisfies something", none)
		}
		if err := (sandbox.Spec{Isolation: none}).Validate(); err == nil {
			t.Errorf("tier %d can be run", none)
		}
	}
	for _, s := range []string{"", "Container", "gvisor ", "none", "vm", "runc"} {
		if got, err := sandbox.ParseIsolation(s); err == nil {
			t.Errorf("%q is read as %s", s, got)
		}
	}
}
