package mcpbridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/mcpbridge/streamhttp"
)

// newRaw makes the server's own endpoint.
func (e *entry) newRaw() (*streamhttp.Handler, error) {
	c := e.reg.cfg
	return streamhttp.New(streamhttp.Config{
		Open: e.openRaw, Stateless: e.srv.Sharing == "" || e.srv.Sharing == SharingSession,
		MaxBody: c.MaxBody, MaxSessions: e.srv.Limits.Sessions, Idle: c.SessionIdle, Logger: e.log,
	})
}

func (e *entry) openRaw(ctx context.Context, _ *http.Request, emit streamhttp.Emit) (streamhttp.Session, error) {
	f := newFilter(e.srv)
	if e.srv.Sharing == SharingTenant || e.srv.Sharing == SharingCall {
		return e.openShared(f, emit)
	}
	if e.srv.Prepare != nil {
		if err := e.srv.Prepare(ctx); err != nil {
			return nil, fmt.Errorf("starting the server: %w", err)
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, e.srv.StartTimeout, errors.New("the server did not start in time"))
	defer cancel()
	sb, err := e.srv.Start(ctx)
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
	if refusal := s.filter.fromClient(m, raw); refusal != nil {
		send(s.emit, refusal)
		return nil
	}
	return s.Send(ctx, raw)
}

// Err says how the server ended.
func (s *rawSession) Err() error { return &relay.ExitError{Exit: s.Exit()} }

// filter keeps a client of a raw endpoint to the tools that configuration
// lets through. It touches nothing but lists of tools and calls of others.
type filter struct {
	srv  Server
	on   bool
	mu   sync.Mutex
	list map[string]bool // ids of open tools/list requests
}

func newFilter(srv Server) *filter {
	return &filter{srv: srv, on: srv.ToolsAllowlist != nil || len(srv.Include) > 0, list: map[string]bool{}}
}

// fromClient returns the answer to a request that must not reach the server.
func (f *filter) fromClient(m relay.Message, raw []byte) []byte {
	if !f.on {
		return nil
	}
	if m.Duplicate {
		return refuse(m, raw, "a member is given twice")
	}
	params := m.Params.Of(raw)
	switch m.Method {
	case "tools/call":
		name, twice := onlyMember(params, "name")
		var tool string
		if twice || json.Unmarshal(name.Of(params), &tool) != nil {
			return refuse(m, raw, "params.name must be given once, as a string")
		}
		if !f.srv.selects(tool) {
			return refuse(m, raw, fmt.Sprintf("unknown tool %q", relay.Cut([]byte(tool), 80)))
		}
	case "tools/list":
		if k, ok := relay.IDKey(m.ID.Of(raw)); ok {
			f.mu.Lock()
			f.list[k] = true
			f.mu.Unlock()
		}
	}
	return nil
}

func refuse(m relay.Message, raw []byte, why string) []byte {
	if m.Kind != relay.Request {
		return []byte{} // nobody to tell: dropped
	}
	return relay.ErrorLine(m.ID.Of(raw), -32602, why)
}

// fromServer returns what to pass on: the message, or a list of tools without
// those that are not let through.
func (f *filter) fromServer(m relay.Message, line []byte) (relay.Message, []byte) {
	if !f.on {
		return m, line
	}
	if m.Kind == relay.Batch || m.Duplicate {
		return m, nil // two parsers could read two things: dropped
	}
	if m.Kind != relay.Response || m.Result.End == 0 {
		return m, line
	}
	k, _ := relay.IDKey(m.ID.Of(line))
	f.mu.Lock()
	asked := f.list[k]
	delete(f.list, k)
	f.mu.Unlock()
	if !asked {
		return m, line
	}
	result := m.Result.Of(line)
	tools, twice := onlyMember(result, "tools")
	if twice || tools.End == 0 {
		return m, line
	}
	kept := []byte{'['}
	for _, def := range relay.Elements(tools.Of(result)) {
		name, twice := onlyMember(def, "name")
		var tool string
		if twice || json.Unmarshal(name.Of(def), &tool) != nil || !f.srv.selects(tool) {
			continue
		}
		if len(kept) > 1 {
			kept = append(kept, ',')
		}
		kept = append(kept, def...)
	}
	at := relay.Span{Start: m.Result.Start + tools.Start, End: m.Result.Start + tools.End}
	out, err := relay.Splice(line, relay.Edit{Span: at, With: append(kept, ']')})
	if err != nil {
		return m, nil
	}
	if m, err = relay.Peek(out); err != nil {
		return m, nil
	}
	return m, out
}
