package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

const (
	maxSubscriptions = 1024
	relistenMin      = time.Second
	relistenMax      = time.Minute
)

var errNoURI = &RPCError{Code: -32602, Message: "params.uri must be a string", Raw: []byte(`{"code":-32602,"message":"params.uri must be a string"}`)}

// setLevel keeps the level that each request from now on asks for.
func (c *Client) setLevel(params []byte) (json.RawMessage, error) {
	span, _ := relay.Member(params, "level")
	var level string
	if json.Unmarshal(span.Of(params), &level) != nil || len(level) > 16 {
		return nil, &RPCError{Code: -32602, Message: "params.level must be a level", Raw: []byte(`{"code":-32602,"message":"params.level must be a level"}`)}
	}
	c.mu.Lock()
	c.level = level
	c.mu.Unlock()
	return json.RawMessage(`{}`), nil
}

// listenLists keeps a subscription to the changes of lists, where the server
// has any to tell.
func (c *Client) listenLists() {
	want := map[string]bool{}
	for name, key := range map[string]string{"tools": "toolsListChanged", "prompts": "promptsListChanged", "resources": "resourcesListChanged"} {
		var has struct {
			ListChanged bool `json:"listChanged"`
		}
		if json.Unmarshal(c.init.Capabilities[name], &has) == nil && has.ListChanged {
			want[key] = true
		}
	}
	if len(want) == 0 || c.opts.Notify == nil {
		return
	}
	filter, err := json.Marshal(want)
	if err != nil { // a map of strings always marshals
		return
	}
	c.watcher.Go(func() { c.keepListening(c.life, filter, nil) })
}

// subscribe listens for one resource. It returns when the server has agreed.
func (c *Client) subscribe(ctx context.Context, params []byte) (json.RawMessage, error) { //nolint:contextcheck // a subscription outlives the request for it
	uri, text, err := uriOf(params)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	if c.subs[uri] != nil {
		c.mu.Unlock()
		return json.RawMessage(`{}`), nil
	}
	if len(c.subs) >= maxSubscriptions || c.gone || c.life.Err() != nil {
		c.mu.Unlock()
		return nil, errors.New("too many subscriptions, or the session has ended")
	}
	life, stop := context.WithCancel(c.life)
	c.subs[uri] = stop
	first := make(chan error, 1)
	// Not gone, so that the watcher's own goroutine is still waited for.
	c.watcher.Go(func() { c.keepListening(life, fmt.Appendf(nil, `{"resourceSubscriptions":[%s]}`, text), first) })
	c.mu.Unlock()
	select {
	case err = <-first:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		_, _ = c.unsubscribe(params)
		return nil, err
	}
	return json.RawMessage(`{}`), nil
}

func (c *Client) unsubscribe(params []byte) (json.RawMessage, error) {
	uri, _, err := uriOf(params)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	stop := c.subs[uri]
	delete(c.subs, uri)
	c.mu.Unlock()
	if stop != nil {
		stop()
	}
	return json.RawMessage(`{}`), nil
}

func uriOf(params []byte) (uri string, text []byte, err error) {
	span, _ := relay.Member(params, "uri")
	if text = span.Of(params); json.Unmarshal(text, &uri) != nil {
		return "", nil, errNoURI
	}
	return uri, text, nil
}

// keepListening holds a subscription until ctx ends, and makes it again after
// it was lost. The first attempt's outcome goes to first.
func (c *Client) keepListening(ctx context.Context, filter []byte, first chan<- error) {
	for wait := relistenMin; ; wait = min(2*wait, relistenMax) {
		acked, err := c.listen(ctx, filter, func() {
			if first != nil {
				first <- nil
				first = nil
			}
		})
		if acked {
			wait = relistenMin
		}
		if first != nil {
			if err == nil {
				err = fmt.Errorf("%w: it ended a subscription before it began", ErrProtocol)
			}
			first <- err
			return
		}
		var rpc *RPCError
		var gone *relay.ExitError
		if ctx.Err() != nil || errors.As(err, &gone) || (!acked && errors.As(err, &rpc)) {
			return
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// listen holds one subscription until it ends. begun runs when the server has
// agreed to it.
func (c *Client) listen(ctx context.Context, filter []byte, begun func()) (acked bool, err error) {
	p := c.NewProgress(func(json.RawMessage) {})
	ack := make(chan struct{})
	c.mu.Lock()
	c.acks[p.id] = ack
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.acks, p.id)
		c.mu.Unlock()
	}()
	params, err := c.stamp(append(append([]byte(`{"notifications":`), filter...), '}'), nil)
	if err != nil {
		return false, err
	}
	ended := make(chan error, 1)
	c.watcher.Go(func() {
		_, err := c.exchange(ctx, "subscriptions/listen", params, p)
		ended <- err
	})
	select {
	case <-ack:
		begun()
		return true, <-ended
	case err := <-ended:
		return false, err
	}
}

// unwrap takes a notification's subscription away from it: it names a request
// of this client's own. It is false for what is about subscriptions alone.
func (c *Client) unwrap(method string, params json.RawMessage) (json.RawMessage, bool) {
	if !c.modern {
		return params, true
	}
	meta, _ := relay.Member(params, "_meta")
	sub, ok := relay.Member(meta.Of(params), metaSubscription)
	if method == "notifications/subscriptions/acknowledged" {
		id, err := strconv.ParseInt(string(unquote(sub.Of(meta.Of(params)))), 10, 64)
		c.mu.Lock()
		ack := c.acks[id]
		delete(c.acks, id)
		c.mu.Unlock()
		if err == nil && ack != nil {
			close(ack)
		}
		return nil, false
	}
	if !ok {
		return params, true
	}
	own := []byte{'{'}
	// Its grammar was checked with the message's.
	_ = relay.Members(params, func(k string, v relay.Span) bool {
		if k == "_meta" {
			return true
		}
		own = member(own, k, v.Of(params))
		return true
	})
	if len(own) == 1 {
		return nil, true
	}
	return append(append([]byte{'{'}, own[2:]...), '}'), true
}

// unquote is a number, which some servers send back as a string.
func unquote(b []byte) []byte {
	if len(b) > 1 && b[0] == '"' {
		return b[1 : len(b)-1]
	}
	return b
}
