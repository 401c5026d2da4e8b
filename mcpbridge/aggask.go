package mcpbridge

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/client"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// maxAsks bounds what a session's servers can ask its client at once.
const maxAsks = 64

// asked is one request of a server that waits for the session's client.
type asked struct {
	e  *entry
	cl *client.Client
	id []byte // the server's own
}

// ask passes a server's request on to the client. It is false where the client
// did not declare that it can be asked such a thing. It never blocks.
func (s *aggSession) ask(e *entry, cl *client.Client, method string, id, params []byte) bool {
	need := map[string]string{
		"sampling/createMessage": "sampling", "elicitation/create": "elicitation", "roots/list": "roots",
		"tasks/get": "tasks", "tasks/result": "tasks", "tasks/cancel": "tasks",
	}[method]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.caps[need] == nil || s.ctx.Err() != nil {
		return false
	}
	if need == "tasks" && !s.asksOwn(e, params) {
		cl.Respond(relay.ErrorLine(id, -32602, "no such task"))
		return true
	}
	if len(s.asks) >= maxAsks {
		for k, a := range s.asks { // what died does not count
			select {
			case <-a.cl.Done():
				delete(s.asks, k)
			default:
			}
		}
	}
	if len(s.asks) >= maxAsks {
		cl.Respond(relay.ErrorLine(id, -32000, "the client is asked too many things at once"))
		return true
	}
	s.lastAsk++
	own := fmt.Sprintf("%s-%d", e.slug, s.lastAsk)
	if s.modern != nil {
		s.modern.ask(own, method, params)
		s.asks["s"+own] = asked{e, cl, slices.Clone(id)}
		return true
	}
	msg := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":"%s","method":"%s"`, own, method)
	if params != nil {
		msg = append(append(msg, `,"params":`...), params...)
	}
	if s.queue.put(append(msg, '}')) {
		s.asks["s"+own] = asked{e, cl, slices.Clone(id)}
	} else {
		cl.Respond(relay.ErrorLine(id, -32000, "the client reads too slowly to be asked"))
	}
	return true
}

// answered gives the client's answer to the server that asked, under the
// server's own id.
func (s *aggSession) answered(m relay.Message, raw []byte) {
	k, _ := relay.IDKey(m.ID.Of(raw))
	s.mu.Lock()
	a, ok := s.asks[k]
	delete(s.asks, k)
	if ok {
		s.told[a.e] = time.Now()
	}
	s.mu.Unlock()
	if !ok {
		return
	}
	if m.Result.End != 0 {
		s.begun(a.e, raw, m.Result)
	}
	line, err := relay.Splice(raw, relay.Edit{Span: m.ID, With: a.id})
	if err != nil || m.Duplicate {
		line = relay.ErrorLine(a.id, -32603, "the client's answer cannot be read in one way alone")
	}
	a.cl.Respond(line)
}

// asking says how much of a call's time is left: all of it while the client is
// asked, and from its last answer on.
func (s *aggSession) asking(e *entry, whole time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.asks {
		if a.e == e {
			return whole
		}
	}
	return whole - time.Since(s.told[e])
}

func (s *aggSession) dropAsks(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, a := range s.asks {
		a.cl.Respond(relay.ErrorLine(a.id, -32000, why))
		delete(s.asks, k)
	}
}

// tell gives a notification of a shared sandbox to the sessions. It never
// blocks.
func (r *Registry) tell(e *entry, method string, params json.RawMessage) {
	if e.srv.Sharing == SharingSession && !strings.HasSuffix(method, "/list_changed") {
		return // the sessions hear their own sandboxes
	}
	only := (*aggSession)(nil)
	if method == "notifications/message" {
		only = e.flight.only()
	}
	r.mu.Lock()
	all := make([]*aggSession, 0, len(r.sessions))
	for s := range r.sessions {
		if (only == nil || only == s) && s.scope.server(e.slug) && (method != "notifications/message" || e.flight.mayHear(s.scope)) {
			all = append(all, s)
		}
	}
	r.mu.Unlock()
	for _, s := range all {
		s.hear(e, method, params)
	}
}

// hear takes one notification of a server. What a client does not read in time
// it misses.
func (s *aggSession) hear(e *entry, method string, params json.RawMessage) {
	if !s.wants(method) {
		return
	}
	switch method {
	case "notifications/resources/list_changed", "notifications/prompts/list_changed":
		s.mu.Lock()
		s.changed[method] = true
		s.mu.Unlock()
		select {
		case s.kick <- struct{}{}:
		default:
		}
		return
	case "notifications/resources/updated":
		params = s.updated(e, params)
	case "notifications/message":
		params = s.logged(e, params)
	case "notifications/cancelled":
		params = s.recalled(e, params)
	case "notifications/tasks/status":
		params = s.taskStatus(e, params)
	case "notifications/elicitation/complete":
	default:
		return // of a kind that this endpoint did not ask for
	}
	if params == nil {
		return
	}
	msg := append(append([]byte(`{"jsonrpc":"2.0","method":"`+method+`","params":`), params...), '}')
	s.queue.put(msg)
}

