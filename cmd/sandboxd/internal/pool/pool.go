package pool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

const (
	// Most is the largest pool.
	Most = 16
	// refillPause lets whoever took a sandbox make a call before the next start
	// competes with it.
	refillPause = 250 * time.Millisecond
	// Starts that fail, and sandboxes that end unused, are tried again with a
	// pause that doubles.
	firstBackoff, lastBackoff = time.Second, time.Minute
	// steady is how long a sandbox must have waited for its end to be no sign
	// of one that never works.
	steady = time.Minute
	// closeBound limits the end of one sandbox.
	closeBound = 30 * time.Second
)

// Config says what a Pool keeps.
type Config struct {
	// Size is how many sandboxes it keeps: 1 to Most.
	Size int
	// Start starts one. ctx bounds the start.
	Start func(ctx context.Context) (sandbox.Sandbox, error)
	// StartTimeout bounds each start in the background.
	StartTimeout time.Duration
	// Logger gets what goes wrong in the background.
	Logger *slog.Logger
}

// Pool keeps sandboxes started. It is safe for concurrent use, and starts
// nothing before Fill.
type Pool struct {
	cfg    Config
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	filled bool
	ready  []*waiting // the one that waits longest is first
	errs   []error    // of ends, for Close
}

// waiting is a sandbox that nobody has taken yet.
type waiting struct {
	sb    sandbox.Sandbox
	since time.Time
	gone  chan struct{} // closed when it was taken; under Pool.mu
	over  chan struct{} // closed when it has ended by itself
}

// New checks the configuration. Close must be called.
func New(cfg Config) (*Pool, error) {
	switch {
	case cfg.Size < 1 || cfg.Size > Most:
		return nil, fmt.Errorf("pool: size %d is not between 1 and %d", cfg.Size, Most)
	case cfg.Start == nil || cfg.Logger == nil || cfg.StartTimeout <= 0:
		return nil, errors.New("pool: no Start, Logger or StartTimeout")
	}
	p := &Pool{cfg: cfg}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p, nil
}

// Fill begins to keep sandboxes. Later calls do nothing.
func (p *Pool) Fill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.filled || p.ctx.Err() != nil {
		return
	}
	p.filled = true
	for range p.cfg.Size {
		p.wg.Go(p.keep)
	}
}

// Take gives a sandbox that waits, which is the caller's from then on, or
// starts one where none does. It fails with sandbox.ErrClosed after Close.
func (p *Pool) Take(ctx context.Context) (sandbox.Sandbox, error) {
	p.mu.Lock()
	if p.ctx.Err() != nil {
		p.mu.Unlock()
		return nil, fmt.Errorf("pool: %w", sandbox.ErrClosed)
	}
	for len(p.ready) > 0 {
		w := p.ready[0]
		p.ready = p.ready[1:]
		select {
		case <-w.over: // its keeper closes it
			continue
		default:
		}
		close(w.gone)
		p.mu.Unlock()
		return w.sb, nil
	}
	p.mu.Unlock()
	return p.cfg.Start(ctx)
}

// Ready is how many sandboxes wait to be taken.
func (p *Pool) Ready() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ready)
}

// keep has one place of the pool taken, again and again until Close.
func (p *Pool) keep() {
	backoff := firstBackoff
	for {
		pause := refillPause
		if p.occupy() {
			backoff = firstBackoff
		} else {
			pause = backoff
			backoff = min(2*backoff, lastBackoff)
		}
		select {
		case <-p.ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// occupy starts a sandbox and waits until it leaves the pool. It is false if
// that went wrong.
func (p *Pool) occupy() bool {
	ctx, cancel := context.WithTimeout(p.ctx, p.cfg.StartTimeout)
	sb, err := p.cfg.Start(ctx)
	cancel()
	if err != nil {
		if p.ctx.Err() == nil {
			p.cfg.Logger.Warn("a sandbox could not be started ahead of its use", "error", err)
		}
		return false
	}
	w := &waiting{sb: sb, since: time.Now(), gone: make(chan struct{}), over: make(chan struct{})}
	if !p.add(w) {
		p.end(sb)
		return true
	}
	watch, stop := context.WithCancel(p.ctx)
	defer stop()
	p.wg.Go(func() {
		if _, err := sb.Wait(watch); err == nil {
			close(w.over)
		}
	})
	select {
	case <-w.gone:
		return true
	case <-w.over:
	case <-p.ctx.Done():
	}
	if !p.remove(w) {
		return true // it was taken just now
	}
	p.end(sb)
	if p.ctx.Err() != nil {
		return true
	}
	p.cfg.Logger.Warn("a sandbox ended before its use", "sandbox", sb.ID(), "after", time.Since(w.since))
	return time.Since(w.since) > steady
}

// add is false where the pool has closed meanwhile.
func (p *Pool) add(w *waiting) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return false
	}
	p.ready = append(p.ready, w)
	return true
}

// remove takes w out of those that wait. It is false where Take gave it away.
func (p *Pool) remove(w *waiting) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, x := range p.ready {
		if x == w {
			p.ready = append(p.ready[:i:i], p.ready[i+1:]...)
			break
		}
	}
	select {
	case <-w.gone:
		return false
	default:
		return true
	}
}

// end closes a sandbox that nobody took.
func (p *Pool) end(sb sandbox.Sandbox) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), closeBound)
	defer cancel()
	if err := sb.Close(ctx); err != nil {
		p.cfg.Logger.Error("a sandbox that was kept ready did not end", "sandbox", sb.ID(), "error", err)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.errs = append(p.errs, err)
	}
}

// Close ends every sandbox that nobody took, and waits for that until ctx
// ends. What was taken is its taker's. Idempotent.
func (p *Pool) Close(ctx context.Context) error {
	p.mu.Lock()
	p.cancel()
	p.mu.Unlock()
	all := make(chan struct{})
	go func() {
		p.wg.Wait()
		close(all)
	}()
	select {
	case <-all:
	case <-ctx.Done():
		return fmt.Errorf("pool: still ending sandboxes: %w", context.Cause(ctx))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(p.errs...)
}
