//go:build !linux

package wasm

import (
	"context"

	"github.com/sandboxd/sandboxd/sandbox"
)

// WorkerMain does nothing: workers need Linux.
func WorkerMain() {}

type workerPool struct{}

func newWorkerPool(context.Context, Config) *workerPool { return &workerPool{} }

func (*workerPool) close(context.Context) error { return nil }

func (*Runtime) startInWorker(context.Context, sandbox.Spec, sandbox.Egress) (sandbox.Sandbox, error) {
	return nil, &sandbox.UnavailableError{Tier: sandbox.WASM, What: "workers need Landlock and seccomp, which only Linux has", Next: "use wasm-inprocess"}
}
