//go:build !linux

package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/sandbox"
)

const defaultSocket = "/run/sandboxd/engine.sock"

func keeperMain() {}

func newEngine() *cobra.Command {
	return &cobra.Command{
		Use:    "engine",
		Short:  "Run the engine that starts containers (Linux only)",
		Hidden: true,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("the engine needs Linux: WASM servers run here without one, with --isolation wasm-inprocess")
		},
	}
}

func doctorParts(dir string) string { return dir }

func (*runtimes) dialEngine(context.Context) (engineClient, error) {
	return nil, &sandbox.UnavailableError{
		Tier: sandbox.Container, What: "containers need Linux", Next: "run WASM servers here, with --isolation wasm-inprocess",
	}
}
