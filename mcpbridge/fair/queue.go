package fair

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// ErrFull refuses a caller because as many wait already as are allowed to.
var ErrFull = errors.New("too many are waiting")

// Config bounds a Queue.
type Config struct {
	Places  int // held at once; at least 1
	Waiting int // allowed to wait; 0 means that nobody waits
	// Own gives each caller that holds no place one at once, even beyond Places:
	// no number of callers that hold theirs for ever can shut another out. What
	// is held is then bounded by Places and the number of callers.
	Own bool
}

// Queue is a bounded number of places and of those who wait for one. A place
// that becomes free goes to the callers in turn, and within one caller in the
// order of asking. It is safe for concurrent use.
type Queue struct {
	cfg Config

	mu      sync.Mutex
	held    int
	waiting int
	callers map[any]*caller
	turns   []*caller // who waits, the next one first
}

type caller struct {
	key   any
	held  int
	queue list.List // of *waiter
}

type waiter struct {
	answer chan error // buffered; answered once, under the queue's lock
}

// New makes a queue with all its places free.
func New(cfg Config) (*Queue, error) {
	if cfg.Places < 1 || cfg.Waiting < 0 {
		return nil, fmt.Errorf("fair: %d places and %d waiting", cfg.Places, cfg.Waiting)
	}
	return &Queue{cfg: cfg, callers: map[any]*caller{}}, nil
}

// Enter takes a place for the caller named by key, which must be comparable,
// and waits for one where it must: until ctx ends, whose error it returns. It
// refuses with ErrFull when too many wait; where the caller has fewer waiting
// than another, the newest of the one with most is refused in its place. After
// nil the caller must Leave.
func (q *Queue) Enter(ctx context.Context, key any) error {
	q.mu.Lock()
	c := q.callers[key]
	if c == nil {
		c = &caller{key: key}
		q.callers[key] = c
	}
	// A place is never free while somebody waits, except that it may be one's own.
	if q.held < q.cfg.Places || q.cfg.Own && c.held == 0 {
		q.held++
		c.held++
		q.mu.Unlock()
		return nil
	}
	if q.waiting >= q.cfg.Waiting && !q.makeRoom(c) {
		q.forget(c)
		q.mu.Unlock()
		return ErrFull
	}
	w := &waiter{answer: make(chan error, 1)}
	at := c.queue.PushBack(w)
	if q.waiting++; c.queue.Len() == 1 {
		q.turns = append(q.turns, c)
	}
	q.mu.Unlock()
	select {
	case err := <-w.answer:
		return err
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case err := <-w.answer:
		if err == nil {
			q.release(c) // it came too late
		}
	default:
		q.drop(c, at)
	}
	return context.Cause(ctx)
}

// Leave gives back a place that Enter took for key.
func (q *Queue) Leave(key any) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if c := q.callers[key]; c != nil && c.held > 0 {
		q.release(c)
	}
}

// Waiting counts those who wait.
func (q *Queue) Waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting
}

// release frees a place of c's and gives it to whose turn it is.
func (q *Queue) release(c *caller) {
	c.held--
	q.held--
	if q.cfg.Own && c.held == 0 && c.queue.Len() > 0 {
		q.serve(c) // it holds none now, and has a right to one
	}
	for q.held < q.cfg.Places && len(q.turns) > 0 {
		q.serve(q.turns[0])
	}
	q.forget(c)
}

// serve gives the first waiter of c a place, and sends c to the end.
func (q *Queue) serve(c *caller) {
	at := c.queue.Front()
	w, _ := at.Value.(*waiter)
	q.held++
	c.held++
	q.drop(c, at)
	if c.queue.Len() > 0 {
		i := slices.Index(q.turns, c)
		q.turns = append(slices.Delete(q.turns, i, i+1), c)
	}
	w.answer <- nil
}

// drop takes one waiter out.
func (q *Queue) drop(c *caller, at *list.Element) {
	c.queue.Remove(at)
	if q.waiting--; c.queue.Len() == 0 {
		i := slices.Index(q.turns, c)
		q.turns = slices.Delete(q.turns, i, i+1)
	}
	q.forget(c)
}

// makeRoom refuses the newest waiter of whoever has most, if that is more than
// c would have.
func (q *Queue) makeRoom(c *caller) bool {
	var most *caller
	for _, o := range q.turns {
		if most == nil || o.queue.Len() > most.queue.Len() {
			most = o
		}
	}
	if most == nil || most.queue.Len() <= c.queue.Len()+1 {
		return false
	}
	at := most.queue.Back()
	w, _ := at.Value.(*waiter)
	q.drop(most, at)
	w.answer <- ErrFull
	return true
}

// forget drops what is known of a caller that neither holds nor waits.
func (q *Queue) forget(c *caller) {
	if c.held == 0 && c.queue.Len() == 0 {
		delete(q.callers, c.key)
	}
}
