package mcpbridge

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/client"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/mcpbridge/streamhttp"
)

// The revision 2026-07-28 at the aggregated endpoint: every request is a
// session of its own, which ends with its answer. Servers need not speak it:
// what one asks becomes a result that wants input, and the request waits,
// parked, for the client to come back with the answers.

const (
	metaCapabilities = "io.modelcontextprotocol/clientCapabilities"
	metaLevel        = "io.modelcontextprotocol/logLevel"
	metaSubscription = "io.modelcontextprotocol/subscriptionId"

	// maxParked bounds the requests that wait for their clients to come back,
	// maxParkedEach those of one client, parkedFor how long each does.
	maxParked     = 1024
	maxParkedEach = 64
	parkedFor     = 10 * time.Minute

	// noLogs is above every level.
	noLogs = 100
)

// input is one thing that a server wants to know of the client.
type input struct {
	name, method string
	params       []byte
}

// modernCall is one request, over all the rounds that it takes.
type modernCall struct {
	owner, method string
	print         []byte // of the params, which later rounds repeat
	s             *aggSession
	done          chan []byte   // the response, under an id that is none
	asking        chan struct{} // inputs has grown

	mu     sync.Mutex
	emit   streamhttp.Emit // of the present round; nil while parked
	inputs []input
	listen *listening
	expiry *time.Timer
}

// say sends what belongs to the present round; while there is none it is lost.
func (c *modernCall) say(m relay.Message, raw []byte) {
	c.mu.Lock()
	emit := c.emit
	c.mu.Unlock()
	if emit != nil {
		emit(m, raw)
	}
}

// ask keeps a server's question for the round's result.
func (c *modernCall) ask(name, method string, params []byte) {
	c.mu.Lock()
	c.inputs = append(c.inputs, input{name, method, bytes.Clone(params)})
	c.mu.Unlock()
	select {
	case c.asking <- struct{}{}:
	default:
	}
}

// forget drops a question that was taken back or answered.
func (c *modernCall) forget(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, in := range c.inputs {
		if in.name == name {
			c.inputs = append(c.inputs[:i:i], c.inputs[i+1:]...)
			return true
		}
	}
	return false
}

// serveModern serves one request.
func (r *Registry) serveModern(ctx context.Context, req *http.Request, m relay.Message, raw []byte, emit streamhttp.Emit) {
	id, params, scope := m.ID.Of(raw), m.Params.Of(raw), scopeOf(req)
	caps, level, err := requestMeta(params)
	switch {
	case m.Duplicate:
		err = errf(CodeInvalidRequest, "a member is given twice")
	case err == nil && m.Method == "server/discover":
		send(emit, resultLine(id, r.discovered()))
		return
	}
	if err != nil {
		send(emit, relay.ErrorLine(id, -32602, err.Error()))
		return
	}
	switch m.Method {
	case "subscriptions/listen", "tools/list", "resources/list", "resources/templates/list", "prompts/list", "completion/complete":
	case "tools/call", "resources/read", "prompts/get":
		if state, ok := relay.Member(params, "requestState"); ok {
			c := r.unpark(scope.name(), m.Method, params, state.Of(params))
			if c == nil {
				send(emit, relay.ErrorLine(id, -32602, "params.requestState is not of this request, or it has expired: send the request anew"))
				return
			}
			c.answered(params)
			c.round(ctx, id, emit)
			return
		}
	default:
		send(emit, relay.ErrorLine(id, -32601, "method not found"))
		return
	}
	c := &modernCall{owner: scope.name(), method: m.Method, done: make(chan []byte, 1), asking: make(chan struct{}, 1), emit: emit}
	if c.print, err = fingerprint(params); err != nil {
		send(emit, relay.ErrorLine(id, -32602, err.Error()))
		return
	}
	c.s = r.openSession(scope, c.say, c)
	c.s.setCaps(caps)
	c.s.mu.Lock()
	c.s.level = noLogs // logs are for those who ask for them
	c.s.mu.Unlock()
	if c.subscribes() {
		c.subscribed(ctx, id, params)
		c.close() //nolint:contextcheck // the end has a context of its own
		return
	}
	// A session that was just opened takes a request.
	_ = c.s.run([]byte("0"), func(ctx context.Context) { //nolint:contextcheck // it outlives the round
		if level != nil {
			c.s.setLevel(ctx, []byte("0"), append(append([]byte(`{"level":`), level...), '}'))
		}
		c.done <- c.s.answer(ctx, m.Method, []byte("0"), params)
	})
	c.round(ctx, id, emit)
}

// requestMeta reads what each request of this revision says of its client.
func requestMeta(params []byte) (caps, level []byte, err error) {
	at, twice := onlyMember(params, "_meta")
	meta := at.Of(params)
	span, more := onlyMember(meta, metaCapabilities)
	if caps = span.Of(meta); twice || more || len(caps) == 0 || caps[0] != '{' {
		return nil, nil, errf(CodeInvalidRequest, "params._meta must have an object %s", metaCapabilities)
	}
	if span, ok := relay.Member(meta, metaLevel); ok {
		level = span.Of(meta)
	}
	return caps, level, nil
}

