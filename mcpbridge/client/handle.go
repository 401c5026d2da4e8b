package client

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// watch fails what is pending once the server is gone.
func (c *Client) watch() {
	<-c.conn.Done()
	err := &relay.ExitError{Exit: c.conn.Exit()}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
	for id, w := range c.pending {
		w.done <- reply{err: err}
		delete(c.pending, id)
	}
}

// take removes and returns the call that an id answers, or nil.
func (c *Client) take(id []byte) *call {
	k, ok := relay.IDKey(id)
	if !ok || k[0] != 'n' {
		return nil
	}
	n, err := strconv.ParseInt(k[1:], 10, 64)
	if err != nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.pending[n]
	delete(c.pending, n)
	return w
}

func (c *Client) handle(m relay.Message, line []byte) {
	if !utf8.Valid(line) {
		// What leaves the bridge is valid JSON; a Node client, too, reads these
		// bytes as U+FFFD.
		line = bytes.ToValidUTF8(line, []byte("\uFFFD"))
		var err error
		if m, err = relay.Peek(line); err != nil {
			return
		}
	}
	switch m.Kind {
	case relay.Batch:
		for _, e := range relay.Elements(line) {
			if em, err := relay.Peek(e); err == nil {
				c.handle(em, e)
			}
		}
	case relay.Response:
		c.response(m, line)
	case relay.Request:
		c.request(m, line)
	case relay.Notification:
		c.notification(m, line)
	case relay.Stray: // the connection keeps those away
	}
}

func (c *Client) response(m relay.Message, line []byte) {
	w := c.take(m.ID.Of(line))
	if w == nil {
		// Answers to nothing: a wrong or second id, a null id, a call that timed
		// out. None of them ends anything.
		c.orphans.Add(1)
		return
	}
	switch {
	case m.Duplicate || m.Error.End != 0 && m.Result.End != 0:
		w.done <- reply{err: fmt.Errorf("%w: a response with a member given twice, or both a result and an error", ErrProtocol)}
	case m.Depth > c.opts.MaxDepth:
		w.done <- reply{err: fmt.Errorf("%w: it nests %d levels, at most %d are allowed", ErrTooLarge, m.Depth, c.opts.MaxDepth)}
	case m.Error.End != 0:
		w.done <- reply{err: parseRPCError(m.Error.Of(line))}
	default:
		w.done <- reply{result: m.Result.Of(line)}
	}
}

func (c *Client) oversize(m relay.Message, skeleton []byte, size int64) {
	if w := c.take(m.ID.Of(skeleton)); w != nil {
		w.done <- reply{err: fmt.Errorf("%w: it has %d bytes", ErrTooLarge, size)}
	}
}

// request answers what the server asks, unless Options.Request does.
func (c *Client) request(m relay.Message, line []byte) {
	id := m.ID.Of(line)
	if _, ok := relay.IDKey(id); !ok || len(id) > 1024 {
		return
	}
	if m.Method != "ping" && !m.Duplicate && c.opts.Request != nil && c.opts.Request(c, m.Method, id, m.Params.Of(line)) {
		return
	}
	msg := relay.ErrorLine(id, -32601, "method not found")
	switch m.Method {
	case "ping":
		msg = fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{}}`, id)
	case "roots/list":
		msg = fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{"roots":[]}}`, id)
	}
	if !c.conn.TrySend(msg) {
		// The server asks without reading: it loses its answer, nobody waits.
		c.opts.Logger.Debug("dropped an answer to a server that does not read")
	}
}

func (c *Client) notification(m relay.Message, line []byte) {
	params := m.Params.Of(line)
	if m.Method != "notifications/progress" {
		if params, ok := c.unwrap(m.Method, params); ok && c.opts.Notify != nil {
			c.opts.Notify(m.Method, params)
		}
		return
	}
	tok, ok := relay.Member(params, "progressToken")
	if !ok {
		return
	}
	n, err := strconv.ParseInt(string(tok.Of(params)), 10, 64)
	if err != nil {
		return
	}
	c.mu.Lock()
	w := c.pending[n]
	c.mu.Unlock()
	if w != nil && w.progress != nil {
		w.progress(json.RawMessage(params))
	}
}
