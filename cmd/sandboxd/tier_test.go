package main

import (
	"testing"

	"github.com/sandboxd/sandboxd/images"
	"github.com/sandboxd/sandboxd/policies"
	"github.com/sandboxd/sandboxd/sandbox"
)

// TestIsolationIsNeverLowered: whatever is asked for, what is chosen is that
// or a refusal, and meets the policy's minimum; without a wish it is the
// minimum at least. kata is a tier like any, for the engine to refuse.
func TestIsolationIsNeverLowered(t *testing.T) {
	tiers := []sandbox.Isolation{0, sandbox.WASMInProcess, sandbox.WASM, sandbox.Container, sandbox.GVisor, sandbox.Kata}
	for _, kind := range []images.Kind{images.KindNPM, images.KindWASM} {
		for _, asked := range tiers {
			for _, least := range tiers {
				for _, counts := range []bool{false, true} {
					p := &policies.Policy{Isolation: least, WASMCountsAsContainer: counts}
					got, err := chooseTier(images.Ref{Kind: kind, Name: "x"}, server{policy: p, isolation: asked})
					if err != nil {
						if got != 0 {
							t.Errorf("%s, asked %s of at least %s: %s beside %v", kind, asked, least, got, err)
						}
						continue
					}
					if asked != 0 && got != asked || !got.Satisfies(least, counts) || got.IsWASM() != (kind == images.KindWASM) {
						t.Errorf("%s, asked %s of at least %s: %s", kind, asked, least, got)
					}
				}
			}
		}
	}
	for least, want := range map[sandbox.Isolation]sandbox.Isolation{0: sandbox.Container, sandbox.GVisor: sandbox.GVisor, sandbox.Kata: sandbox.Kata} {
		got, err := chooseTier(images.Ref{Kind: images.KindNPM, Name: "x"}, server{policy: &policies.Policy{Isolation: least}})
		if err != nil || got != want {
			t.Errorf("at least %s: %s, %v", least, got, err)
		}
	}
}
