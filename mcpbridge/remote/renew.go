package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"sync"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// maxSubscriptions bounds what is asked for again in a new session.
const maxSubscriptions = 1024

// past is what a session was told that a new one has to be told too.
type past struct {
	mu         sync.Mutex
	initialize []byte
	agreed     []byte // version and capabilities that the server answered
	level      []byte // the last logging/setLevel
	subscribed map[string][]byte
}

// note remembers a request of the client's.
func (p *past) note(m relay.Message, line []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch m.Method {
	case "initialize":
		p.initialize = bytes.Clone(line)
	case "logging/setLevel":
		p.level = bytes.Clone(line)
	case "resources/subscribe", "resources/unsubscribe":
		uri, ok := relay.Member(m.Params.Of(line), "uri")
		if !ok {
			return
		}
		key := string(uri.Of(m.Params.Of(line)))
		if m.Method == "resources/unsubscribe" {
			delete(p.subscribed, key)
			return
		}
		if p.subscribed == nil {
			p.subscribed = map[string][]byte{}
		}
		if len(p.subscribed) < maxSubscriptions {
			p.subscribed[key] = bytes.Clone(line)
		}
	}
}

// again lists what to send in a new session, after its handshake.
func (p *past) again() [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out [][]byte
	if p.level != nil {
		out = append(out, p.level)
	}
	for _, line := range p.subscribed {
		out = append(out, line)
	}
	return out
}

// agreed is what two sessions with a server must have in common for a client
// not to notice the change, from the answer to initialize.
func agreed(answer []byte) (text []byte, toolsChange bool, ok bool) {
	var res struct {
		Result *struct {
			ProtocolVersion string                     `json:"protocolVersion"`
			Capabilities    map[string]json.RawMessage `json:"capabilities"`
		} `json:"result"`
	}
	if json.Unmarshal(answer, &res) != nil || res.Result == nil {
		return nil, false, false
	}
	var tools struct {
		ListChanged bool `json:"listChanged"`
	}
	_ = json.Unmarshal(res.Result.Capabilities["tools"], &tools)
	text, err := json.Marshal(res.Result) // keys in order, no white space
	return text, tools.ListChanged, err == nil
}

func (s *Server) sessionID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.session
}

// renew opens a new session after the server answered 404 to the old one
// (2025-11-25, Transports, Session Management), with what the client had said
// in it. One that would differ from what the client agreed to is refused.
func (s *Server) renew(ctx context.Context, old string) error {
	select {
	case s.renewing <- struct{}{}:
		defer func() { <-s.renewing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if s.sessionID() != old {
		return nil // another request has seen to it
	}
	s.past.mu.Lock()
	hello, was := s.past.initialize, s.past.agreed
	s.past.mu.Unlock()
	if hello == nil || was == nil {
		return errors.New("the server has ended the session")
	}
	answer, session, err := s.initialize(ctx, hello)
	if err != nil {
		return fmt.Errorf("the server has ended the session, and begins no other: %w", err)
	}
	now, toolsChange, ok := agreed(answer)
	if !ok || !bytes.Equal(now, was) {
		return errors.New("the server has ended the session, and came back as another: it is to be initialized anew")
	}
	for _, line := range append([][]byte{[]byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)}, s.past.again()...) {
		m, err := relay.Peek(line)
		if err != nil {
			continue
		}
		res, err := s.postIn(ctx, session, m, line)
		if err != nil {
			return errors.New(unreachable(err))
		}
		_, _ = io.CopyN(io.Discard, res.Body, int64(s.cfg.MaxMessage)) // its answer is nobody's
		_ = res.Body.Close()
	}
	s.mu.Lock()
	s.session = session // from now on in use
	s.mu.Unlock()
	s.log("the server had ended the session: a new one was begun")
	if toolsChange {
		s.emit([]byte(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`))
	}
	return nil
}

// initialize sends the client's own handshake again and returns the answer.
func (s *Server) initialize(ctx context.Context, hello []byte) (answer []byte, session string, err error) {
	m, err := relay.Peek(hello)
	if err != nil {
		return nil, "", err
	}
	res, err := s.postIn(ctx, "", m, hello)
	if err != nil {
		return nil, "", errors.New(unreachable(err))
	}
	defer res.Body.Close() //nolint:errcheck // only read from
	if res.StatusCode != http.StatusOK {
		return nil, "", errors.New("it answered " + status(res.StatusCode))
	}
	if session = res.Header.Get(sessionHeader); len(session) > 1024 || !headerSafe(session) {
		session = ""
	}
	id := m.ID.Of(hello)
	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind == "text/event-stream" {
		ev := newEvents(res.Body, s.cfg.MaxMessage)
		for {
			data, err := ev.next()
			if err != nil {
				return nil, "", errors.New("its stream ended without an answer")
			}
			if answers(data, id) {
				return data, session, nil
			}
		}
	}
	answer, err = io.ReadAll(io.LimitReader(res.Body, int64(s.cfg.MaxMessage)))
	if err != nil || !answers(answer, id) {
		return nil, "", errors.New("it gave no answer")
	}
	return answer, session, nil
}
