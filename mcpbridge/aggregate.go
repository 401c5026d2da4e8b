package mcpbridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/client"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/mcpbridge/streamhttp"
)

func (r *Registry) newAggregate() (*streamhttp.Handler, error) {
	return streamhttp.New(streamhttp.Config{
		Open: func(_ context.Context, req *http.Request, emit streamhttp.Emit) (streamhttp.Session, error) {
			return r.openAggregate(scopeOf(req), emit), nil
		},
		Owner: ClientOf, Serve: r.serveModern,
		MaxBody: r.cfg.MaxBody, MaxSessions: r.cfg.MaxSessions, Idle: r.cfg.SessionIdle, Logger: r.cfg.Logger,
	})
}

// aggSession is one client of the aggregated endpoint.
type aggSession struct {
	*requests
	reg   *Registry
	scope *Scope // what the client may see; nil is everything
	emit  streamhttp.Emit
	queue *outbox       // what servers say unasked
	kick  chan struct{} // changed has grown

	// modern is set for one request of the revision 2026-07-28.
	modern *modernCall

	mu      sync.Mutex
	caps    map[string]json.RawMessage // what the client can be asked
	rawCaps string
	level   int // of the log messages that it wants, as in logLevel
	changed map[string]bool
	subs    map[*entry]map[string]bool // subscribed resources, by the servers' own URIs
	asks    map[string]asked
	told    map[*entry]time.Time // when the client last answered
	lastAsk int64
	own     map[*entry]*ownChild
	prompts map[string]promptRef
	lists   map[string]*pages
	tasks   map[string]*task  // of servers, by the bridge's ids
	theirs  map[string]*entry // who asked for the client's tasks
}

func (r *Registry) openAggregate(scope *Scope, emit streamhttp.Emit) *aggSession {
	return r.openSession(scope, emit, nil)
}

// openSession begins a session; modern is nil but for one request alone.
func (r *Registry) openSession(scope *Scope, emit streamhttp.Emit, modern *modernCall) *aggSession {
	s := &aggSession{
		requests: newRequests(), reg: r, scope: scope, emit: emit, modern: modern,
		queue: newOutbox(), kick: make(chan struct{}, 1),
		rawCaps: `{}`, changed: map[string]bool{}, subs: map[*entry]map[string]bool{}, asks: map[string]asked{}, told: map[*entry]time.Time{},
		own: map[*entry]*ownChild{}, prompts: map[string]promptRef{}, lists: map[string]*pages{},
		tasks: map[string]*task{}, theirs: map[string]*entry{},
	}
	r.mu.Lock()
	r.sessions[s] = struct{}{}
	r.mu.Unlock()
	if modern != nil && !modern.subscribes() {
		return s // its rounds send what it hears
	}
	events, stop := r.events.follow()
	s.wg.Go(func() {
		defer stop()
		s.pump(events)
	})
	return s
}

// pump sends what was not asked for. It alone waits for a client that reads
// slowly; servers do not.
func (s *aggSession) pump(events <-chan Event) {
	for {
		select {
		case <-s.ctx.Done():
			return
		case ev := <-events:
			_, seen := s.scope.event(ev)
			if seen && (ev.Type == EventTools || ev.Type == EventStopped) && s.wants("notifications/tools/list_changed") {
				send(s.emit, s.addressed([]byte(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)))
			}
		case raw := <-s.queue.ch:
			s.queue.taken(raw)
			send(s.emit, s.addressed(raw))
		case <-s.kick:
			s.mu.Lock()
			changed := s.changed
			s.changed = map[string]bool{}
			s.mu.Unlock()
			for method := range changed {
				send(s.emit, s.addressed([]byte(`{"jsonrpc":"2.0","method":"`+method+`"}`)))
			}
			// A server that says so a thousand times is passed on twice a second.
			select {
			case <-s.ctx.Done():
			case <-time.After(relistEvery):
			}
		}
	}
}

// Close ends the session and its own sandboxes, and waits.
func (s *aggSession) Close(ctx context.Context) error {
	s.reg.mu.Lock()
	delete(s.reg.sessions, s)
	s.reg.mu.Unlock()
	err := s.requests.Close(ctx)
	s.dropAsks("the client's session was closed")
	s.unsubscribeAll(ctx)
	return errors.Join(err, s.closeChildren(ctx))
}

// send emits a message that the bridge made.
func send(emit streamhttp.Emit, raw []byte) {
	if m, err := relay.Peek(raw); err == nil {
		emit(m, raw)
	}
}

// Receive handles one message of the client.
func (s *aggSession) Receive(_ context.Context, m relay.Message, raw []byte) error {
	switch m.Kind { //nolint:exhaustive // the handler lets nothing else through
	case relay.Response:
		s.answered(m, raw)
	case relay.Notification:
		switch m.Method {
		case "notifications/cancelled":
			s.cancelled(m.Params.Of(raw))
		case "notifications/roots/list_changed":
			s.rootsChanged()
		}
	case relay.Request:
		if m.Duplicate {
			send(s.emit, relay.ErrorLine(m.ID.Of(raw), -32600, "a member is given twice"))
			return nil
		}
		id, params := m.ID.Of(raw), m.Params.Of(raw)
		return s.run(id, func(ctx context.Context) { send(s.emit, s.answer(ctx, m.Method, id, params)) }) //nolint:contextcheck // a request is cancelled by its own message
	}
	return nil
}

