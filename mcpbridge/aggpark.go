package mcpbridge

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// park keeps a request until its client comes back, and returns the state that
// the client brings. It is empty where too many wait, or none may any more.
func (r *Registry) park(c *modernCall) string {
	state := rand.Text()
	r.mu.Lock()
	defer r.mu.Unlock()
	same := 0
	for _, o := range r.parked {
		if o.owner == c.owner {
			same++
		}
	}
	if r.closed || len(r.parked) >= maxParked || same >= maxParkedEach {
		return ""
	}
	r.parked[state] = c
	c.expiry = time.AfterFunc(parkedFor, func() {
		r.mu.Lock()
		here := r.parked[state] == c
		delete(r.parked, state)
		if here {
			r.expiring.Add(1)
		}
		r.mu.Unlock()
		if here {
			defer r.expiring.Done()
			c.close()
		}
	})
	return state
}

// unpark takes a request that waits, if it is the client's own and the same
// that it began with. A state is good once.
func (r *Registry) unpark(owner, method string, params, state []byte) *modernCall {
	var key string
	print, err := fingerprint(params)
	if json.Unmarshal(state, &key) != nil || err != nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.parked[key]
	if c == nil || c.owner != owner || c.method != method || !bytes.Equal(c.print, print) {
		return nil
	}
	delete(r.parked, key)
	c.expiry.Stop()
	return c
}

// unparkAll ends all that wait.
func (r *Registry) unparkAll() {
	r.mu.Lock()
	all := r.parked
	r.parked = map[string]*modernCall{}
	r.mu.Unlock()
	for _, c := range all {
		c.expiry.Stop()
		r.expiring.Go(c.close)
	}
	r.expiring.Wait()
}

// listening is a subscription: what its client hears, and under which id.
type listening struct {
	id                        []byte
	tools, prompts, resources bool
}

// subscribed serves subscriptions/listen until the client leaves.
func (c *modernCall) subscribed(ctx context.Context, id, params []byte) {
	var p struct {
		Notifications *struct {
			ToolsListChanged      bool     `json:"toolsListChanged,omitempty"`
			PromptsListChanged    bool     `json:"promptsListChanged,omitempty"`
			ResourcesListChanged  bool     `json:"resourcesListChanged,omitempty"`
			ResourceSubscriptions []string `json:"resourceSubscriptions,omitempty"`
		} `json:"notifications"`
	}
	if json.Unmarshal(params, &p) != nil || p.Notifications == nil {
		send(c.say, relay.ErrorLine(id, -32602, "params.notifications must say what to listen for"))
		return
	}
	want := p.Notifications
	for _, uri := range want.ResourceSubscriptions {
		line := c.s.resource(ctx, "resources/subscribe", id, append(append([]byte(`{"uri":`), quoted(uri)...), '}'))
		if m, err := relay.Peek(line); err != nil || m.Error.End != 0 {
			send(c.say, line)
			return
		}
	}
	agreed, err := json.Marshal(want)
	if err != nil { // strings and truth always marshal
		return
	}
	meta := fmt.Appendf(nil, `"_meta":{%q:%s}`, metaSubscription, id)
	send(c.say, fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":%s,%s}}`, agreed, meta))
	c.mu.Lock()
	c.listen = &listening{id, want.ToolsListChanged, want.PromptsListChanged, want.ResourcesListChanged}
	c.mu.Unlock()
	if string(agreed) != `{}` {
		select {
		case <-ctx.Done():
			return
		case <-c.s.reg.drained:
		}
	}
	send(c.say, resultLine(id, fmt.Appendf(nil, `{"resultType":"complete",%s}`, meta)))
}

// subscribes says whether the request is a subscription.
func (c *modernCall) subscribes() bool { return c.method == "subscriptions/listen" }

func (c *modernCall) listener() *listening {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.listen
}

// wants says whether the session's client hears of a kind at all. Those with a
// session hear everything; a request of the newest revision, what belongs to it.
func (s *aggSession) wants(method string) bool {
	if s.modern == nil {
		return true
	}
	l := s.modern.listener()
	switch method {
	case "notifications/message":
		return l == nil
	case "notifications/cancelled":
		return true // a question that a server takes back
	case "notifications/tools/list_changed":
		return l != nil && l.tools
	case "notifications/prompts/list_changed":
		return l != nil && l.prompts
	case "notifications/resources/list_changed":
		return l != nil && l.resources
	case "notifications/resources/updated":
		return l != nil
	}
	return false
}

// addressed names the subscription that a notification belongs to.
func (s *aggSession) addressed(raw []byte) []byte {
	if s.modern == nil {
		return raw
	}
	l := s.modern.listener()
	m, err := relay.Peek(raw)
	if l == nil || err != nil || m.Kind != relay.Notification {
		return raw
	}
	meta := fmt.Appendf(nil, `"_meta":{%q:%s}`, metaSubscription, l.id)
	if m.Params.End == 0 {
		return append(append(append(raw[:len(raw)-1:len(raw)-1], `,"params":{`...), meta...), "}}"...)
	}
	params := without(m.Params.Of(raw), "_meta")
	if len(params) > 2 {
		meta = append(meta, ',')
	}
	params = append(append([]byte{'{'}, meta...), params[1:]...)
	out, err := relay.Splice(raw, relay.Edit{Span: m.Params, With: params})
	if err != nil {
		return raw
	}
	return out
}
