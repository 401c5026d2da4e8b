package mcpbridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/client"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// maxSubscriptions bounds those of one session.
const maxSubscriptions = 1024

// ownChild is a session's own sandbox of one server, or its start.
type ownChild struct {
	begun chan struct{} // closed when c or err is set
	c     *child
	err   error
}

// child is the session's own sandbox of a server, started at its first use and
// again after it ended.
func (s *aggSession) child(ctx context.Context, e *entry) (*child, error) {
	s.mu.Lock()
	o := s.own[e]
	if o != nil && o.ended() {
		o = nil
	}
	if o != nil {
		s.mu.Unlock()
		select {
		case <-o.begun:
			return o.c, o.err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	if s.ctx.Err() != nil {
		s.mu.Unlock()
		return nil, errSessionClosed
	}
	o = &ownChild{begun: make(chan struct{})}
	s.own[e] = o
	s.mu.Unlock()
	c, err := e.newChild(ctx, s)
	s.mu.Lock()
	o.c, o.err = c, err
	s.mu.Unlock()
	close(o.begun)
	return c, err
}

// ended says whether there is nothing left to use, or to wait for.
func (o *ownChild) ended() bool {
	select {
	case <-o.begun:
	default:
		return false
	}
	if o.err != nil {
		return true
	}
	select {
	case <-o.c.cl.Done():
		return true
	default:
		return false
	}
}

// closeChildren ends the session's own sandboxes and waits. No request runs
// any more.
func (s *aggSession) closeChildren(ctx context.Context) error {
	s.mu.Lock()
	own := s.own
	s.own = map[*entry]*ownChild{}
	s.mu.Unlock()
	for _, o := range own {
		if o.c != nil {
			o.c.end()
		}
	}
	for _, o := range own {
		if o.c == nil {
			continue
		}
		select {
		case <-o.c.gone:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// present is the sandbox that a list is asked of: none is started for that.
func (s *aggSession) present(e *entry) *client.Client {
	s.mu.Lock()
	o := s.own[e]
	s.mu.Unlock()
	if o != nil && !o.ended() {
		select {
		case <-o.begun:
			return o.c.cl
		default:
		}
	}
	return e.live.Load()
}

// forward sends a request of the client on with edits, and answers it.
func (s *aggSession) forward(ctx context.Context, e *entry, method string, id, params []byte, edits ...relay.Edit) []byte {
	fwd := newProgress(params, s.emit)
	res, err := e.exchange(ctx, s, method, "", func(cl *client.Client) (*client.Progress, []byte, error) {
		return fwd.attach(cl, params, edits...)
	})
	fwd.finish()
	if err != nil {
		return errorLine(id, err)
	}
	return resultLine(id, prefixResult(e.slug, method, res))
}

// resource serves the requests that name one resource.
func (s *aggSession) resource(ctx context.Context, method string, id, params []byte) []byte {
	span, twice := onlyMember(params, "uri")
	var uri string
	if twice || json.Unmarshal(span.Of(params), &uri) != nil {
		return relay.ErrorLine(id, -32602, "params.uri must be given once, as a string")
	}
	e, own := s.resourceOf(uri)
	if e == nil {
		code := -32002
		if s.modern != nil {
			code = -32602
		}
		return relay.ErrorLine(id, code, "no server has this resource")
	}
	switch method {
	case "resources/subscribe":
		if !s.subscribe(e, own) {
			return relay.ErrorLine(id, -32000, "too many subscriptions")
		}
	case "resources/unsubscribe":
		if others := s.unsubscribe(e, own); others {
			return resultLine(id, []byte(`{}`))
		}
	}
	line := s.forward(ctx, e, method, id, params, relay.Edit{Span: span, With: quoted(own)})
	if m, err := relay.Peek(line); method == "resources/subscribe" && err == nil && m.Error.End != 0 {
		s.unsubscribe(e, own)
	}
	return line
}

func (s *aggSession) subscribe(e *entry, uri string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, m := range s.subs {
		n += len(m)
	}
	if n >= maxSubscriptions || len(uri) > 8<<10 {
		return false
	}
	if s.subs[e] == nil {
		s.subs[e] = map[string]bool{}
	}
	s.subs[e][uri] = true
	return true
}

// unsubscribe says whether another session still wants that of the sandbox
// they share.
func (s *aggSession) unsubscribe(e *entry, uri string) (others bool) {
	s.mu.Lock()
	delete(s.subs[e], uri)
	s.mu.Unlock()
	if e.srv.Sharing == SharingSession {
		return false
	}
	_, uris := s.reg.wanted(e)
	for _, u := range uris {
		others = others || u == uri
	}
	return others
}

// unsubscribeAll tells shared sandboxes what nobody wants any more.
func (s *aggSession) unsubscribeAll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	s.mu.Lock()
	subs := s.subs
	s.subs = map[*entry]map[string]bool{}
	s.mu.Unlock()
	var wg sync.WaitGroup
	for e, uris := range subs {
		cl := e.live.Load()
		if e.srv.Sharing == SharingSession || cl == nil {
			continue
		}
		wg.Go(func() {
			for uri := range uris {
				if s.unsubscribe(e, uri) {
					continue
				}
				if _, err := cl.Call(ctx, "resources/unsubscribe", append(append([]byte(`{"uri":`), quoted(uri)...), '}'), nil); err != nil {
					return // it will go on telling, and nobody listens
				}
			}
		})
	}
	wg.Wait()
}

// prompt finds what an aggregated name stands for.
func (s *aggSession) prompt(ctx context.Context, name string) (promptRef, bool) {
	s.mu.Lock()
	ref, ok := s.prompts[name]
	s.mu.Unlock()
	if !ok {
		s.collect(ctx, kindOf("prompts/list"))
		s.mu.Lock()
		ref, ok = s.prompts[name]
		s.mu.Unlock()
	}
	return ref, ok
}

func (s *aggSession) getPrompt(ctx context.Context, id, params []byte) []byte {
	span, twice := onlyMember(params, "name")
	var name string
	if twice || json.Unmarshal(span.Of(params), &name) != nil {
		return relay.ErrorLine(id, -32602, "params.name must be given once, as a string")
	}
	ref, ok := s.prompt(ctx, name)
	if !ok {
		return relay.ErrorLine(id, -32602, fmt.Sprintf("unknown prompt %q", relay.Cut([]byte(name), 80)))
	}
	return s.forward(ctx, ref.e, "prompts/get", id, params, relay.Edit{Span: span, With: quoted(ref.name)})
}

var errRef = errors.New("params.ref must name a prompt or a resource, once")

// complete asks the server whose prompt or template the reference names.
func (s *aggSession) complete(ctx context.Context, id, params []byte) []byte {
	e, edit, err := s.reference(ctx, params)
	if err != nil {
		return relay.ErrorLine(id, -32602, err.Error())
	}
	if cl := s.present(e); cl != nil {
		if _, ok := cl.Init().Capabilities["completions"]; !ok {
			return resultLine(id, []byte(`{"completion":{"values":[]}}`))
		}
	}
	return s.forward(ctx, e, "completion/complete", id, params, edit)
}

func (s *aggSession) reference(ctx context.Context, params []byte) (*entry, relay.Edit, error) {
	at, twice := onlyMember(params, "ref")
	if twice || at.End == 0 {
		return nil, relay.Edit{}, errRef
	}
	ref := at.Of(params)
	typ, twice := onlyMember(ref, "type")
	var kind, name string
	if twice || json.Unmarshal(typ.Of(ref), &kind) != nil {
		return nil, relay.Edit{}, errRef
	}
	key := map[string]string{"ref/prompt": "name", "ref/resource": "uri"}[kind]
	span, twice := onlyMember(ref, key)
	if key == "" || twice || json.Unmarshal(span.Of(ref), &name) != nil {
		return nil, relay.Edit{}, errRef
	}
	place := relay.Span{Start: at.Start + span.Start, End: at.Start + span.End}
	if key == "name" {
		p, ok := s.prompt(ctx, name)
		if !ok {
			return nil, relay.Edit{}, fmt.Errorf("unknown prompt %q", relay.Cut([]byte(name), 80))
		}
		return p.e, relay.Edit{Span: place, With: quoted(p.name)}, nil
	}
	e, own := s.resourceOf(name)
	if e == nil {
		return nil, relay.Edit{}, errors.New("no server has this resource")
	}
	return e, relay.Edit{Span: place, With: quoted(own)}, nil
}

// setLevel sets what this session hears, and asks each server for what the
// session that wants most asked for.
func (s *aggSession) setLevel(ctx context.Context, id, params []byte) []byte {
	span, twice := onlyMember(params, "level")
	var name string
	if twice || json.Unmarshal(span.Of(params), &name) != nil || logLevel(name) == 0 {
		return relay.ErrorLine(id, -32602, "params.level must be one of the levels of RFC 5424")
	}
	s.mu.Lock()
	s.level = logLevel(name)
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for _, e := range s.entries() {
		cl := s.present(e)
		if cl == nil {
			continue
		}
		level := name
		if cl == e.live.Load() {
			level, _ = s.reg.wanted(e)
		}
		if _, ok := cl.Init().Capabilities["logging"]; !ok {
			continue
		}
		wg.Go(func() {
			if _, err := cl.Call(ctx, "logging/setLevel", fmt.Appendf(nil, `{"level":%q}`, level), nil); err != nil {
				e.log.Warn("the log level could not be set", "error", relay.Cut([]byte(err.Error()), 300))
			}
		})
	}
	wg.Wait()
	return resultLine(id, []byte(`{}`))
}