func (s *aggSession) answer(ctx context.Context, method string, id, params []byte) []byte {
	switch method {
	case "initialize":
		return resultLine(id, s.initialize(params))
	case "ping":
		return resultLine(id, []byte(`{}`))
	case "tools/list":
		return s.page(method, "tools", id, params, s.tools)
	case "tools/call":
		return s.callTool(ctx, id, params)
	case "resources/list", "resources/templates/list", "prompts/list":
		k := kindOf(method)
		return s.page(method, k.member, id, params, func() [][]byte { return s.collect(ctx, k) })
	case "resources/read", "resources/subscribe", "resources/unsubscribe":
		return s.resource(ctx, method, id, params)
	case "prompts/get":
		return s.getPrompt(ctx, id, params)
	case "completion/complete":
		return s.complete(ctx, id, params)
	case "logging/setLevel":
		return s.setLevel(ctx, id, params)
	case "tasks/get", "tasks/result", "tasks/cancel":
		return s.task(ctx, method, id, params)
	case "tasks/list":
		return s.page(method, "tasks", id, params, func() [][]byte { return s.listTasks(ctx) })
	}
	return relay.ErrorLine(id, -32601, "method not found")
}

func resultLine(id, result []byte) []byte {
	out := make([]byte, 0, len(id)+len(result)+40)
	out = append(append(out, `{"jsonrpc":"2.0","id":`...), id...)
	out = append(append(out, `,"result":`...), result...)
	return append(out, '}')
}

// initialize remembers what the client can be asked. Every feature is
// declared, whatever servers there are now: others can come.
func (s *aggSession) initialize(params []byte) []byte {
	var p struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	// A client that names no version, or none that is known, gets the newest.
	_ = json.Unmarshal(params, &p)
	if !slices.Contains(client.Versions(), p.ProtocolVersion) {
		p.ProtocolVersion = client.Versions()[0]
	}
	if span, twice := onlyMember(params, "capabilities"); !twice && span.End != 0 {
		s.setCaps(span.Of(params))
	}
	caps := aggCapabilities()
	if p.ProtocolVersion == client.Versions()[0] {
		caps["tasks"] = json.RawMessage(`{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}`)
	}
	b, err := json.Marshal(map[string]any{
		"protocolVersion": p.ProtocolVersion,
		"capabilities":    caps,
		"serverInfo":      s.reg.serverInfo(),
	})
	if err != nil { // strings and maps always marshal
		return []byte(`{}`)
	}
	return b
}

// aggCapabilities are those of the aggregated endpoint in all revisions.
func aggCapabilities() map[string]any {
	return map[string]any{
		"tools": map[string]bool{"listChanged": true}, "prompts": map[string]bool{"listChanged": true},
		"resources":   map[string]bool{"listChanged": true, "subscribe": true},
		"completions": struct{}{}, "logging": struct{}{},
	}
}

func (r *Registry) serverInfo() map[string]string {
	return map[string]string{"name": r.cfg.Name, "version": r.cfg.Version}
}

func (s *aggSession) setCaps(raw []byte) {
	caps := map[string]json.RawMessage{}
	if len(raw) >= 64<<10 || json.Unmarshal(raw, &caps) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.caps, s.rawCaps = caps, string(raw)
}

func (s *aggSession) capabilities() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rawCaps
}

func (s *aggSession) callTool(ctx context.Context, id, params []byte) []byte {
	name, twice := onlyMember(params, "name")
	var tool string
	if twice || json.Unmarshal(name.Of(params), &tool) != nil {
		return relay.ErrorLine(id, -32602, "params.name must be given once, as a string")
	}
	at, ok := s.reg.table().tools[tool]
	if !ok || !s.scope.tool(at.e.slug, at.t.name) {
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
	asked, twice := onlyMember(params, "task")
	if twice {
		return relay.ErrorLine(id, -32602, "params.task must be given once")
	}
	if asked.End != 0 && !s.runsTasks(ctx, at.e) {
		// Who does not declare tasks works such a request off as any other
		// (2025-11-25, Tasks, Capability Negotiation).
		params = without(params, "task")
		name, _ = onlyMember(params, "name")
	}
	// The name is the server's own again; every other byte is the client's.
	renamed := relay.Edit{Span: name, With: quoted(at.t.wire)}
	fwd := newProgress(params, s.emit)
	res, err := at.e.callRaw(ctx, at.t.name, arguments, nil, s, func(cl *client.Client) (*client.Progress, []byte, error) {
		return fwd.attach(cl, params, renamed)
	})
	fwd.finish()
	out := []byte(res.Raw)
	if err == nil && asked.End != 0 && s.modern == nil {
		out, err = s.adopt(at.e, at.t, out)
	}
	if err != nil {
		return errorLine(id, err)
	}
	return resultLine(id, prefixResult(at.e.slug, "tools/call", out))
}

// without is an object with one of its members left out.
func without(object []byte, name string) []byte {
	out := []byte{'{'}
	// The object was read before: its grammar is sound.
	_ = relay.Members(object, func(k string, v relay.Span) bool {
		if k == name {
			return true
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, quoted(k)...), ':'), v.Of(object)...)
		return true
	})
	return append(out, '}')
}

func quoted(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil { // a string always marshals
		return []byte(`""`)
	}
	return b
}

// onlyMember finds a member and says whether another parser could find a second
// one: the same name again, or in other case, which some do not tell apart.
func onlyMember(object []byte, name string) (span relay.Span, twice bool) {
	err := relay.Members(object, func(k string, v relay.Span) bool {
		switch {
		case k == name:
			twice = twice || span.End != 0
			span = v
		case strings.EqualFold(k, name):
			twice = true
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
