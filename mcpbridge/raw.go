package mcpbridge

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/mcpbridge/streamhttp"
)

// newRaw makes the server's own endpoint.
func (e *entry) newRaw() (*streamhttp.Handler, error) {
	c := e.reg.cfg
	return streamhttp.New(streamhttp.Config{
		Open: e.openRaw, Owner: ClientOf, Stateless: e.srv.Sharing == "" || e.srv.Sharing == SharingSession,
		MaxBody: c.MaxBody, MaxSessions: e.srv.Limits.Sessions, Idle: c.SessionIdle, Logger: e.log,
	})
}

func (e *entry) openRaw(ctx context.Context, req *http.Request, emit streamhttp.Emit) (streamhttp.Session, error) {
	f := e.newFilter(scopeOf(req))
	if e.srv.Sharing == SharingTenant || e.srv.Sharing == SharingCall {
		return e.openShared(ctx, f, emit)
	}
	if e.srv.Prepare != nil {
		if err := e.srv.Prepare(ctx); err != nil {
			return nil, fmt.Errorf("starting the server: %w", err)
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, e.srv.StartTimeout, errors.New("the server did not start in time"))
	defer cancel()
	sb, err := e.sandbox(ctx)
	if err != nil {
		return nil, fmt.Errorf("starting the server: %w", err)
	}
	s := &rawSession{filter: f, emit: emit}
	s.Conn = relay.NewConn(sb, relay.ConnOptions{ //nolint:contextcheck // the connection outlives the request that opens it
		MaxLine: e.srv.Limits.Line, Logger: e.log,
		Handle: func(m relay.Message, line []byte) {
			if m, line = f.fromServer(m, line); line != nil {
				emit(m, line)
			}
		},
		Oversize: func(m relay.Message, skeleton []byte, size int64) {
			send(emit, relay.ErrorLine(m.ID.Of(skeleton), -32001, fmt.Sprintf("result of %d bytes is over the limit of %d", size, e.srv.Limits.Line)))
		},
		Stray:  func(line []byte) { e.serverLog("stdout", line) },
		Stderr: &logWriter{line: func(line []byte) { e.serverLog("stderr", line) }},
	})
	return s, nil
}

// rawSession is one client with a sandbox of its own: bytes pass unchanged.
type rawSession struct {
	*relay.Conn
	filter *filter
	emit   streamhttp.Emit
}

// Receive passes one message on.
func (s *rawSession) Receive(ctx context.Context, m relay.Message, raw []byte) error {
	_, raw, refusal := s.filter.fromClient(m, raw)
	if refusal != nil {
		send(s.emit, refusal)
		return nil
	}
	return s.Send(ctx, raw)
}

// Err says how the server ended.
func (s *rawSession) Err() error { return &relay.ExitError{Exit: s.Exit()} }
