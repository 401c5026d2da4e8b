package outbound

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/mcpbridge/schema"
)

// ask is one question under way.
type ask struct {
	params []byte // of elicitation/create
	url    bool
	reply  chan reply    // takes one
	gone   chan struct{} // closed when nobody waits for the answer any more
}

type reply struct {
	answer Answer
	err    error
}

func (q *ask) possible(a abilities) bool {
	if q.url {
		return a.url
	}
	return a.form
}

// Ask implements Caller.
func (c *call) Ask(ctx context.Context, q Question) (Answer, error) {
	a, want, err := q.compile()
	if err != nil {
		return Answer{}, fmt.Errorf("the question cannot be asked: %w", err)
	}
	defer close(a.gone)
	c.clock.pause()
	defer c.clock.resume()
	t := time.NewTimer(c.s.p.cfg.AskTimeout)
	defer t.Stop()
	select {
	case c.asks <- a:
	case <-t.C:
		return Answer{}, ErrNoAnswer
	case <-ctx.Done():
		return Answer{}, context.Cause(ctx)
	case <-c.ctx.Done():
		return Answer{}, c.cause()
	}
	var r reply
	select {
	case r = <-a.reply:
	case <-t.C:
		return Answer{}, ErrNoAnswer
	case <-ctx.Done():
		return Answer{}, context.Cause(ctx)
	case <-c.ctx.Done():
		return Answer{}, c.cause()
	}
	if r.err != nil {
		return Answer{}, r.err
	}
	if r.answer.Action != Accept || want == nil {
		r.answer.Content = nil
		return r.answer, nil
	}
	if len(r.answer.Content) == 0 {
		r.answer.Content = json.RawMessage(`{}`)
	}
	if err := want.Validate(r.answer.Content); err != nil {
		return Answer{}, fmt.Errorf("the answer does not fit the question: %w", err)
	}
	return r.answer, nil
}

// compile checks a question. The schema is nil where there is no form.
func (q Question) compile() (*ask, *schema.Schema, error) {
	a := &ask{reply: make(chan reply, 1), gone: make(chan struct{}), url: q.URL != ""}
	if q.Message == "" || len(q.Message) > maxMessage {
		return nil, nil, fmt.Errorf("its message has not 1 to %d bytes", maxMessage)
	}
	params := map[string]any{"message": q.Message}
	if a.url {
		u, err := url.Parse(q.URL)
		if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil || len(q.URL) > maxMessage || len(q.Schema) > 0 {
			return nil, nil, errors.New("its url is no plain https or http address, or it has a schema too")
		}
		params["mode"], params["url"], params["elicitationId"] = "url", u.String(), rand.Text()
		a.params = encoded(params)
		return a, nil, nil
	}
	if len(q.Schema) == 0 {
		q.Schema = json.RawMessage(`{"type":"object","properties":{}}`)
	}
	want, err := schema.Compile(q.Schema, schema.Bounds{Bytes: 64 << 10, RequireRootType: true})
	if err != nil {
		return nil, nil, err
	}
	if err := flat(q.Schema); err != nil {
		return nil, nil, err
	}
	params["mode"], params["requestedSchema"] = "form", q.Schema
	a.params = encoded(params)
	return a, want, nil
}

// flat admits what clients can show as a form (2025-11-25, Elicitation,
// Requested Schema): properties of simple types.
func flat(raw json.RawMessage) error {
	var s struct {
		Properties map[string]struct {
			Type string `json:"type"`
		} `json:"properties"`
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return errors.New("its schema is not flat")
	}
	for name, p := range s.Properties {
		switch p.Type {
		case "string", "number", "integer", "boolean", "array":
		default:
			return fmt.Errorf("property %q of its schema has type %q, which a form does not have", relay.Cut([]byte(name), 80), relay.Cut([]byte(p.Type), 80))
		}
	}
	return nil
}