// fingerprint is what stays the same in all rounds of a request: its params
// without what describes the round.
func fingerprint(params []byte) ([]byte, error) {
	all := map[string]any{}
	dec := json.NewDecoder(bytes.NewReader(params))
	dec.UseNumber()
	if err := dec.Decode(&all); err != nil {
		return nil, errf(CodeInvalidRequest, "params must be an object")
	}
	for _, k := range []string{"_meta", "inputResponses", "requestState"} {
		delete(all, k)
	}
	return json.Marshal(all)
}

// round waits for the response, or for what a server wants to know before.
func (c *modernCall) round(ctx context.Context, id []byte, emit streamhttp.Emit) {
	c.mu.Lock()
	c.emit = emit
	open := len(c.inputs) > 0
	c.mu.Unlock()
	for !open {
		select {
		case raw := <-c.s.queue.ch:
			c.s.queue.taken(raw)
			send(emit, raw)
		case line := <-c.done:
			c.flush(emit)
			send(emit, c.response(id, line))
			c.close() //nolint:contextcheck // the end has a context of its own
			return
		case <-c.asking:
			c.mu.Lock()
			open = len(c.inputs) > 0 // or it was taken back
			c.mu.Unlock()
		case <-ctx.Done():
			c.close() //nolint:contextcheck // the end has a context of its own
			return
		}
	}
	c.mu.Lock()
	c.emit = nil
	wanted := []byte{}
	for _, in := range c.inputs {
		params := in.params
		if params == nil {
			params = []byte(`{}`) // some clients want them
		}
		wanted = fmt.Appendf(wanted, `,"%s":{"method":"%s","params":%s}`, in.name, in.method, params)
	}
	wanted[0] = '{'
	c.mu.Unlock()
	state := c.s.reg.park(c) //nolint:contextcheck // it outlives the round
	if state == "" {
		send(emit, relay.ErrorLine(id, -32000, "too many requests wait for their clients"))
		c.close() //nolint:contextcheck // the end has a context of its own
		return
	}
	send(emit, resultLine(id, fmt.Appendf(nil, `{"resultType":"input_required","inputRequests":%s},"requestState":"%s"}`, wanted, state)))
}

// flush sends what servers said before the response.
func (c *modernCall) flush(emit streamhttp.Emit) {
	for {
		select {
		case raw := <-c.s.queue.ch:
			c.s.queue.taken(raw)
			send(emit, raw)
		default:
			return
		}
	}
}

// answered gives the servers what the client came back with. What it left out
// is asked again.
func (c *modernCall) answered(params []byte) {
	at, _ := relay.Member(params, "inputResponses")
	responses := at.Of(params)
	if len(responses) == 0 || responses[0] != '{' {
		return
	}
	// The message's grammar was checked.
	_ = relay.Members(responses, func(name string, v relay.Span) bool {
		value := v.Of(responses)
		if value[0] == '{' && c.forget(name) {
			line := resultLine(quoted(name), value)
			if m, err := relay.Peek(line); err == nil {
				c.s.answered(m, line)
			}
		}
		return true
	})
}

// close ends the request's session, and cancels what is under way for it.
func (c *modernCall) close() {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := c.s.Close(ctx); err != nil {
		c.s.reg.cfg.Logger.Warn("a request of the aggregated endpoint did not end in time")
	}
}

// response is a request's answer under its client's id, with what this revision
// wants in results.
func (c *modernCall) response(id, line []byte) []byte {
	m, err := relay.Peek(line)
	if err != nil {
		return relay.ErrorLine(id, -32603, "the answer cannot be read")
	}
	edits := []relay.Edit{{Span: m.ID, With: id}}
	if m.Result.End != 0 {
		result := m.Result.Of(line)
		more := []byte{}
		add := func(name, value string) {
			if _, ok := relay.Member(result, name); !ok {
				more = fmt.Appendf(more, `"%s":%s,`, name, value)
			}
		}
		add("resultType", `"complete"`)
		if c.method != "tools/call" && c.method != "prompts/get" && c.method != "completion/complete" {
			add("ttlMs", "0")
			add("cacheScope", `"private"`)
		}
		i := bytes.IndexByte(result, '{') + 1
		if rest := bytes.TrimSpace(result[i:]); len(more) > 0 && len(rest) > 0 && rest[0] == '}' {
			more = more[:len(more)-1]
		}
		at := m.Result.Start + i
		edits = append(edits, relay.Edit{Span: relay.Span{Start: at, End: at}, With: more})
	}
	out, err := relay.Splice(line, edits...)
	if err != nil {
		return relay.ErrorLine(id, -32603, "the answer cannot be read")
	}
	return out
}

// discovered is what server/discover says.
func (r *Registry) discovered() []byte {
	b, err := json.Marshal(map[string]any{
		"resultType": "complete", "ttlMs": 0, "cacheScope": "private",
		"supportedVersions": append([]string{client.Stateless}, client.Versions()...),
		"capabilities":      aggCapabilities(),
		"_meta":             map[string]any{"io.modelcontextprotocol/serverInfo": r.serverInfo()},
	})
	if err != nil { // strings and maps always marshal
		return []byte(`{}`)
	}
	return b
}
