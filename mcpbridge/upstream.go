package mcpbridge

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/client"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// sharedCapabilities are declared to a sandbox that many clients share. What
// it then asks is answered by the one client whose requests it has open, or by
// the bridge.
const sharedCapabilities = `{"roots":{},"sampling":{},"elicitation":{"form":{},"url":{}}}`

// maxAsking bounds how long calls can take whose time stands still while a
// client is asked.
const maxAsking = time.Hour

// flight knows which requests a server has open, and whose they are.
type flight struct {
	mu     sync.Mutex
	last   int64
	names  map[int64]string
	owners map[*aggSession]int // of those on the shared sandbox; nil stands for connectors
	who    map[any]int         // and their callers
}

func (f *flight) enter(s *aggSession, who any, what string, shared bool) (leave func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.names == nil {
		f.names, f.owners, f.who = map[int64]string{}, map[*aggSession]int{}, map[any]int{}
	}
	f.last++
	n := f.last
	if what != "" {
		f.names[n] = what
	}
	if shared {
		f.owners[s]++
		f.who[who]++
	}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.names, n)
		if !shared {
			return
		}
		if f.owners[s]--; f.owners[s] == 0 {
			delete(f.owners, s)
		}
		if f.who[who]--; f.who[who] == 0 {
			delete(f.who, who)
		}
	}
}

// only is the session whose requests are all that the shared sandbox has open,
// or nil: stdio does not say which request a server's own belongs to.
func (f *flight) only() *aggSession {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.owners) != 1 {
		return nil
	}
	for s := range f.owners {
		return s
	}
	return nil
}

// mayHear says whether a client may be told what the shared sandbox logs, which
// does not say whose request it is about: a client that is told apart by its
// token hears it where no other has one open.
func (f *flight) mayHear(scope *Scope) bool {
	if scope == nil {
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.who) == 0 || len(f.who) == 1 && f.who[scope.name()] > 0
}

