package mcpbridge

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// requests runs a session's requests, each in a goroutine of its own, and
// knows how to cancel them by id.
type requests struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	byID   map[string]context.CancelCauseFunc
	closed bool
}

var (
	errSessionClosed = errors.New("the session was closed")
	errClientCancel  = fmt.Errorf("%w: the client cancelled it", context.Canceled)
)

func newRequests() *requests {
	q := &requests{byID: map[string]context.CancelCauseFunc{}}
	// A session outlives the HTTP request that opened it.
	q.ctx, q.cancel = context.WithCancelCause(context.Background())
	return q
}

func (q *requests) run(id []byte, f func(ctx context.Context)) error {
	k, _ := relay.IDKey(id)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return errSessionClosed
	}
	ctx, cancel := context.WithCancelCause(q.ctx)
	q.byID[k] = cancel
	q.wg.Go(func() {
		f(ctx)
		cancel(nil)
		q.mu.Lock()
		delete(q.byID, k)
		q.mu.Unlock()
	})
	return nil
}

// cancelled handles a notifications/cancelled.
func (q *requests) cancelled(params []byte) {
	id, ok := relay.Member(params, "requestId")
	if !ok {
		return
	}
	k, _ := relay.IDKey(id.Of(params))
	q.mu.Lock()
	defer q.mu.Unlock()
	if cancel := q.byID[k]; cancel != nil {
		cancel(errClientCancel)
	}
}

func (q *requests) Done() <-chan struct{} { return q.ctx.Done() }

func (q *requests) Err() error { return context.Cause(q.ctx) }

func (q *requests) Close(ctx context.Context) error {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.cancel(errSessionClosed)
	done := make(chan struct{})
	go func() { q.wg.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
