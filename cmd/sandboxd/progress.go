package main

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/images"
)

// progress prints a build's steps to stderr, one line each, and nothing for
// an image that is already there.
type progress struct {
	mu   sync.Mutex
	w    io.Writer
	seen map[string]bool // steps that were announced
}

func (p *progress) step(s images.Step) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !s.Done:
		if p.seen[s.Name+s.Detail] {
			return // how far it got; a terminal is not assumed
		}
		if p.seen == nil {
			p.seen = map[string]bool{}
		}
		p.seen[s.Name+s.Detail] = true
		fmt.Fprintf(p.w, "sandboxd: %s: %s …\n", s.Name, s.Detail)
	case s.Bytes > 0:
		fmt.Fprintf(p.w, "sandboxd: %s: done, %s in %s\n", s.Name, size(s.Bytes), s.Took.Round(10*time.Millisecond))
	default:
		fmt.Fprintf(p.w, "sandboxd: %s: done in %s\n", s.Name, s.Took.Round(10*time.Millisecond))
	}
}

// size writes bytes for a person.
func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	default:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
}

// transfer reports an image's hand-over to the engine, at its start and end.
func (p *progress) transfer(digest string, sent, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.seen[digest] {
		if p.seen == nil {
			p.seen = map[string]bool{}
		}
		p.seen[digest] = true
		fmt.Fprintf(p.w, "sandboxd: engine: taking in the image, %s …\n", size(total))
	}
	if sent == total {
		delete(p.seen, digest) // an engine that lost it is told of anew
		fmt.Fprintln(p.w, "sandboxd: engine: image handed over")
	}
}
