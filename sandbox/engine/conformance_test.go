//go:build linux

package engine

import (
	"runtime"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
)

// TestConformance holds both container tiers, through the engine and its
// socket, to what every tier must do alike.
func TestConformance(t *testing.T) {
	_, socket := startRealEngine(t, "")
	image := imageOf(t, sandboxtest.BuildGuest(t, "linux", runtime.GOARCH))
	for tier, lacks := range map[sandbox.Isolation]map[sandboxtest.Ability]string{
		sandbox.Container: nil,
		sandbox.GVisor: {
			sandboxtest.PIDs: "the host counts gVisor's own threads with the guest's processes, so the limit is on their sum",
		},
	} {
		t.Run(tier.String(), func(t *testing.T) {
			sandboxtest.Run(t, sandboxtest.Config{
				New: func(t *testing.T) sandbox.Runtime {
					c, err := Dial(t.Context(), ClientConfig{Socket: socket})
					if err != nil {
						t.Fatal(err)
					}
					return c
				},
				Spec: sandbox.Spec{
					Tenant: "t", Name: "guest", Isolation: tier, Image: image, Args: []string{"/guest"},
				},
				AddsEnv: []string{"HOME", "PATH"},
				Lacks:   lacks,
			})
		})
	}
}
