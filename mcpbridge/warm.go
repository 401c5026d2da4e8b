package mcpbridge

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"

	"github.com/sandboxd/sandboxd/mcpbridge/client"
	"github.com/sandboxd/sandboxd/mcpbridge/internal/pool"
	"github.com/sandboxd/sandboxd/sandbox"
)

// plainCapabilities are declared to a sandbox of a call's own whose caller is a
// connector, or a client that declares no more.
const plainCapabilities = `{"roots":{}}`

// warm are sandboxes that a server has ready, of one kind or none. To a client
// with a session of its own belongs the server's whole conversation, initialize
// included, so that nobody may have spoken to what it gets. Calls that have a
// sandbox each are the bridge's own to introduce, which can be done ahead.
type warm struct {
	untouched *pool.Pool[sandbox.Sandbox]
	listed    *pool.Pool[*spare] // under SharingCall
}

// spare is a server that is initialized and has listed its tools, for a call
// that is yet to come.
type spare struct {
	cl *client.Client
	// session is whose call took it; nil stands for a connector's, or for none.
	session atomic.Pointer[aggSession]
}

// Wait implements pool.Sandbox.
func (s *spare) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-s.cl.Done():
		return s.cl.Exit(), nil
	default:
	}
	select {
	case <-s.cl.Done():
		return s.cl.Exit(), nil
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

// Close implements pool.Sandbox.
func (s *spare) Close(ctx context.Context) error { return s.cl.Close(ctx) }

func (e *entry) newWarm() (w warm, err error) {
	n, idle := e.srv.Warm, e.srv.IdleStop
	switch {
	case n == 0:
	case e.srv.Sharing == SharingCall:
		w.listed, err = pool.New(pool.Config[*spare]{Size: n, Start: e.newSpare, StartTimeout: e.srv.StartTimeout, Idle: idle, Logger: e.log})
	default:
		w.untouched, err = pool.New(pool.Config[sandbox.Sandbox]{Size: n, Start: e.prepared, StartTimeout: e.srv.StartTimeout, Idle: idle, Logger: e.log})
	}
	return w, err
}

func (w *warm) fill() {
	if w.untouched != nil {
		w.untouched.Fill()
	}
	if w.listed != nil {
		w.listed.Fill()
	}
}

func (w *warm) close(ctx context.Context) error {
	if w.untouched != nil {
		return w.untouched.Close(ctx)
	}
	if w.listed != nil {
		return w.listed.Close(ctx)
	}
	return nil
}

// sandbox gives one in which nobody has spoken to the server yet.
func (e *entry) sandbox(ctx context.Context) (sandbox.Sandbox, error) {
	if e.warm.untouched != nil {
		return e.warm.untouched.Take(ctx)
	}
	return e.srv.Start(ctx)
}

// prepared is Server.Start after Server.Prepare.
func (e *entry) prepared(ctx context.Context) (sandbox.Sandbox, error) {
	if e.srv.Prepare != nil {
		if err := e.srv.Prepare(ctx); err != nil {
			return nil, err
		}
	}
	return e.srv.Start(ctx)
}

// newSpare starts a server and makes it known, up to its list of tools: some
// do most of their work when they are first asked for it.
func (e *entry) newSpare(ctx context.Context) (*spare, error) {
	s := &spare{}
	cl, err := e.dial(ctx, dialOptions{
		capabilities: plainCapabilities,
		notify: func(method string, params json.RawMessage) {
			if to := s.session.Load(); to != nil {
				to.hear(e, method, params)
			}
		},
		request: func(cl *client.Client, method string, id, params json.RawMessage) bool {
			to := s.session.Load()
			return to != nil && to.ask(e, cl, method, id, params)
		},
	})
	if err != nil {
		return nil, err
	}
	if _, err := e.list(ctx, cl); err != nil {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		return nil, errors.Join(err, cl.Close(end))
	}
	s.cl = cl
	return s, nil
}

// childClient opens a session with a server in a sandbox beside the shared one.
// s may be nil.
func (e *entry) childClient(ctx context.Context, s *aggSession) (*client.Client, error) {
	opts := dialOptions{capabilities: plainCapabilities}
	if s != nil {
		opts.capabilities = s.capabilities()
		opts.notify = func(method string, params json.RawMessage) { s.hear(e, method, params) }
		opts.request = func(cl *client.Client, method string, id, params json.RawMessage) bool {
			return s.ask(e, cl, method, id, params)
		}
	}
	if e.warm.listed == nil || opts.capabilities != plainCapabilities {
		return e.dial(ctx, opts)
	}
	sp, err := e.warm.listed.Take(ctx)
	if err != nil {
		return nil, err
	}
	sp.session.Store(s)
	return sp.cl, nil
}
