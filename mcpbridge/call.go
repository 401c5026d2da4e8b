package mcpbridge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/client"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/mcpbridge/schema"
)

// Call runs an action of a connector, found by its slug or the server's name.
func (r *Registry) Call(ctx context.Context, name, action string, args json.RawMessage) (Result, error) {
	e := r.entry(Slug(name))
	if e == nil {
		return Result{}, errf(CodeUnknownConnector, "no connector %q", relay.Cut([]byte(name), 80))
	}
	return e.call(ctx, action, args)
}

func (e *entry) call(ctx context.Context, action string, args json.RawMessage) (Result, error) {
	if args = bytes.TrimSpace(args); len(args) == 0 || string(args) == "null" {
		args = json.RawMessage(`{}`)
	}
	wire, ok := e.srv.wire(action)
	if !ok {
		wire = action // dispatch knows no such action
	}
	name := quoted(wire)
	params := make([]byte, 0, len(args)+len(name)+32)
	params = append(append(params, `{"name":`...), name...)
	params = append(append(params, `,"arguments":`...), args...)
	return e.callRaw(ctx, action, args, append(params, '}'), nil, nil)
}

// callRaw sends a tools/call. Its params, args within them, are ready, or
// attach makes them once the sandbox is known. s is nil for connectors.
func (e *entry) callRaw(ctx context.Context, action string, args, params []byte, s *aggSession, attach attachment) (Result, error) {
	if attach == nil {
		attach = func(*client.Client) (*client.Progress, []byte, error) { return nil, params, nil }
	}
	began := time.Now()
	res, err := e.dispatch(ctx, action, args, s, attach)
	ev := Event{
		Type: EventCall, Server: e.slug, Action: relay.Cut([]byte(action), 128), OK: err == nil && res.OK,
		Millis: float64(time.Since(began).Microseconds()) / 1000, Bytes: len(res.Raw),
	}
	var ce *Error
	if err != nil {
		ce = asError(err)
		ev.Code, ev.Reason = ce.Code, relay.Cut([]byte(ce.Message), 300)
		e.reg.publish(ev)
		return Result{}, ce
	}
	if !res.OK {
		ev.Code = CodeToolError
	}
	if n := e.reg.cfg.EventText; n > 0 {
		ev.Text = texts(res.Content, n)
	}
	e.reg.publish(ev)
	return res, nil
}

// attachment makes a request's params for one client session.
type attachment = func(*client.Client) (*client.Progress, []byte, error)

func (e *entry) dispatch(ctx context.Context, action string, args []byte, s *aggSession, attach attachment) (Result, error) {
	snap := e.snap.Load()
	if snap == nil {
		return Result{}, e.down()
	}
	t := snap.byName[action]
	if t == nil {
		return Result{}, snap.unknown(e.slug, action)
	}
	if len(args) > e.srv.Limits.Args {
		return Result{}, errf(CodeTooLarge, "the arguments have %d bytes, at most %d are allowed", len(args), e.srv.Limits.Args)
	}
	if err := t.in.Validate(args); err != nil {
		return Result{}, err
	}
	raw, err := e.exchange(ctx, s, "tools/call", action, attach)
	if err != nil {
		return Result{}, err
	}
	return t.result(raw)
}

// down says why there is no server to call.
func (e *entry) down() *Error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reason != nil {
		return &Error{Code: CodeServerDown, Message: e.reason.Message, cause: e.reason}
	}
	return errf(CodeServerDown, "the server is being started again")
}

// result checks a raw tools/call result and normalises it.
func (t *tool) result(raw json.RawMessage) (Result, error) {
	r := Result{OK: true, Raw: raw}
	task := false
	seen := map[string]bool{}
	var bad error
	err := relay.Members(raw, func(k string, v relay.Span) bool {
		switch k {
		case "content":
			r.Content = v.Of(raw)
		case "structuredContent":
			r.StructuredContent = v.Of(raw)
		case "isError":
			r.OK = string(v.Of(raw)) != "true"
		case "task":
			task = true
			return true
		default:
			return true
		}
		if seen[k] {
			bad = fmt.Errorf("the result has the member %q twice", k)
		}
		seen[k] = true
		return true
	})
	switch {
	case err != nil:
		return r, errf(CodeBadResult, "the result is no JSON object")
	case bad != nil:
		return r, errf(CodeBadResult, "%s", bad)
	case len(r.Content) > 0 && r.Content[0] != '[':
		return r, errf(CodeBadResult, "the result's content is no list")
	}
	if len(r.Content) == 0 {
		r.Content = json.RawMessage(`[]`)
	}
	if !r.OK {
		r.Error = &Error{Code: CodeToolError, Message: text(r.Content)}
		return r, nil
	}
	if t.out == nil || task {
		return r, nil
	}
	if len(r.StructuredContent) == 0 {
		return r, errf(CodeBadResult, "the tool has an outputSchema, but its result has no structuredContent")
	}
	if err := t.out.Validate(r.StructuredContent); err != nil {
		var inv *schema.InvalidError
		if errors.As(err, &inv) {
			return r, errf(CodeBadResult, "structuredContent is against the tool's outputSchema: %s", inv)
		}
		return r, err
	}
	return r, nil
}

// text joins a failure's text blocks.
func text(content json.RawMessage) string {
	if s := texts(content, 2000); s != "" {
		return s
	}
	return "the tool failed"
}

// texts joins text blocks, cut to limit bytes.
func texts(content json.RawMessage, limit int) string {
	var parts []string
	n := 0
	for _, e := range relay.Elements(content) {
		var b struct {
			Text string `json:"text"`
		}
		if n < limit && json.Unmarshal(e, &b) == nil && b.Text != "" {
			parts = append(parts, b.Text)
			n += len(b.Text)
		}
	}
	return relay.Cut([]byte(strings.Join(parts, "\n")), limit)
}