// updated is the notification for a resource that this session subscribed to,
// or that lies within one (2025-11-25, Resources, Subscriptions).
func (s *aggSession) updated(e *entry, params []byte) []byte {
	span, twice := onlyMember(params, "uri")
	var uri string
	if twice || json.Unmarshal(span.Of(params), &uri) != nil {
		return nil
	}
	s.mu.Lock()
	ok := s.subs[e][uri]
	for u := range s.subs[e] {
		if ok {
			break
		}
		ok = strings.HasPrefix(uri, strings.TrimSuffix(u, "/")+"/")
	}
	s.mu.Unlock()
	if !ok {
		return nil
	}
	out, err := relay.Splice(params, relay.Edit{Span: span, With: prefixURI(e.slug, span.Of(params))})
	if err != nil {
		return nil
	}
	return out
}

// logLevels are the levels of RFC 5424 in their order.
func logLevels() []string {
	return []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}
}

// logLevel is a level's place from 1 on; 0 is none of them.
func logLevel(name string) int { return 1 + slices.Index(logLevels(), name) }

// logged is a log message with the server's name before its logger's, if the
// session wants its level.
func (s *aggSession) logged(e *entry, params []byte) []byte {
	level, _ := onlyMember(params, "level")
	var name string
	if json.Unmarshal(level.Of(params), &name) != nil {
		return nil
	}
	s.mu.Lock()
	want := s.level
	s.mu.Unlock()
	if logLevel(name) < want {
		return nil
	}
	span, twice := onlyMember(params, "logger")
	if twice || len(params) == 0 {
		return nil
	}
	if span.End == 0 {
		head := []byte(`{"logger":"` + e.slug + `",`) // level is there, so more follows
		i := strings.IndexByte(string(params), '{')
		return append(head, params[i+1:]...)
	}
	var logger string
	if json.Unmarshal(span.Of(params), &logger) != nil {
		return nil
	}
	out, err := relay.Splice(params, relay.Edit{Span: span, With: quoted(e.slug + "/" + logger)})
	if err != nil {
		return nil
	}
	return out
}

// recalled is the cancellation of something that the server asked, under the
// id that the client knows.
func (s *aggSession) recalled(e *entry, params []byte) []byte {
	span, twice := onlyMember(params, "requestId")
	if twice || span.End == 0 {
		return nil
	}
	want, _ := relay.IDKey(span.Of(params))
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, a := range s.asks {
		if own, _ := relay.IDKey(a.id); a.e == e && own == want {
			delete(s.asks, k)
			if s.modern != nil {
				s.modern.forget(k[1:])
				return nil
			}
			out, err := relay.Splice(params, relay.Edit{Span: span, With: quoted(k[1:])})
			if err != nil {
				return nil
			}
			return out
		}
	}
	return nil
}

// rootsChanged tells the session's own sandboxes; a shared one asks again
// whenever it wants to know.
func (s *aggSession) rootsChanged() {
	s.mu.Lock()
	var own []*client.Client
	for _, o := range s.own {
		if o.c != nil {
			own = append(own, o.c.cl)
		}
	}
	s.mu.Unlock()
	for _, cl := range own {
		cl.Respond([]byte(`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`))
	}
}

// restore tells a server that was started anew what the sessions had asked of
// the one before it.
func (e *entry) restore(ctx context.Context, cl *client.Client) {
	level, uris := e.reg.wanted(e)
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	if _, ok := cl.Init().Capabilities["logging"]; ok && level != "" {
		if _, err := cl.Call(ctx, "logging/setLevel", fmt.Appendf(nil, `{"level":%q}`, level), nil); err != nil {
			e.log.Debug("the log level could not be set again")
		}
	}
	for _, uri := range uris {
		if _, err := cl.Call(ctx, "resources/subscribe", append(append([]byte(`{"uri":`), quoted(uri)...), '}'), nil); err != nil {
			e.log.Debug("a subscription could not be made again")
		}
	}
}

// wanted is the lowest level and all the resources that sessions asked for.
func (r *Registry) wanted(e *entry) (level string, uris []string) {
	r.mu.Lock()
	all := make([]*aggSession, 0, len(r.sessions))
	for s := range r.sessions {
		if s.scope.server(e.slug) {
			all = append(all, s)
		}
	}
	r.mu.Unlock()
	lowest := 0
	for _, s := range all {
		s.mu.Lock()
		if s.level > 0 && (lowest == 0 || s.level < lowest) {
			lowest = s.level
		}
		for u := range s.subs[e] {
			uris = append(uris, u)
		}
		s.mu.Unlock()
	}
	for i, name := range logLevels() {
		if i+1 == lowest {
			level = name
		}
	}
	slices.Sort(uris)
	return level, slices.Compact(uris)
}

const listTimeout = 10 * time.Second
