package mcpbridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"github.com/sandboxd/sandboxd/mcpbridge/client"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/mcpbridge/streamhttp"
)

func (r *Registry) newAggregate() (*streamhttp.Handler, error) {
	return streamhttp.New(streamhttp.Config{
		Open: func(_ context.Context, _ *http.Request, emit streamhttp.Emit) (streamhttp.Session, error) {
			return r.openAggregate(emit), nil
		},
		MaxBody: r.cfg.MaxBody, MaxSessions: r.cfg.MaxSessions, Idle: r.cfg.SessionIdle, Logger: r.cfg.Logger,
	})
}

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

// aggSession is one client of the aggregated endpoint.
type aggSession struct {
	*requests
	reg  *Registry
	emit streamhttp.Emit
}

func (r *Registry) openAggregate(emit streamhttp.Emit) *aggSession {
	s := &aggSession{requests: newRequests(), reg: r, emit: emit}
	events, stop := r.events.subscribe()
	s.wg.Go(func() {
		defer stop()
		for {
			select {
			case <-s.ctx.Done():
				return
			case ev := <-events:
				if ev.Type == EventTools || ev.Type == EventStopped {
					send(emit, []byte(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`))
				}
			}
		}
	})
	return s
}

// send emits a message that the bridge made.
func send(emit streamhttp.Emit, raw []byte) {
	if m, err := relay.Peek(raw); err == nil {
		emit(m, raw)
	}
}

// Receive handles one message of the client.
func (s *aggSession) Receive(_ context.Context, m relay.Message, raw []byte) error {
	switch m.Kind { //nolint:exhaustive // a response answers nothing: this endpoint asks for nothing
	case relay.Notification:
		if m.Method == "notifications/cancelled" {
			s.cancelled(m.Params.Of(raw))
		}
	case relay.Request:
		id, params := m.ID.Of(raw), m.Params.Of(raw)
		return s.run(id, func(ctx context.Context) { send(s.emit, s.answer(ctx, m.Method, id, params)) }) //nolint:contextcheck // a request is cancelled by its own message
	}
	return nil
}

func (s *aggSession) answer(ctx context.Context, method string, id, params []byte) []byte {
	switch method {
	case "initialize":
		return resultLine(id, s.reg.initializeResult(params))
	case "ping":
		return resultLine(id, []byte(`{}`))
	case "tools/list":
		if _, ok := relay.Member(params, "cursor"); ok {
			return relay.ErrorLine(id, -32602, "no such cursor: the list has one page")
		}
		return resultLine(id, s.reg.table().list)
	case "tools/call":
		return s.callTool(ctx, id, params)
	}
	return relay.ErrorLine(id, -32601, "method not found")
}

func resultLine(id, result []byte) []byte {
	out := make([]byte, 0, len(id)+len(result)+40)
	out = append(append(out, `{"jsonrpc":"2.0","id":`...), id...)
	out = append(append(out, `,"result":`...), result...)
	return append(out, '}')
}

func (r *Registry) initializeResult(params []byte) []byte {
	var p struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	// A client that names no version, or none that is known, gets the newest.
	_ = json.Unmarshal(params, &p)
	if !slices.Contains(client.Versions(), p.ProtocolVersion) {
		p.ProtocolVersion = client.Versions()[0]
	}
	b, err := json.Marshal(map[string]any{
		"protocolVersion": p.ProtocolVersion,
		"capabilities":    map[string]any{"tools": map[string]bool{"listChanged": true}},
		"serverInfo":      map[string]string{"name": r.cfg.Name, "version": r.cfg.Version},
	})
	if err != nil { // strings and maps always marshal
		return []byte(`{}`)
	}
	return b
}

func (s *aggSession) callTool(ctx context.Context, id, params []byte) []byte {
	name, twice := onlyMember(params, "name")
	var tool string
	if twice || json.Unmarshal(name.Of(params), &tool) != nil {
		return relay.ErrorLine(id, -32602, "params.name must be given once, as a string")
	}
	at, ok := s.reg.table().tools[tool]
	if !ok {
		return relay.ErrorLine(id, -32602, fmt.Sprintf("unknown tool %q", relay.Cut([]byte(tool), 80)))
	}
	args, twice := onlyMember(params, "arguments")
	if twice {
		return relay.ErrorLine(id, -32602, "params.arguments must be given once")
	}
	arguments := args.Of(params)
	if arguments == nil {
		arguments = []byte(`{}`)
	}
	// The name is the server's own again; every other byte is the client's.
	renamed := relay.Edit{Span: name, With: []byte(`"` + at.t.name + `"`)}
	fwd := newProgress(params, s.emit)
	res, err := at.e.callRaw(ctx, at.t.name, arguments, nil, func(cl *client.Client) (*client.Progress, []byte, error) {
		return fwd.attach(cl, params, renamed)
	})
	fwd.finish()
	if err != nil {
		return errorLine(id, err)
	}
	return resultLine(id, res.Raw)
}

// onlyMember finds a member and says whether it is there twice.
func onlyMember(object []byte, name string) (span relay.Span, twice bool) {
	err := relay.Members(object, func(k string, v relay.Span) bool {
		if k == name {
			twice = twice || span.End != 0
			span = v
		}
		return true
	})
	return span, twice || err != nil && len(object) > 0
}

// errorLine answers a call that failed. Arguments against the schema are a
// failure of the tool's that a model can mend (2025-11-25, Tools, Error
// Handling); a JSON-RPC error of the server passes as it came.
func errorLine(id []byte, err error) []byte {
	e := asError(err)
	var rpc *client.RPCError
	switch {
	case errors.As(err, &rpc):
		return append(append(append([]byte(`{"jsonrpc":"2.0","id":`), id...), `,"error":`...), append(rpc.Raw, '}')...)
	case e.Code == CodeInvalidArguments:
		text, merr := json.Marshal("invalid arguments: " + e.Message)
		if merr == nil {
			return resultLine(id, fmt.Appendf(nil, `{"content":[{"type":"text","text":%s}],"isError":true}`, text))
		}
	}
	return relay.ErrorLine(id, e.Code.rpcCode(), e.Error())
}
