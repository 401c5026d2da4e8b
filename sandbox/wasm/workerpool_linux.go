package wasm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

// workerKey is what sandboxes must share to share a worker: never two tenants,
// never two modules.
type workerKey struct {
	tenant, digest string
}

// workerPool owns all workers. A worker stays for a while after its last
// sandbox, since starting one and loading a module takes most of a second.
type workerPool struct {
	cfg Config
	ctx context.Context //nolint:containedctx // the Runtime's life, which compilations end with

	mu     sync.Mutex
	closed bool
	byKey  map[workerKey]*workerSlot
	all    sync.WaitGroup // workers that still run

	compiling sync.Mutex // one at a time: a compilation takes all processors
}

// workerSlot is a worker, or one that is about to be.
type workerSlot struct {
	ready chan struct{} // closed once w or err is set
	w     *worker
	err   error
	refs  int
	idle  *time.Timer
}

func newWorkerPool(ctx context.Context, cfg Config) *workerPool {
	return &workerPool{cfg: cfg, ctx: ctx, byKey: map[workerKey]*workerSlot{}}
}

// available says why tier wasm cannot be had, or nil.
func (p *workerPool) available() error {
	switch {
	case len(p.cfg.WorkerCommand) == 0:
		return &sandbox.UnavailableError{Tier: sandbox.WASM, What: "no worker command is configured", Next: "set one, or use wasm-inprocess"}
	case p.cfg.CacheDir == "":
		return &sandbox.UnavailableError{Tier: sandbox.WASM, What: "no cache folder is configured", Next: "set one: workers read compiled code from it"}
	}
	return nil
}

// get returns a running worker that has the image loaded. The caller must put
// it back.
func (p *workerPool) get(ctx context.Context, tenant string, img sandbox.Image) (*worker, error) {
	key := workerKey{tenant, img.Digest}
	p.mu.Lock()
	s := p.byKey[key]
	if s != nil && s.w != nil && s.w.isDead() {
		s = nil // found dead; its sandboxes know
	}
	if s == nil {
		s = &workerSlot{ready: make(chan struct{})}
		p.byKey[key] = s
		p.all.Go(func() { p.launch(key, s, img) }) //nolint:contextcheck // freeing must not be cut short
	}
	if s.idle != nil {
		s.idle.Stop()
		s.idle = nil
	}
	s.refs++
	p.mu.Unlock()
	select {
	case <-s.ready:
	case <-ctx.Done():
		p.put(key, s)
		return nil, ctx.Err()
	}
	if s.err != nil {
		return nil, s.err
	}
	return s.w, nil
}

// put gives a worker back. When nobody has it any more it ends after a while.
func (p *workerPool) put(key workerKey, s *workerSlot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.refs--; s.refs > 0 {
		return
	}
	if p.cfg.WorkerIdle < 0 || p.closed {
		p.retire(key, s)
		return
	}
	s.idle = time.AfterFunc(p.cfg.WorkerIdle, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if s.refs == 0 {
			p.retire(key, s)
		}
	})
}

// retire ends a worker that nobody has. p.mu is held.
func (p *workerPool) retire(key workerKey, s *workerSlot) {
	if p.byKey[key] == s {
		delete(p.byKey, key)
	}
	select {
	case <-s.ready:
		if s.w != nil {
			s.w.kill(errIdle)
		}
	default: // launch sees that nobody waits
	}
}

var errIdle = errors.New("nobody needed the worker any more")

// launch makes a worker ready and then stays with it until it ends.
func (p *workerPool) launch(key workerKey, s *workerSlot, img sandbox.Image) {
	w, err := p.prepare(img)
	p.mu.Lock()
	if err != nil {
		s.err = err
		if p.byKey[key] == s {
			delete(p.byKey, key)
		}
	} else {
		w.key, w.slot = key, s
		s.w = w
	}
	abandoned := err == nil && s.refs == 0 && (p.closed || p.byKey[key] != s)
	close(s.ready)
	p.mu.Unlock()
	if err != nil {
		return
	}
	if abandoned {
		w.kill(errIdle)
	}
	var governed sync.WaitGroup
	governed.Go(w.govern)
	w.serve()
	governed.Wait()
	p.mu.Lock()
	if p.byKey[key] == s {
		delete(p.byKey, key)
	}
	if s.idle != nil {
		s.idle.Stop()
	}
	p.mu.Unlock()
}

// prepare compiles the module if need be and starts a worker with it.
func (p *workerPool) prepare(img sandbox.Image) (*worker, error) {
	bin, err := readModule(img, p.cfg.MaxModuleBytes)
	if err != nil {
		return nil, err
	}
	dir := cachePath(p.cfg.CacheDir, img.Digest, false)
	if !cached(dir) {
		if err := p.compile(bin, dir); err != nil {
			return nil, err
		}
	}
	w, err := startWorker(p.cfg, dir, bin)
	if !errors.Is(err, errLoad) {
		return w, err
	}
	// The cache may be from another engine, or damaged: once more with a new one.
	p.cfg.Logger.Warn("compiling a wasm module again", "digest", img.Digest, "error", err)
	if err := os.RemoveAll(dir); err != nil {
		return nil, fmt.Errorf("wasm: cache folder: %w", err)
	}
	if err := p.compile(bin, dir); err != nil {
		return nil, err
	}
	return startWorker(p.cfg, dir, bin)
}

// compile writes a module's code to the cache. Only the host does that: what
// is in the cache is executed.
func (p *workerPool) compile(bin []byte, dir string) error {
	p.compiling.Lock()
	defer p.compiling.Unlock()
	if cached(dir) {
		return nil // by another tenant's start, just now
	}
	m, err := loadModule(p.ctx, bin, dir, false)
	if err != nil {
		return err
	}
	return m.close()
}

// close ends all workers and waits for them. No sandbox may be left.
func (p *workerPool) close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	for key, s := range p.byKey {
		if s.idle != nil {
			s.idle.Stop()
		}
		p.retire(key, s)
	}
	p.mu.Unlock()
	done := make(chan struct{})
	go func() { p.all.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the wasm workers: %w", ctx.Err())
	}
}
