package main

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wasm"
)

// runtimes finds the Runtime of a tier: WASM in this process and its workers,
// containers in the engine. Each is made when it is first needed, so that a
// WASM server needs no engine and a container no compiler.
type runtimes struct {
	cache      string // where compiled modules are kept
	socket     string
	log        *slog.Logger
	onTransfer func(digest string, sent, total int64)

	mu         sync.Mutex
	modules    sandbox.Runtime
	containers engineClient
}

// engineClient is the engine as this program uses it.
type engineClient interface {
	sandbox.Runtime
	Offers(ctx context.Context, tier sandbox.Isolation) error
}

func (r *runtimes) forTier(ctx context.Context, tier sandbox.Isolation) (sandbox.Runtime, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if tier.IsWASM() {
		if r.modules == nil {
			rt, err := wasm.New(wasm.Config{ //nolint:contextcheck // a runtime lives until Close, not as long as the first start
				CacheDir: filepath.Join(r.cache, "modules"), WorkerCommand: []string{"/proc/self/exe"}, Logger: r.log,
			})
			if err != nil {
				return nil, err
			}
			r.modules = rt
		}
		return r.modules, nil
	}
	if r.containers == nil {
		rt, err := r.dialEngine(ctx)
		if err != nil {
			var missing *sandbox.UnavailableError
			if errors.As(err, &missing) {
				missing.Tier = tier
			}
			return nil, err
		}
		r.containers = rt
	}
	return r.containers, r.containers.Offers(ctx, tier)
}

// Close ends every sandbox of every tier.
func (r *runtimes) Close(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, rt := range []sandbox.Runtime{r.modules, r.containers} {
		if rt != nil {
			errs = append(errs, rt.Close(ctx))
		}
	}
	return errors.Join(errs...)
}
