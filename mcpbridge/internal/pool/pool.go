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

// Sandbox is what a pool needs to know of what it keeps: a sandbox.Sandbox, or
// a session with the server in one.
type Sandbox interface {
	// Wait and Close are as in sandbox.Sandbox.
	Wait(ctx context.Context) (sandbox.Exit, error)
	Close(ctx context.Context) error
}

// Config says what a Pool keeps.
type Config[T Sandbox] struct {
	// Size is how many sandboxes it keeps: 1 to Most.
	Size int
	// Start starts one, and does what is to be done before it waits. ctx bounds
	// that.
	Start func(ctx context.Context) (T, error)
	// Idle ends what waits when nothing was taken for that long; the next Take
	// starts one, and has the pool filled again. 0 never does.
	Idle time.Duration
	// StartTimeout bounds each start in the background.
	StartTimeout time.Duration
	// Logger gets what goes wrong in the background.
	Logger *slog.Logger
}

// Pool keeps sandboxes started. It is safe for concurrent use, and starts
// nothing before Fill.
type Pool[T Sandbox] struct {
	cfg    Config[T]
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	filled bool
	ready  []*waiting[T] // the one that waits longest is first
	taken  time.Time     // when something was last asked for
	asked  chan struct{} // closed at the next Take
	errs   []error       // of ends, for Close
}

// waiting is a sandbox that nobody has taken yet.
type waiting[T Sandbox] struct {
	sb    T
	since time.Time
	gone  chan struct{} // closed when it was taken; under Pool.mu
	over  chan struct{} // closed when it has ended by itself
}

// New checks the configuration. Close must be called.
func New[T Sandbox](cfg Config[T]) (*Pool[T], error) {
	switch {
	case cfg.Size < 1 || cfg.Size > Most:
		return nil, fmt.Errorf("pool: size %d is not between 1 and %d", cfg.Size, Most)
	case cfg.Start == nil || cfg.Logger == nil || cfg.StartTimeout <= 0 || cfg.Idle < 0:
		return nil, errors.New("pool: no Start, Logger or StartTimeout, or a negative Idle")
	}
	p := &Pool[T]{cfg: cfg, asked: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancel(context.Background()) //nolint:gosec // Close cancels it
	return p, nil
}

// Fill begins to keep sandboxes. Later calls do nothing.
func (p *Pool[T]) Fill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.filled || p.ctx.Err() != nil {
		return
	}
	p.filled, p.taken = true, time.Now()
	for range p.cfg.Size {
		p.wg.Go(p.keep)
	}
}

// Take gives a sandbox that waits, which is the caller's from then on, or
// starts one where none does. It fails with sandbox.ErrClosed after Close.
func (p *Pool[T]) Take(ctx context.Context) (T, error) {
	p.mu.Lock()
	if p.ctx.Err() != nil {
		p.mu.Unlock()
		var none T
		return none, fmt.Errorf("pool: %w", sandbox.ErrClosed)
	}
	p.taken = time.Now()
	close(p.asked)
	p.asked = make(chan struct{})
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
func (p *Pool[T]) Ready() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ready)
}

// keep has one place of the pool taken, again and again until Close.
func (p *Pool[T]) keep() {
	backoff := firstBackoff
	for {
		if !p.awake() {
			return
		}
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

// idleIn is how long it will be until the pool is idle: 0 where it is.
func (p *Pool[T]) idleIn() (left time.Duration, asked <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(0, p.cfg.Idle-time.Since(p.taken)), p.asked
}

// awake waits while the pool is idle. It is false once the pool has closed.
func (p *Pool[T]) awake() bool {
	for p.cfg.Idle > 0 {
		left, asked := p.idleIn()
		if left > 0 {
			break
		}
		select {
		case <-asked:
		case <-p.ctx.Done():
			return false
		}
	}
	return p.ctx.Err() == nil
}

// occupy starts a sandbox and waits until it leaves the pool. It is false if
// that went wrong.
func (p *Pool[T]) occupy() bool {
	ctx, cancel := context.WithTimeout(p.ctx, p.cfg.StartTimeout)
	sb, err := p.cfg.Start(ctx)
	cancel()
	if err != nil {
		if p.ctx.Err() == nil {
			p.cfg.Logger.Warn("a sandbox could not be started ahead of its use", "error", err)
		}
		return false
	}
	w := &waiting[T]{sb: sb, since: time.Now(), gone: make(chan struct{}), over: make(chan struct{})}
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
	over := p.sit(w)
	if !p.remove(w) {
		return true // it was taken
	}
	p.end(sb)
	if !over || p.ctx.Err() != nil {
		return true
	}
	p.cfg.Logger.Warn("a sandbox ended before its use", "after", time.Since(w.since))
	return time.Since(w.since) > steady
}

// sit waits until w is taken, the pool is idle or closes, or w has ended by
// itself: then it is true.
func (p *Pool[T]) sit(w *waiting[T]) (over bool) {
	for {
		var idle <-chan time.Time
		if p.cfg.Idle > 0 {
			left, _ := p.idleIn()
			if left == 0 {
				return false
			}
			idle = time.After(left)
		}
		select {
		case <-w.gone:
			return false
		case <-w.over:
			return true
		case <-p.ctx.Done():
			return false
		case <-idle: // or so it was when that was looked up
		}
	}
}

// add is false where the pool has closed meanwhile.
func (p *Pool[T]) add(w *waiting[T]) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return false
	}
	p.ready = append(p.ready, w)
	return true
}

// remove takes w out of those that wait. It is false where Take gave it away.
func (p *Pool[T]) remove(w *waiting[T]) bool {
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
func (p *Pool[T]) end(sb T) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), closeBound)
	defer cancel()
	if err := sb.Close(ctx); err != nil {
		p.cfg.Logger.Error("a sandbox that was kept ready did not end", "error", err)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.errs = append(p.errs, err)
	}
}

// Close ends every sandbox that nobody took, and waits for that until ctx
// ends. What was taken is its taker's. Idempotent.
func (p *Pool[T]) Close(ctx context.Context) error {
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
