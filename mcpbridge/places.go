package mcpbridge

import (
	"context"
	"errors"

	"github.com/sandboxd/sandboxd/mcpbridge/fair"
)

type callerKey struct{}

// WithCaller names who makes the calls under ctx. A server's places and those
// of the whole registry are given to callers in turn; calls without a name
// count as one caller's. Over HTTP a client that Config.Authorize tells apart is
// one caller, however many sessions it opens; where it tells nobody apart each
// session is.
func WithCaller(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, callerKey{}, name)
}

func caller(ctx context.Context, s *aggSession) any {
	switch {
	case s == nil:
		if who := ctx.Value(callerKey{}); who != nil {
			return who
		}
		return ""
	case s.modern != nil:
		return s.modern.owner // each of its requests is a session
	}
	return callerOf(s.scope, s)
}

// callerOf is who a session's calls belong to.
func callerOf(scope *Scope, session any) any {
	if scope != nil {
		return scope.name()
	}
	return session
}

// enter takes a place in the server, then one in the registry: no server can
// have all of those, since each that has none gets one at once. leave gives
// both back.
func (e *entry) enter(ctx context.Context, s *aggSession) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, e.srv.CallTimeout)
	defer cancel()
	who := caller(ctx, s)
	if err := e.places.Enter(ctx, who); err != nil {
		return nil, e.busy(err, "this server")
	}
	if err := e.reg.places.Enter(ctx, e.slug); err != nil {
		e.places.Leave(who)
		return nil, e.busy(err, "all servers together")
	}
	return func() {
		e.reg.places.Leave(e.slug)
		e.places.Leave(who)
	}, nil
}

func (e *entry) busy(err error, where string) error {
	if errors.Is(err, fair.ErrFull) {
		return &Error{Code: CodeBusy, Message: "too many calls are waiting for " + where + " already", cause: err}
	}
	return err
}
