package wasm

import (
	"context"

	"github.com/sandboxd/sandboxd/sandbox"
)

type workerPool struct{}

func newWorkerPool(Config) workerPool          { return workerPool{} }
func (workerPool) close(context.Context) error { return nil }

func (r *Runtime) startInWorker(context.Context, sandbox.Spec, sandbox.Egress) (sandbox.Sandbox, error) {
	return nil, &sandbox.UnavailableError{Tier: sandbox.WASM, What: "no worker processes", Next: "use wasm-inprocess"}
}
