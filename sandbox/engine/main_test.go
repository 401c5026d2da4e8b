//go:build linux

package engine

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVar); role != "" {
		os.Exit(playRole(role))
	}
	goleak.VerifyTestMain(m)
}

const roleVar = "ENGINE_TEST_ROLE"
