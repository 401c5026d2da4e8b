package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

const (
	maxRounds = 10 // of one request that the server wants more input for
	maxInputs = 64 // that it may want at once
)

// errRounds marks a server that goes on asking.
var errRounds = fmt.Errorf("%w: it asked for input too often", ErrProtocol)

// Caller is on whose behalf a request is sent to a server of the revision
// 2026-07-28, which asks within its answers. The zero value is the client
// itself.
type Caller struct {
	// Capabilities is the JSON object of what this caller can be asked.
	Capabilities json.RawMessage
	// Request takes what the server asks for this call, as Options.Request does.
	Request func(c *Client, method string, id, params json.RawMessage) bool
}

// CallFor is Call on behalf of another.
func (c *Client) CallFor(ctx context.Context, who Caller, method string, params []byte, progress *Progress) (json.RawMessage, error) {
	if !c.modern {
		return c.exchange(ctx, method, params, progress)
	}
	switch method {
	case "ping":
		return json.RawMessage(`{}`), nil
	case "logging/setLevel":
		return c.setLevel(params)
	case "resources/subscribe":
		return c.subscribe(ctx, params)
	case "resources/unsubscribe":
		return c.unsubscribe(params)
	}
	base, err := c.stamp(params, who.Capabilities)
	if err != nil {
		return nil, err
	}
	sent := base
	for round := 0; ; round++ {
		raw, err := c.exchange(ctx, method, sent, progress)
		if err != nil || !wantsInput(raw) {
			return raw, err
		}
		if round == maxRounds {
			return nil, errRounds
		}
		more, err := c.fulfil(ctx, who, raw, round)
		if err != nil {
			return nil, err
		}
		if sent, progress, err = c.again(base, progress); err != nil {
			return nil, err
		}
		sent = append(append(sent[:len(sent)-1:len(sent)-1], more...), '}')
	}
}

// again makes a request's next round: under an id of its own, which is the
// progress token too.
func (c *Client) again(base []byte, p *Progress) ([]byte, *Progress, error) {
	if p == nil {
		return base, nil, nil
	}
	next := c.NewProgress(p.receive)
	meta, _ := relay.Member(base, "_meta")
	tok, ok := relay.Member(meta.Of(base), "progressToken")
	if !ok {
		return base, next, nil
	}
	out, err := relay.Splice(base, relay.Edit{Span: relay.Span{Start: meta.Start + tok.Start, End: meta.Start + tok.End}, With: next.Token()})
	return out, next, err
}

// wantsInput says whether a result is none yet.
func wantsInput(raw []byte) bool {
	if !bytes.Contains(raw, []byte(`"input_required"`)) {
		return false
	}
	kind, ok := relay.Member(raw, "resultType")
	return ok && string(kind.Of(raw)) == `"input_required"`
}

// fulfil asks for what a server wants and returns the members that the next
// round carries: the answers, and the server's state as it was.
func (c *Client) fulfil(ctx context.Context, who Caller, raw []byte, round int) ([]byte, error) {
	var out []byte
	if state, ok := relay.Member(raw, "requestState"); ok {
		out = member(out, "requestState", state.Of(raw))
	}
	at, ok := relay.Member(raw, "inputRequests")
	wanted := at.Of(raw)
	type input struct {
		name   string
		answer chan []byte
	}
	var inputs []input
	var failed error
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, in := range inputs {
			for k, ch := range c.inputs {
				if ch == in.answer {
					delete(c.inputs, k)
				}
			}
		}
	}()
	if ok {
		err := relay.Members(wanted, func(name string, v relay.Span) bool {
			if len(inputs) == maxInputs {
				failed = fmt.Errorf("%w: it wants more than %d inputs at once", ErrProtocol, maxInputs)
				return false
			}
			in := input{name, make(chan []byte, 1)}
			inputs = append(inputs, in)
			failed = c.askInput(who, v.Of(wanted), in.answer)
			return failed == nil
		})
		if err = errors.Join(failed, err); err != nil {
			return nil, err
		}
	}
	if len(inputs) == 0 { // it is busy, and wants to be asked again
		t := time.NewTimer(100 * time.Millisecond << min(round, 5))
		defer t.Stop()
		select {
		case <-t.C:
			return out, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	answers := []byte{}
	for _, in := range inputs {
		select {
		case line := <-in.answer:
			m, err := relay.Peek(line)
			switch {
			case err != nil || m.Duplicate || m.Kind != relay.Response:
				return nil, fmt.Errorf("%w: an answer to what the server asked cannot be read", ErrProtocol)
			case m.Error.End != 0:
				return nil, parseRPCError(m.Error.Of(line))
			}
			answers = member(answers, in.name, m.Result.Of(line))
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-c.conn.Done():
			return nil, &relay.ExitError{Exit: c.conn.Exit()}
		}
	}
	answers[0] = '{' // in place of the first comma
	return member(out, "inputResponses", append(answers, '}')), nil
}

// askInput puts one thing that a server wants to the caller. The answer comes
// by Respond.
func (c *Client) askInput(who Caller, raw []byte, answer chan []byte) error {
	m, _ := relay.Member(raw, "method")
	params, _ := relay.Member(raw, "params")
	var method string
	if json.Unmarshal(m.Of(raw), &method) != nil {
		return fmt.Errorf("%w: what it asks for has no method", ErrProtocol)
	}
	c.mu.Lock()
	c.nextID++
	id := fmt.Appendf(nil, `"input-%d"`, c.nextID)
	k, _ := relay.IDKey(id)
	c.inputs[k] = answer
	c.mu.Unlock()
	ask := who.Request
	if ask == nil {
		ask = c.opts.Request
	}
	switch {
	case ask != nil && ask(c, method, id, bytes.Clone(params.Of(raw))):
		return nil
	case method == "roots/list":
		c.fulfilled(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{"roots":[]}}`, id))
		return nil
	}
	return &RPCError{
		Code: -32021, Message: "the client cannot be asked for " + relay.Cut([]byte(method), 80),
		Raw: []byte(`{"code":-32021,"message":"the client cannot be asked for what the server needs"}`),
	}
}

// fulfilled gives an answer to the call that waits for it.
func (c *Client) fulfilled(line []byte) bool {
	m, err := relay.Peek(line)
	if err != nil || m.Kind != relay.Response {
		return false // a notification, which this revision has no place for
	}
	k, _ := relay.IDKey(m.ID.Of(line))
	c.mu.Lock()
	ch := c.inputs[k]
	delete(c.inputs, k)
	c.mu.Unlock()
	if ch == nil {
		return false
	}
	ch <- line
	return true
}
