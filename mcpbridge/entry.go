package mcpbridge

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/client"
	"github.com/sandboxd/sandboxd/mcpbridge/fair"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/mcpbridge/streamhttp"
)

const (
	// stopTimeout bounds a server's stop ladder with room to spare.
	stopTimeout = 30 * time.Second
	// relistEvery bounds how often a server can make the bridge list again. One
	// that goes on doing so waits longer, up to relistSlow.
	relistEvery = 500 * time.Millisecond
	relistSlow  = 10 * time.Second
	// goodRun is how long a server must run for its crashes to be forgotten.
	goodRun = time.Minute
)

// State is what a server is doing.
type State string

// The states.
const (
	StateStarting State = "starting"
	StateReady    State = "ready"
	StateIdle     State = "idle" // it has tools, and a call starts it
	StateDown     State = "down"
	StateFailed   State = "failed"
	StateStopped  State = "stopped"
)

// entry keeps one server running. run, its one goroutine, owns the client.
type entry struct {
	reg  *Registry
	srv  Server
	slug string
	log  *slog.Logger
	raw  *streamhttp.Handler
	warm warm

	places  *fair.Queue // calls in flight, by caller
	flight  flight
	shared  sharedSessions
	changed chan struct{} // tools/list_changed was received
	retry   chan struct{}
	wanted  chan struct{} // a call waits for a server that is idle

	snap atomic.Pointer[snapshot]
	// approved is what the pins say; nil until they were first read.
	approved atomic.Pointer[definitions]
	network  atomic.Bool                   // its messages are HTTP requests
	live     atomic.Pointer[client.Client] // nil while there is none

	mu     sync.Mutex
	state  State
	reason *Error     // why it is not ready
	words  *lastWords // of the latest start
	starts int
	begun  bool // run is or was running
	// children counts the sandboxes beside the shared one; wg has each.
	children int
	// users hold the shared sandbox; without any it may be stopped as idle.
	users        int
	lastUse      time.Time
	turn         chan struct{} // closed when the state changes
	waking       bool          // StateStarting is due to a call
	capabilities []string      // names of the server's
	wg           sync.WaitGroup

	lists  map[string][]json.RawMessage // by method, as they were last seen
	taking sync.Mutex                   // held while a list of tools is admitted
	last   toolList                     // the last one; guarded by taking

	first    chan struct{} // closed when the first start ended
	firstErr error         // valid after first
	cancel   context.CancelFunc
	ctx      context.Context // the server's life, from start to stop
	done     chan struct{}   // closed when run returned
}

func newEntry(r *Registry, s Server) (*entry, error) {
	e := &entry{
		reg: r, srv: s, slug: Slug(s.Name), state: StateStarting,
		reason:  errf(CodeServerDown, "the server is being started"),
		changed: make(chan struct{}, 1), retry: make(chan struct{}, 1), wanted: make(chan struct{}, 1), turn: make(chan struct{}),
		first: make(chan struct{}), done: make(chan struct{}),
	}
	e.log = r.cfg.Logger.With("server", e.slug)
	// The server's life is not bounded by the call that added it.
	e.ctx, e.cancel = context.WithCancel(context.Background())
	var err error
	if e.places, err = fair.New(fair.Config{Places: s.Limits.InFlight, Waiting: s.Limits.Queue}); err != nil {
		return nil, err
	}
	if e.warm, err = e.newWarm(); err != nil {
		return nil, err
	}
	e.raw, err = e.newRaw()
	return e, err
}

func (e *entry) start() {
	e.mu.Lock()
	e.begun = true
	if e.srv.Pin != PinOff && e.ctx.Err() == nil {
		e.wg.Go(func() { e.watchPins(e.ctx) })
	}
	e.mu.Unlock()
	go func() {
		defer close(e.done)
		e.run(e.ctx)
	}()
}

func (e *entry) stop(ctx context.Context) error {
	e.mu.Lock()
	e.cancel() // no child begins after this
	begun := e.begun
	e.mu.Unlock()
	err := errors.Join(e.raw.Close(ctx), e.warm.close(ctx))
	all := make(chan struct{})
	go func() {
		e.wg.Wait()
		if begun {
			<-e.done
		}
		close(all)
	}()
	select {
	case <-all:
		return err
	case <-ctx.Done():
		return errors.Join(err, context.Cause(ctx))
	}
}