func (f *flight) list() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, name := range f.names {
		out = append(out, name)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// InFlight names the tools whose calls a server has open, by its slug or name,
// in order and each once. It never blocks on a server.
func (r *Registry) InFlight(server string) []string {
	e := r.entry(Slug(server))
	if e == nil {
		return nil
	}
	return e.flight.list()
}

// exchange sends one request within the server's bounds: a place among those
// in flight, a time, and the sandbox that its caller is to have. s is nil for
// connectors. what names the request in records; empty leaves it out.
func (e *entry) exchange(ctx context.Context, s *aggSession, method, what string, attach func(*client.Client) (*client.Progress, []byte, error)) (json.RawMessage, error) {
	began := time.Now()
	leave, err := e.enter(ctx, s)
	if err != nil {
		return nil, err
	}
	defer leave()
	waited := time.Since(began)
	// A start has a bound of its own, and is none of the call's time.
	cl, release, err := e.upstream(ctx, s, method)
	if err != nil {
		return nil, err
	}
	ctx, cancel := e.clock(ctx, s, max(e.srv.CallTimeout-waited, time.Millisecond))
	defer cancel()
	defer release()
	defer e.flight.enter(s, caller(ctx, s), what, cl == e.live.Load())()
	p, params, err := attach(cl)
	if err != nil {
		return nil, err
	}
	return cl.CallFor(ctx, e.caller(s), method, params, p)
}

// caller is who a server of the newest revision asks within its answers: no
// other than the one whose request it answers.
func (e *entry) caller(s *aggSession) client.Caller {
	if s == nil {
		return client.Caller{Capabilities: json.RawMessage(`{"roots":{}}`)}
	}
	return client.Caller{
		Capabilities: json.RawMessage(s.capabilities()),
		Request: func(cl *client.Client, method string, id, params json.RawMessage) bool {
			return s.ask(e, cl, method, id, params)
		},
	}
}

// clock bounds what is left of a call's time, which stands still while the caller's
// client is asked something: a person answers in their own time.
func (e *entry) clock(ctx context.Context, s *aggSession, left time.Duration) (context.Context, context.CancelFunc) {
	if s == nil {
		return context.WithTimeout(ctx, left)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	end := time.Now().Add(maxAsking)
	var mu sync.Mutex
	var t *time.Timer
	mu.Lock()
	defer mu.Unlock()
	t = time.AfterFunc(left, func() {
		mu.Lock()
		defer mu.Unlock()
		if left := s.asking(e, e.srv.CallTimeout); left > 0 && time.Now().Before(end) && ctx.Err() == nil {
			t.Reset(left)
			return
		}
		cancel(context.DeadlineExceeded)
	})
	return ctx, func() { t.Stop(); cancel(context.Canceled) }
}

// upstream gives the sandbox that a request is for.
func (e *entry) upstream(ctx context.Context, s *aggSession, method string) (cl *client.Client, release func(), err error) {
	switch {
	case e.srv.Sharing == SharingSession && s != nil:
		c, err := s.child(ctx, e)
		if err != nil {
			return nil, nil, err
		}
		return c.cl, func() {}, nil
	case e.srv.Sharing == SharingCall && method == "tools/call":
		c, err := e.newChild(ctx, s)
		if err != nil {
			return nil, nil, err
		}
		return c.cl, c.end, nil
	}
	if cl, err = e.acquire(ctx); err != nil {
		return nil, nil, err
	}
	return cl, e.release, nil
}

// child is a sandbox beside the shared one, for one session or one call.
type child struct {
	cl   *client.Client
	end  context.CancelFunc
	gone chan struct{} // closed when nothing is left of it
}

// newChild starts one. s may be nil.
func (e *entry) newChild(ctx context.Context, s *aggSession) (*child, error) { //nolint:contextcheck // it outlives the call that starts it
	e.mu.Lock()
	if e.ctx.Err() != nil {
		e.mu.Unlock()
		return nil, e.down()
	}
	if e.children >= e.srv.Limits.Sessions {
		e.mu.Unlock()
		return nil, errf(CodeBusy, "the server has %d sandboxes of its own sessions already", e.srv.Limits.Sessions)
	}
	e.children++
	e.wg.Add(1) // for the goroutine below, or given back
	e.mu.Unlock()
	drop := func() {
		e.mu.Lock()
		e.children--
		e.mu.Unlock()
		e.wg.Done()
	}
	cl, err := e.childClient(ctx, s)
	if err != nil {
		drop()
		return nil, asStartError(err)
	}
	c := &child{cl: cl, gone: make(chan struct{})}
	var life context.Context
	life, c.end = context.WithCancel(e.ctx)
	go func() {
		defer drop()
		defer close(c.gone)
		select {
		case <-life.Done():
		case <-cl.Done():
		}
		c.end()
		cctx, cancel := context.WithTimeout(context.WithoutCancel(life), stopTimeout)
		defer cancel()
		if err := cl.Close(cctx); err != nil {
			e.log.Error("a session's server did not stop cleanly", "error", relay.Cut([]byte(err.Error()), 300))
		}
	}()
	return c, nil
}

// dialOptions say how one client session is opened.
type dialOptions struct {
	capabilities string
	words        *lastWords // takes the last lines of stderr; may be nil
	notify       func(method string, params json.RawMessage)
	request      func(c *client.Client, method string, id, params json.RawMessage) bool
}

// dial starts a sandbox and initializes the server in it.
func (e *entry) dial(ctx context.Context, o dialOptions) (*client.Client, error) {
	if e.srv.Prepare != nil {
		if err := e.srv.Prepare(ctx); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, e.srv.StartTimeout, errors.New("the server did not start in time"))
	defer cancel()
	sb, err := e.sandbox(ctx)
	if err != nil {
		return nil, err
	}
	// A server on the network takes each message for itself.
	d, network := sb.(interface{ Discovers() bool })
	network = network && d.Discovers()
	e.network.Store(network)
	return client.Connect(ctx, sb, client.Options{
		Discover: network,
		Name:     e.reg.cfg.Name, Version: e.reg.cfg.Version, MaxLine: e.srv.Limits.Line, Logger: e.log,
		Capabilities: json.RawMessage(o.capabilities), Notify: o.notify, Request: o.request,
		Stray: func(line []byte) { e.serverLog("stdout", line) },
		Stderr: &logWriter{line: func(line []byte) {
			if o.words != nil {
				o.words.add(e.reg.shown.line(line))
			}
			e.serverLog("stderr", line)
		}},
	})
}
