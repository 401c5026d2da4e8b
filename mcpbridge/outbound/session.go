package outbound

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/sandboxd/sandboxd/mcpbridge/client"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/mcpbridge/streamhttp"
)

// maxRequests bounds the requests of one session that are being answered.
const maxRequests = 1024

var (
	errClosing   = errors.New("the publisher is being stopped")
	errClosed    = errors.New("the client's session was closed")
	errCancelled = errors.New("the client cancelled the call")
)

// session is one client, whatever the transport. Clients of the revision
// without sessions share one over HTTP, with ids of the transport's making.
type session struct {
	p      *Publisher
	emit   streamhttp.Emit
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	able    abilities                          // since initialize
	ready   bool                               // initialize was answered
	open    map[string]context.CancelCauseFunc // IDKey of a request under way
	asks    map[string]chan reply              // IDKey of a question under way
	lastAsk int
	parked  map[string]*parked // by request state
}

func (p *Publisher) open(emit streamhttp.Emit) *session {
	s := &session{
		p: p, emit: emit, open: map[string]context.CancelCauseFunc{}, asks: map[string]chan reply{}, parked: map[string]*parked{},
	}
	// A session outlives the request that opened it.
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	p.mu.Lock()
	p.sessions[s] = struct{}{}
	p.mu.Unlock()
	return s
}

// Done is closed when the session can answer nothing more.
func (s *session) Done() <-chan struct{} { return s.ctx.Done() }

// Err says why.
func (s *session) Err() error { return context.Cause(s.ctx) }

// Close ends the session's runs and waits for them.
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	for token, k := range s.parked {
		k.timer.Stop()
		delete(s.parked, token)
	}
	s.mu.Unlock()
	s.p.mu.Lock()
	delete(s.p.sessions, s)
	s.p.mu.Unlock()
	s.cancel(errClosed)
	done := make(chan struct{})
	go func() { s.wg.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("a run has not ended: %w", context.Cause(ctx))
	}
}

// send emits a message that was made here.
func (s *session) send(raw []byte) {
	if m, err := relay.Peek(raw); err == nil {
		s.emit(m, raw)
	}
}

func (s *session) fail(id []byte, code int, msg string) {
	if _, ok := relay.IDKey(id); !ok {
		id = []byte("null")
	}
	s.send(relay.ErrorLine(id, code, msg))
}

// Receive handles one message of the client. Requests are answered by
// goroutines of their own.
func (s *session) Receive(_ context.Context, m relay.Message, raw []byte) error {
	switch m.Kind {
	case relay.Response:
		s.answered(m, raw)
	case relay.Notification:
		if m.Method == "notifications/cancelled" {
			s.cancelled(m.Params.Of(raw))
		}
	case relay.Request:
		return s.request(m, raw) //nolint:contextcheck // a request is cancelled by its own message
	case relay.Batch, relay.Stray:
		s.fail(nil, -32600, "one JSON-RPC message at a time is taken")
	}
	return nil
}

func (s *session) request(m relay.Message, raw []byte) error {
	id := m.ID.Of(raw)
	k, ok := relay.IDKey(id)
	if !ok || len(id) > 1024 || m.Duplicate {
		s.fail(nil, -32600, "a request has one id, a string or a number, and no member twice")
		return nil
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return errClosed
	}
	refusal := ""
	if s.open[k] != nil {
		refusal = "a request with this id is under way"
	} else if len(s.open) >= maxRequests {
		refusal = "too many requests are under way"
	}
	if refusal != "" {
		s.mu.Unlock()
		s.fail(id, -32600, refusal)
		return nil
	}
	ctx, cancel := context.WithCancelCause(s.ctx)
	s.open[k] = cancel
	s.wg.Go(func() {
		answer := s.answer(ctx, m.Method, id, m.Params.Of(raw))
		cancel(nil)
		s.mu.Lock()
		delete(s.open, k)
		s.mu.Unlock()
		s.send(answer)
	})
	s.mu.Unlock()
	return nil
}

// cancelled handles notifications/cancelled.
func (s *session) cancelled(params []byte) {
	at, ok := relay.Member(params, "requestId")
	if !ok {
		return
	}
	k, _ := relay.IDKey(at.Of(params))
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.open[k]; cancel != nil {
		cancel(errCancelled)
	}
}

// listChanged tells a client with a session; the others ask again anyway.
func (s *session) listChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready && !s.closed {
		s.wg.Go(func() { s.send([]byte(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)) })
	}
}