// run starts the server again and again until ctx ends or it crashed too
// often.
func (e *entry) run(ctx context.Context) {
	defer e.set(StateStopped, errf(CodeServerDown, "the server was stopped"))
	var once sync.Once
	// ended says whether this was the first start's end.
	ended := func(err error) (first bool) {
		once.Do(func() { e.firstErr, first = err, true; close(e.first) })
		return first
	}
	defer ended(context.Canceled)
	e.set(StateStarting, errf(CodeServerDown, "the server is being started"))
	idle := e.cached(ctx)
	starting := errf(CodeServerDown, "the server is being started")
	for crashes := 0; ctx.Err() == nil; {
		if idle {
			e.set(StateIdle, errIdle())
			ended(nil)
			e.warm.fill()
			if !e.sleep(ctx) {
				return
			}
		} else {
			e.set(StateStarting, starting)
		}
		var up time.Time
		why := e.once(ctx, func() { up = time.Now(); ended(nil); e.warm.fill() })
		if ctx.Err() != nil {
			return
		}
		why = e.reg.shown.reason(why)
		if idle = why == nil; idle {
			crashes = 0
			starting = errf(CodeServerDown, "the server is being started")
			continue
		}
		level := slog.LevelWarn
		if ended(why) && e.srv.Required {
			level = slog.LevelDebug // Add's caller is told, and says it
		}
		if !up.IsZero() && time.Since(up) > goodRun {
			crashes = 0
		}
		crashes++
		// A caller who meets the next start is told what became of the last.
		starting = &Error{Code: CodeServerDown, Message: "the server is being started again; last time: " + why.Message, cause: why}
		if crashes > e.srv.Limits.Restarts {
			e.log.Error("server failed too often and is not started again", "starts", crashes, "reason", why.Message, "stderr", e.lastSaid())
			e.set(StateFailed, why)
		} else {
			e.log.Log(ctx, level, "server is down", "reason", why.Message, "stderr", e.lastSaid())
			e.set(StateDown, why)
		}
		if !e.pause(ctx, crashes) {
			crashes = 0
		}
	}
}

// pause waits for the next start. It is false where somebody asked for it.
func (e *entry) pause(ctx context.Context, crashes int) bool {
	var wait <-chan time.Time
	if crashes <= e.srv.Limits.Restarts {
		t := time.NewTimer(e.reg.backoff(crashes))
		defer t.Stop()
		wait = t.C
	}
	select {
	case <-ctx.Done():
	case <-wait:
	case <-e.retry:
		return false
	}
	return true
}

// once starts the server, serves until it ends, and says why it did: nil for
// one that was stopped as idle.
func (e *entry) once(ctx context.Context, ready func()) *Error {
	cl, tools, err := e.connect(ctx)
	if err != nil {
		return asStartError(err)
	}
	defer func() {
		e.live.Store(nil)
		// Detached: the ladder runs though ctx has ended.
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if err := cl.Close(cctx); err != nil {
			e.log.Error("server did not stop cleanly", "error", relay.Cut([]byte(err.Error()), 300))
		}
	}()
	e.take(&tools)
	e.keep(ctx, cl, tools)
	e.mu.Lock()
	e.lastUse = time.Now()
	e.live.Store(cl)
	select { // what wanted it has it
	case <-e.wanted:
	default:
	}
	e.mu.Unlock()
	e.set(StateReady, nil)
	ready()
	rctx, stop := context.WithCancel(ctx)
	var restoring sync.WaitGroup
	restoring.Go(func() { e.restore(rctx, cl) })
	defer restoring.Wait()
	defer stop()
	var again, idle <-chan time.Time
	pause, listed := relistEvery/2, time.Now()
	if e.srv.IdleStop > 0 {
		idle = time.After(e.srv.IdleStop)
	}
	for {
		select {
		case <-ctx.Done():
			return asError(ctx.Err())
		case <-cl.Done():
			return asError(&relay.ExitError{Exit: cl.Exit()})
		case <-idle:
			wait, retired := e.retire()
			if retired {
				return nil
			}
			idle = time.After(wait)
		case <-e.changed:
			if again == nil {
				e.relist(ctx, cl)
				if pause = min(2*pause, relistSlow); time.Since(listed) > time.Minute {
					pause = relistEvery
				}
				again, listed = time.After(pause), time.Now()
			} else {
				e.poke() // and look again when the pause is over
				select {
				case <-again:
					again = nil
				case <-ctx.Done():
				case <-cl.Done():
				}
			}
		}
	}
}

