package mcpbridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/fair"
	"github.com/sandboxd/sandboxd/mcpbridge/streamhttp"
	"github.com/sandboxd/sandboxd/mcpbridge/suspect"
)

// ErrClosed marks use of a registry after Close.
var ErrClosed = errors.New("mcpbridge: registry closed")

// Registry holds the servers, keeps them running and serves them. It is safe
// for concurrent use. Close it when done.
type Registry struct {
	cfg    Config
	events hub
	finder *suspect.Finder
	shown  shown
	places *fair.Queue // calls in flight, by server
	pins   *PinStore
	lists  *PinStore // of tools, by the servers' cache keys
	// pinsEvery is how often approvals are looked for.
	pinsEvery time.Duration

	mu        sync.Mutex
	entries   map[string]*entry // by slug
	order     []string          // slugs as they were added
	closed    bool
	done      chan struct{} // closed with closed
	drained   chan struct{} // closed by Drain
	drainOnce sync.Once
	aggregate *streamhttp.Handler
	sessions  map[*aggSession]struct{} // of the aggregated endpoint
	parked    map[string]*modernCall   // requests that wait for their clients, by state
	expiring  sync.WaitGroup           // of those that waited too long
	agg       atomic.Pointer[aggTable]
	// backoff is how long to wait before the n-th start in a row (from 1).
	backoff func(n int) time.Duration
}

// New checks the configuration. The registry starts empty.
func New(cfg Config) (*Registry, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Registry{
		cfg: cfg, finder: suspect.New(), shown: newShown(cfg.Secrets), entries: map[string]*entry{}, sessions: map[*aggSession]struct{}{},
		parked: map[string]*modernCall{}, done: make(chan struct{}), drained: make(chan struct{}), backoff: backoff,
		pins: OpenPins(PinsDir(cfg.StateDir)), lists: OpenPins(listsDir(cfg.StateDir)), pinsEvery: 2 * time.Second,
	}
	if r.places, err = fair.New(fair.Config{Places: cfg.MaxCalls, Waiting: 8 * cfg.MaxCalls, Own: true}); err != nil {
		return nil, err
	}
	if r.events.places, err = fair.New(fair.Config{Places: cfg.MaxEventStreams, Own: true}); err != nil {
		return nil, err
	}
	if r.aggregate, err = r.newAggregate(); err != nil {
		return nil, err
	}
	return r, nil
}

// backoff doubles from one second to one minute.
func backoff(n int) time.Duration {
	return min(time.Second<<min(n-1, 10), time.Minute)
}

// Add registers servers and starts them concurrently. It returns when every
// required one is ready, or with the errors of those that are not; then
// nothing of this Add stays behind. Optional servers come up by themselves,
// and are started again with growing waits; see Ready.
func (r *Registry) Add(ctx context.Context, servers ...Server) error {
	added := make([]*entry, 0, len(servers))
	for _, s := range servers {
		e, err := r.add(s)
		if err != nil {
			return errors.Join(err, r.undo(ctx, added))
		}
		added = append(added, e)
	}
	for _, e := range added {
		e.start()
	}
	var errs []error
	for _, e := range added {
		if !e.srv.Required {
			continue
		}
		select {
		case <-e.first:
			if e.firstErr != nil {
				errs = append(errs, fmt.Errorf("required server %q: %w", e.srv.Name, e.firstErr))
			}
		case <-ctx.Done():
			errs = append(errs, fmt.Errorf("required server %q: %w", e.srv.Name, context.Cause(ctx)))
		}
	}
	if len(errs) > 0 {
		return errors.Join(append(errs, r.undo(ctx, added))...)
	}
	return nil
}

