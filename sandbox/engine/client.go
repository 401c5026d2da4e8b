//go:build linux

package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

// ClientConfig is what a Client needs. Every field has a default.
type ClientConfig struct {
	// Socket is the engine's; empty means DefaultSocket.
	Socket string
	// Progress, where set, hears how an image's hand-over to the engine goes:
	// bytes sent so far, of how many. Calls for one image come one by one.
	Progress func(digest string, sent, total int64)
	// Logger receives diagnostics; nil discards them.
	Logger *slog.Logger
}

// Info is what the engine said about itself.
type Info struct {
	Version string
	Tiers   []sandbox.Isolation
}

// Client is a sandbox.Runtime whose sandboxes an engine starts. If the engine
// ends, its sandboxes do; the next Start connects to its successor.
type Client struct {
	cfg ClientConfig
	log *slog.Logger

	mu      sync.Mutex
	closed  bool
	session *session
	// dialling serialises reconnects; it is never held with mu.
	dialling  chan struct{}
	sandboxes map[*remote]struct{}
	imports   map[string]chan struct{}
	work      sync.WaitGroup // starts, and each sandbox's watcher
}

var _ sandbox.Runtime = (*Client)(nil)

// Dial connects to a running engine. Where there is none, or it may not be
// used, the error is a *sandbox.UnavailableError that says what to do.
func Dial(ctx context.Context, cfg ClientConfig) (*Client, error) {
	if cfg.Socket == "" {
		cfg.Socket = DefaultSocket
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Client{
		cfg: cfg, log: cfg.Logger, dialling: make(chan struct{}, 1),
		sandboxes: map[*remote]struct{}{}, imports: map[string]chan struct{}{},
	}
	if _, err := c.connect(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// connect gives the live session, or makes one.
func (c *Client) connect(ctx context.Context) (*session, error) {
	select {
	case c.dialling <- struct{}{}:
		defer func() { <-c.dialling }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	c.mu.Lock()
	s, closed := c.session, c.closed
	c.mu.Unlock()
	if closed {
		return nil, sandbox.ErrClosed
	}
	if s != nil {
		select {
		case <-s.done:
		default:
			return s, nil
		}
	}
	s, err := dial(ctx, c.cfg.Socket)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	if closed = c.closed; !closed {
		c.session = s
	}
	c.mu.Unlock()
	if closed {
		s.close()
		return nil, sandbox.ErrClosed
	}
	return s, nil
}

// letGo waits until a session that a request found broken has noticed its end
// itself, so that the next connect makes a new one. A session that somebody
// has renewed meanwhile is not waited for long.
func (c *Client) letGo(ctx context.Context) {
	c.mu.Lock()
	s := c.session
	c.mu.Unlock()
	if s == nil {
		return
	}
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-s.done:
	case <-t.C:
	case <-ctx.Done():
	}
}

// Info connects if need be and returns what the engine says about itself.
func (c *Client) Info(ctx context.Context) (Info, error) {
	s, err := c.connect(ctx)
	if err != nil {
		return Info{}, err
	}
	return Info{Version: printable(s.hello.Engine, maxName), Tiers: slices.Clone(s.hello.Tiers)}, nil
}

// Offers returns nil where the engine can start sandboxes of the tier, and
// else a *sandbox.UnavailableError that says what to do.
func (c *Client) Offers(ctx context.Context, tier sandbox.Isolation) error {
	s, err := c.connect(ctx)
	if err != nil {
		return err
	}
	return unavailable(tier, s.hello.Tiers)
}

// List returns the caller's running sandboxes on the engine, whatever process
// started them; root sees everybody's.
func (c *Client) List(ctx context.Context) ([]Entry, error) {
	s, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	var all []Entry
	for after := ""; ; after = all[len(all)-1].ID {
		m, err := roundTrip[*listedMsg](ctx, s, &listMsg{After: after})
		if err != nil {
			return nil, fmt.Errorf("listing sandboxes: %w", err)
		}
		all = append(all, m.Entries...)
		if !m.More || len(m.Entries) == 0 {
			return all, nil
		}
	}
}

// Close ends every sandbox that the client started, waits for them and leaves
// the engine. When ctx ends they are killed. Idempotent.
func (c *Client) Close(ctx context.Context) error {
	c.mu.Lock()
	c.closed = true
	all := make([]*remote, 0, len(c.sandboxes))
	for r := range c.sandboxes {
		all = append(all, r)
	}
	c.mu.Unlock()

	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, r := range all {
		wg.Go(func() { errs[i] = r.Close(ctx) })
	}
	wg.Wait()
	c.mu.Lock()
	s := c.session
	c.mu.Unlock()
	if s != nil {
		s.close()
	}
	// Starts and watchers under way end with the session.
	c.work.Wait()
	return errors.Join(errs...)
}