// asStartError keeps a start's own words, which name the next step.
func asStartError(err error) *Error {
	e := asError(err)
	if e.Code == CodeInternal || e.Code == CodeTimeout || e.Code == CodeCancelled {
		return &Error{Code: CodeServerDown, Message: relay.Cut([]byte(err.Error()), 1000), cause: err}
	}
	return &Error{Code: CodeServerDown, Message: e.Message, cause: err}
}

func (e *entry) connect(ctx context.Context) (*client.Client, toolList, error) {
	e.mu.Lock()
	e.starts++
	words := &lastWords{}
	e.words = words
	e.mu.Unlock()
	cl, err := e.dial(ctx, dialOptions{
		words:        words,
		capabilities: sharedCapabilities, notify: e.notified,
		request: func(cl *client.Client, method string, id, params json.RawMessage) bool {
			s := e.flight.only()
			return s != nil && s.ask(e, cl, method, id, params)
		},
	})
	if err != nil {
		return nil, toolList{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, e.srv.StartTimeout, errors.New("the server did not list its tools in time"))
	defer cancel()
	l, err := e.list(ctx, cl)
	if err != nil {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		return nil, l, errors.Join(err, cl.Close(cctx))
	}
	return cl, l, nil
}

// lastSaid is what the server wrote to stderr last, or nothing.
func (e *entry) lastSaid() string {
	e.mu.Lock()
	words := e.words
	e.mu.Unlock()
	return words.String()
}

func (e *entry) serverLog(stream string, line []byte) {
	line = e.reg.shown.line(line)
	if e.reg.cfg.ServerLog != nil {
		e.reg.cfg.ServerLog(e.slug, stream, line[:min(len(line), 16<<10)])
		return
	}
	if e.log.Enabled(e.ctx, slog.LevelDebug) {
		e.log.Debug("server output", "stream", stream, "line", relay.Cut(line, 500))
	}
}

func (e *entry) set(s State, why *Error) {
	e.mu.Lock()
	e.state, e.reason = s, why
	e.waking = e.waking && s == StateStarting
	close(e.turn)
	e.turn = make(chan struct{})
	e.mu.Unlock()
	ev := Event{Server: e.slug}
	if s == StateDown || s == StateFailed {
		ev.Stderr = e.lastSaid()
	}
	switch s {
	case StateStarting:
		ev.Type = EventStarting
	case StateReady:
		ev.Type, ev.OK = EventReady, true
		if snap := e.snap.Load(); snap != nil {
			ev.Tools = len(snap.tools)
		}
	case StateIdle:
		ev.Type, ev.OK = EventIdle, true
	case StateDown:
		ev.Type, ev.Reason = EventDown, why.Message
	case StateFailed:
		ev.Type, ev.Reason = EventFailed, why.Message
	case StateStopped:
		return
	}
	e.reg.publish(ev)
}

func (e *entry) status() Status {
	e.mu.Lock()
	st := Status{Name: e.slug, Label: e.srv.Label, State: e.state, Starts: e.starts, Sessions: e.raw.Len()}
	if e.reason != nil {
		st.Reason = e.reason.Message
	}
	if e.state == StateDown || e.state == StateFailed {
		st.Stderr = e.words.String()
	}
	e.mu.Unlock()
	if snap := e.snap.Load(); snap != nil {
		st.Tools, st.LeftOut, st.Unapproved, st.Flagged = len(snap.tools), snap.leftOut, snap.unapproved, snap.flagged
	}
	if cl := e.live.Load(); cl != nil {
		st.Strays, st.Orphans = cl.Stats()
	}
	return st
}

func (e *entry) descriptor() Descriptor {
	d := Descriptor{Name: e.slug, Label: e.srv.Label, Type: "api", Actions: []Action{}}
	if snap := e.snap.Load(); snap != nil {
		for _, t := range snap.tools {
			d.Actions = append(d.Actions, t.action)
		}
	}
	return d
}
