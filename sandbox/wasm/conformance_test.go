//go:build linux

package wasm_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
)

// TestConformance holds both tiers to what every tier must do alike.
func TestConformance(t *testing.T) {
	const noProcess = "a WASM module is no process"
	module := filepath.Join(built.dir, "conformance.wasm")
	if err := os.Rename(sandboxtest.BuildGuest(t, "wasip1", "wasm"), module); err != nil {
		t.Fatal(err)
	}
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		lacks := map[sandboxtest.Ability]string{
			sandboxtest.Signals:   noProcess + " and can neither be signalled nor signal",
			sandboxtest.Processes: noProcess + " and can start none",
			sandboxtest.PIDs:      noProcess + " and can start none",
		}
		if tier == sandbox.WASM {
			lacks[sandboxtest.CloseOutput] = "the worker keeps a guest's streams until the guest has ended"
		}
		sandboxtest.Run(t, sandboxtest.Config{
			New: func(t *testing.T) sandbox.Runtime { return newRuntime(t) },
			Spec: sandbox.Spec{
				Tenant: "tenant", Name: "guest", Isolation: tier, Image: image(t, "conformance"), Args: []string{"guest"},
			},
			AddsEnv: []string{"HOME", "PWD"},
			Lacks:   lacks,
		})
	})
}