// request metadata of the revision without sessions.
const (
	metaVersion      = "io.modelcontextprotocol/protocolVersion"
	metaCapabilities = "io.modelcontextprotocol/clientCapabilities"
)

// about is what a request says about itself and its client.
type about struct {
	modern bool      // it is of the revision without sessions
	able   abilities // what its client can do
	token  []byte    // of its progress, as it stood; nil for none
}

func (s *session) about(params []byte) about {
	s.mu.Lock()
	a := about{able: s.able}
	s.mu.Unlock()
	at, ok := relay.Member(params, "_meta")
	if !ok {
		return a
	}
	meta := at.Of(params)
	if tok, ok := relay.Member(meta, "progressToken"); ok {
		if _, ok := relay.IDKey(tok.Of(meta)); ok && tok.End-tok.Start <= 1024 {
			a.token = tok.Of(meta)
		}
	}
	var version string
	if v, ok := relay.Member(meta, metaVersion); ok && json.Unmarshal(v.Of(meta), &version) == nil && version == streamhttp.StatelessVersion {
		caps, _ := relay.Member(meta, metaCapabilities)
		a.modern, a.able = true, abilitiesOf(caps.Of(meta))
	}
	return a
}

func (s *session) answer(ctx context.Context, method string, id, params []byte) []byte {
	a := s.about(params)
	switch {
	case method == "tools/call":
		return s.callTool(ctx, id, params, a)
	case method == "tools/list":
		return s.list(id, params, a)
	case method == "server/discover" && a.modern:
		return resultLine(id, s.discover())
	case method == "initialize" && !a.modern:
		return resultLine(id, s.initialize(params))
	case method == "ping" && !a.modern:
		return resultLine(id, []byte(`{}`))
	}
	return relay.ErrorLine(id, -32601, "method not found")
}

func (s *session) initialize(params []byte) []byte {
	var p struct {
		ProtocolVersion string          `json:"protocolVersion"`
		Capabilities    json.RawMessage `json:"capabilities"`
	}
	// A client that names no version, or none that is known, gets the newest.
	_ = json.Unmarshal(params, &p)
	if !slices.Contains(client.Versions(), p.ProtocolVersion) {
		p.ProtocolVersion = client.Versions()[0]
	}
	s.mu.Lock()
	s.able, s.ready = abilitiesOf(p.Capabilities), true
	s.mu.Unlock()
	return encoded(map[string]any{
		"protocolVersion": p.ProtocolVersion,
		"capabilities":    map[string]any{"tools": map[string]bool{"listChanged": true}},
		"serverInfo":      s.p.info(),
	})
}

func (s *session) discover() []byte {
	return encoded(map[string]any{
		"resultType": "complete", "supportedVersions": append([]string{streamhttp.StatelessVersion}, client.Versions()...),
		"capabilities": map[string]any{"tools": struct{}{}}, "ttlMs": 0, "cacheScope": "private",
		"_meta": map[string]any{"io.modelcontextprotocol/serverInfo": s.p.info()},
	})
}

func (p *Publisher) info() map[string]string {
	return map[string]string{"name": p.cfg.Name, "version": p.cfg.Version}
}

// list gives all tools as one page.
func (s *session) list(id, params []byte, a about) []byte {
	if c, ok := relay.Member(params, "cursor"); ok && string(c.Of(params)) != "null" {
		return relay.ErrorLine(id, -32602, "no such cursor: the list is one page")
	}
	out := []byte(`{`)
	if a.modern {
		out = append(out, `"resultType":"complete","ttlMs":0,"cacheScope":"private",`...)
	}
	out = append(out, `"tools":[`...)
	for i, def := range s.p.now().list {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, def...)
	}
	return resultLine(id, append(out, ']', '}'))
}

// abilities is how a client's user can be asked.
type abilities struct{ form, url bool }

func abilitiesOf(capabilities []byte) abilities {
	var c struct {
		Elicitation *struct {
			Form, URL json.RawMessage
		} `json:"elicitation"`
	}
	if json.Unmarshal(capabilities, &c) != nil || c.Elicitation == nil {
		return abilities{}
	}
	// An empty object means forms (2025-11-25, Elicitation, Capabilities).
	return abilities{form: c.Elicitation.Form != nil || c.Elicitation.URL == nil, url: c.Elicitation.URL != nil}
}
