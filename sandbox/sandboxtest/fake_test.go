package sandboxtest_test

import (
	"testing"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest"
)

// TestConformance holds the fake to the contract that it stands in for.
func TestConformance(t *testing.T) {
	const none = "a fake guest is a goroutine of the test's own process"
	sandboxtest.Run(t, sandboxtest.Config{
		New: func(*testing.T) sandbox.Runtime { return &sandboxtest.Fake{} },
		Spec: sandbox.Spec{
			Tenant: "t", Name: "guest", Isolation: sandbox.WASMInProcess,
			Image: sandbox.Image{Digest: sandboxtest.FakeDigest}, Args: []string{"guest"},
		},
		Lacks: map[sandboxtest.Ability]string{
			sandboxtest.Memory: none, sandboxtest.PIDs: none, sandboxtest.Signals: none,
			sandboxtest.Processes: none, sandboxtest.Mounts: none, sandboxtest.Network: none,
		},
	})
}
