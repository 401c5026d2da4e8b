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
	mu   sync.Mutex
	byID map[string]*moduleEntry
	wg   sync.WaitGroup // compilations
}

type moduleEntry struct {
	ready chan struct{} // closed once mod or err is set
	mod   *module
	err   error
	refs  int
	used  time.Time
}

// get returns the module of an image, compiled. The caller must put it back.
// ctx bounds the wait; the compilation goes on for the next one who asks.
func (s *modules) get(ctx context.Context, img sandbox.Image) (*module, error) {
	s.mu.Lock()
	e := s.byID[img.Digest]
	if e == nil {
		e = &moduleEntry{ready: make(chan struct{})}
		s.byID[img.Digest] = e
		s.wg.Go(func() { s.load(context.WithoutCancel(ctx), e, img) })
	}
	e.refs++
	s.mu.Unlock()
	select {
	case <-e.ready:
	case <-ctx.Done():
		s.put(img.Digest)
		return nil, ctx.Err()
	}
	if e.err != nil {
		return nil, e.err
	}
	return e.mod, nil
}

func (s *modules) load(ctx context.Context, e *moduleEntry, img sandbox.Image) {
	bin, err := readModule(img, s.cfg.MaxModuleBytes)
	if err == nil {
		dir := ""
		if s.cfg.CacheDir != "" {
			dir = cachePath(s.cfg.CacheDir, img.Digest, true)
		}
		e.mod, err = loadModule(ctx, bin, img.Digest, dir, true)
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
func (s *modules) put(digest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byID[digest]
	if e == nil {
		return // failed to load
	}
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