// elicit asks a client that has a session, and withdraws the question when
// nobody waits any more.
func (s *session) elicit(ctx context.Context, c *call, q *ask) reply {
	got := make(chan reply, 1)
	s.mu.Lock()
	s.lastAsk++
	id := fmt.Appendf(nil, `"ask-%d"`, s.lastAsk)
	k, _ := relay.IDKey(id)
	s.asks[k] = got
	s.mu.Unlock()
	line := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":"elicitation/create","params":`, id)
	s.send(append(append(line, q.params...), '}'))
	select {
	case r := <-got:
		return r
	case <-q.gone:
	case <-ctx.Done():
	case <-c.ctx.Done():
	}
	s.mu.Lock()
	delete(s.asks, k)
	s.mu.Unlock()
	s.send(fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s,"reason":"the question was withdrawn"}}`, id))
	return reply{err: ErrNoAnswer}
}

// answered takes a client's answer to a question; others are ignored.
func (s *session) answered(m relay.Message, raw []byte) {
	k, _ := relay.IDKey(m.ID.Of(raw))
	s.mu.Lock()
	got := s.asks[k]
	delete(s.asks, k)
	s.mu.Unlock()
	switch {
	case got == nil:
	case m.Duplicate || m.Error.End != 0:
		got <- reply{err: errors.New("the client answered its question with an error")}
	default:
		got <- readAnswer(m.Result.Of(raw))
	}
}

func readAnswer(raw []byte) reply {
	var r struct {
		Action  Action          `json:"action"`
		Content json.RawMessage `json:"content"`
	}
	if json.Unmarshal(raw, &r) != nil || r.Action != Accept && r.Action != Decline && r.Action != Cancel {
		return reply{err: errors.New("the client's answer to its question cannot be read")}
	}
	return reply{answer: Answer(r)}
}

// parked is a run whose client has to come again with an answer.
type parked struct {
	*call
	ask   *ask
	key   [32]byte // of the tool and its arguments
	reply reply
	timer *time.Timer
}

// askName is the name of the one question in a result.
const askName = "ask"

// park tells the client to come again. It is nil where too many are waited for:
// all clients without sessions share one, and half of the places stay free of
// what only waits.
func (s *session) park(c *call, q *ask, id []byte, key [32]byte) []byte {
	c.attach(about{})
	token := rand.Text()
	k := &parked{call: c, ask: q, key: key}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.parked) >= max(1, s.p.cfg.MaxCalls/2) || s.closed {
		return nil
	}
	s.parked[token] = k
	// Ask itself has given up then.
	k.timer = time.AfterFunc(s.p.cfg.AskTimeout, func() {
		s.mu.Lock()
		delete(s.parked, token)
		s.mu.Unlock()
		c.cancel(ErrNoAnswer)
	})
	return resultLine(id, encoded(map[string]any{
		"resultType": "input_required", "requestState": token,
		"inputRequests": map[string]any{askName: map[string]any{"method": "elicitation/create", "params": json.RawMessage(q.params)}},
	}))
}

// unpark finds the run that a client comes again for. Only the same call with
// an answer gets it.
func (s *session) unpark(state []byte, key [32]byte, params []byte) (*parked, *ask, error) {
	var token string
	if json.Unmarshal(state, &token) != nil {
		return nil, nil, errors.New("requestState is no string")
	}
	responses, _ := relay.Member(params, "inputResponses")
	at, ok := relay.Member(responses.Of(params), askName)
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.parked[token]
	switch {
	case k == nil:
		return nil, nil, errors.New("requestState names no run that waits: it has ended, or was answered before")
	case k.key != key:
		return nil, nil, errors.New("requestState belongs to another call")
	case !ok:
		return nil, nil, fmt.Errorf("inputResponses lacks %q", askName)
	}
	k.reply = readAnswer(at.Of(responses.Of(params)))
	k.timer.Stop()
	delete(s.parked, token)
	return k, k.ask, nil
}

// plain is an untrusted text for a log: one line, cut.
func plain(text string) string {
	return relay.Cut([]byte(strings.ToValidUTF8(text, "?")), 300)
}
