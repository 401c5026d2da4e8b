package wasm

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

// modules keeps compiled modules, one for each digest, and compiles each once
// however many sandboxes ask for it at the same time.
type modules struct {
	cfg  Config
	ctx  context.Context //nolint:containedctx // the Runtime's life, which compilations end with
	mu   sync.Mutex
	byID map[string]*moduleEntry
	wg   sync.WaitGroup // compilations
}

type moduleEntry struct {
	digest string
	ready  chan struct{} // closed once mod or err is set
	mod    *module
	err    error
	refs   int
	used   time.Time
}

// get returns the module of an image, compiled, in an entry that the caller
// must put back. ctx bounds the wait; the compilation goes on for the next one
// who asks.
func (s *modules) get(ctx context.Context, img sandbox.Image) (*moduleEntry, error) {
	s.mu.Lock()
	e := s.byID[img.Digest]
	if e == nil {
		e = &moduleEntry{digest: img.Digest, ready: make(chan struct{})}
		s.byID[img.Digest] = e
		s.wg.Go(func() { s.load(e, img) })
	}
	e.refs++
	s.mu.Unlock()
	select {
	case <-e.ready:
	case <-ctx.Done():
		s.put(e) //nolint:contextcheck // freeing must not be cut short
		return nil, ctx.Err()
	}
	if e.err != nil {
		return nil, e.err
	}
	return e, nil
}

func (s *modules) load(e *moduleEntry, img sandbox.Image) {
	bin, err := readModule(img, s.cfg.MaxModuleBytes)
	if err == nil {
		dir := ""
		if s.cfg.CacheDir != "" {
			dir = cachePath(s.cfg.CacheDir, img.Digest, true)
		}
		e.mod, err = loadModule(s.ctx, bin, dir, true)
	}
	if err != nil {
		e.err = err
		s.mu.Lock()
		delete(s.byID, img.Digest) // the next one tries again
		s.mu.Unlock()
	}
	close(e.ready)
}

// put gives a module back and drops the ones that have been idle longest.
func (s *modules) put(e *moduleEntry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.refs--
	e.used = time.Now()
	for {
		idle, oldest := 0, ""
		for d, e := range s.byID {
			if e.refs > 0 || e.mod == nil {
				continue
			}
			if idle++; oldest == "" || e.used.Before(s.byID[oldest].used) {
				oldest = d
			}
		}
		if idle <= s.cfg.KeepModules {
			return
		}
		if err := s.byID[oldest].mod.close(); err != nil {
			s.cfg.Logger.Warn("freeing a wasm module", "error", err)
		}
		delete(s.byID, oldest)
	}
}

// close frees all modules. No instance may be left.
func (s *modules) close() error {
	s.wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for d, e := range s.byID {
		errs = append(errs, e.mod.close())
		delete(s.byID, d)
	}
	return errors.Join(errs...)
}