func (r *Registry) undo(ctx context.Context, added []*entry) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, len(added))
	for i, e := range added {
		wg.Go(func() { errs[i] = r.Remove(ctx, e.srv.Name) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (r *Registry) add(s Server) (*entry, error) {
	s, err := s.withDefaults(r.cfg)
	if err != nil {
		return nil, err
	}
	e, err := newEntry(r, s)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, ErrClosed
	}
	if old := r.entries[e.slug]; old != nil {
		return nil, fmt.Errorf("servers %q and %q are both the connector %q: rename one", old.srv.Name, s.Name, e.slug)
	}
	r.entries[e.slug] = e
	r.order = append(r.order, e.slug)
	return e, nil
}

// Remove stops a server, by its configured name or slug, and waits.
func (r *Registry) Remove(ctx context.Context, name string) error {
	e := r.entry(Slug(name))
	if e == nil {
		return nil
	}
	err := e.stop(ctx)
	r.mu.Lock()
	if r.entries[e.slug] == e {
		delete(r.entries, e.slug)
		r.order = slices.DeleteFunc(r.order, func(s string) bool { return s == e.slug })
	}
	r.mu.Unlock()
	r.publish(Event{Type: EventStopped, Server: e.slug})
	return err
}

// Retry starts a server that is down without waiting any longer.
func (r *Registry) Retry(name string) error {
	e := r.entry(Slug(name))
	if e == nil {
		return errf(CodeUnknownConnector, "no server %q", name)
	}
	select {
	case e.retry <- struct{}{}:
	default:
	}
	return nil
}

// Ready waits until the first start of the named servers (none: of all) has
// ended, well or not, and returns their errors.
func (r *Registry) Ready(ctx context.Context, names ...string) error {
	var errs []error
	for _, e := range r.list() {
		if len(names) > 0 && !slices.Contains(names, e.srv.Name) && !slices.Contains(names, e.slug) {
			continue
		}
		select {
		case <-e.first:
			if e.firstErr != nil {
				errs = append(errs, fmt.Errorf("server %q: %w", e.srv.Name, e.firstErr))
			}
		case <-ctx.Done():
			errs = append(errs, fmt.Errorf("server %q: %w", e.srv.Name, context.Cause(ctx)))
		}
	}
	return errors.Join(errs...)
}

// Connectors are those that have been admitted at least once, in the order in
// which they were added.
func (r *Registry) Connectors() []Connector {
	var out []Connector
	for _, e := range r.list() {
		if e.snap.Load() != nil {
			out = append(out, connector{e})
		}
	}
	return out
}

// Connector finds one by its name (the slug) or the server's name.
func (r *Registry) Connector(name string) (Connector, bool) {
	e := r.entry(Slug(name))
	if e == nil {
		return nil, false
	}
	return connector{e}, true
}

// Status describes one server.
type Status struct {
	Name    string    `json:"name"` // the slug
	Label   string    `json:"label"`
	State   State     `json:"state"`
	Reason  string    `json:"reason,omitempty"` // why it is down
	Stderr  string    `json:"stderr,omitempty"` // and its last words there
	Tools   int       `json:"tools"`
	LeftOut []LeftOut `json:"left_out,omitempty"`
	// Unapproved are tools that differ from the approved ones, held back or
	// not.
	Unapproved []LeftOut `json:"unapproved,omitempty"`
	// Flagged is suspicious text in the admitted tools' definitions.
	Flagged []Flagged `json:"flagged,omitempty"`
	Starts  int       `json:"starts"`
	// Strays counts stdout lines of the present run that were no JSON-RPC,
	// Orphans its answers to nothing.
	Strays   int64 `json:"strays,omitempty"`
	Orphans  int64 `json:"orphans,omitempty"`
	Sessions int   `json:"sessions,omitempty"` // of the raw endpoint
}

// Status describes every server, in the order in which they were added.
func (r *Registry) Status() []Status {
	var out []Status
	agg := r.table().leftOut
	for _, e := range r.list() {
		st := e.status()
		st.LeftOut = append(slices.Clone(st.LeftOut), agg[e.slug]...)
		out = append(out, st)
	}
	return out
}

// Drain ends the streams that would never end by themselves, so that an HTTP
// server can shut down: events, and what sessions say unasked. Calls under way
// go on.
func (r *Registry) Drain() {
	r.drainOnce.Do(func() { close(r.drained) })
	r.aggregate.Drain()
	for _, e := range r.list() {
		e.raw.Drain()
	}
}

// Close stops all servers and sessions and waits, bounded by ctx.
func (r *Registry) Close(ctx context.Context) error {
	r.mu.Lock()
	if !r.closed {
		r.closed = true
		close(r.done)
	}
	r.mu.Unlock()
	err := r.aggregate.Close(ctx)
	r.unparkAll()
	return errors.Join(err, r.undo(ctx, r.list()))
}

func (r *Registry) entry(slug string) *entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.entries[slug]
}

func (r *Registry) list() []*entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]*entry, 0, len(r.order))
	for _, s := range r.order {
		out = append(out, r.entries[s])
	}
	return out
}

func (r *Registry) slugs() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.order)
}

func (r *Registry) publish(e Event) {
	e.Time = time.Now()
	e.Reason, e.Text = r.shown.text(e.Reason), r.shown.text(e.Text)
	if r.cfg.OnEvent != nil {
		r.cfg.OnEvent(e)
	}
	r.events.publish(e)
}
