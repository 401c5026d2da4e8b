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

	// dialling is held while the engine is dialled, or started; never with mu,
	// so that a WASM server and Close wait for no engine.
	dialling   chan struct{}
	mu         sync.Mutex
	closed     bool
	modules    sandbox.Runtime
	containers engineClient
}

// newRuntimes starts nothing; Close ends what forTier will have made.
func newRuntimes(cache, socket string, log *slog.Logger, onTransfer func(digest string, sent, total int64)) *runtimes {
	return &runtimes{cache: cache, socket: socket, log: log, onTransfer: onTransfer, dialling: make(chan struct{}, 1)}
}

// engineClient is the engine as this program uses it.
type engineClient interface {
	sandbox.Runtime
	Offers(ctx context.Context, tier sandbox.Isolation) error
}

// forTier gives the tier's runtime, which the first of its callers makes. ctx
// bounds the wait for it, another caller's dialling included.
func (r *runtimes) forTier(ctx context.Context, tier sandbox.Isolation) (sandbox.Runtime, error) {
	if tier.IsWASM() {
		return r.wasm() //nolint:contextcheck // a runtime lives until Close, not as long as the first start
	}
	c, err := r.engine(ctx)
	if err != nil {
		var missing *sandbox.UnavailableError
		if errors.As(err, &missing) {
			missing.Tier = tier
		}
		return nil, err
	}
	return c, c.Offers(ctx, tier)
}

func (r *runtimes) wasm() (sandbox.Runtime, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, sandbox.ErrClosed
	}
	if r.modules == nil {
		rt, err := wasm.New(wasm.Config{
			CacheDir: filepath.Join(r.cache, "modules"), WorkerCommand: []string{"/proc/self/exe"}, Logger: r.log,
		})
		if err != nil {
			return nil, err
		}
		r.modules = rt
	}
	return r.modules, nil
}

func (r *runtimes) engine(ctx context.Context) (engineClient, error) {
	select {
	case r.dialling <- struct{}{}:
		defer func() { <-r.dialling }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	r.mu.Lock()
	c, closed := r.containers, r.closed
	r.mu.Unlock()
	if closed {
		return nil, sandbox.ErrClosed
	}
	if c != nil {
		return c, nil
	}
	c, err := r.dialEngine(ctx)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	if closed = r.closed; !closed {
		r.containers = c
	}
	r.mu.Unlock()
	if closed {
		return nil, errors.Join(sandbox.ErrClosed, c.Close(ctx))
	}
	return c, nil
}

// Close ends every sandbox of every tier. Nothing starts after it.
func (r *runtimes) Close(ctx context.Context) error {
	r.mu.Lock()
	r.closed = true
	var errs []error
	all := []sandbox.Runtime{r.modules, r.containers}
	r.mu.Unlock()
	for _, rt := range all {
		if rt != nil {
			errs = append(errs, rt.Close(ctx))
		}
	}
	return errors.Join(errs...)
}
