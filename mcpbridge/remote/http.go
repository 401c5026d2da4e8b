package remote

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

const (
	sessionHeader = "Mcp-Session-Id"
	versionHeader = "Mcp-Protocol-Version"
	metaVersion   = "io.modelcontextprotocol/protocolVersion"
)

// newRequest makes a request with the configured headers and the session's.
func (s *Server) newRequest(ctx context.Context, method string, body []byte) (*http.Request, error) {
	s.mu.Lock()
	endpoint, session, version := s.endpoint, s.session, s.version
	s.mu.Unlock()
	req, err := http.NewRequestWithContext(ctx, method, endpoint, bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("the url cannot be used")
	}
	for k, vs := range s.cfg.Header {
		req.Header[http.CanonicalHeaderKey(k)] = vs
	}
	req.Header.Set("Accept", "application/json, text/event-stream")
	if method == http.MethodGet {
		req.Header.Set("Accept", "text/event-stream")
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if session != "" {
		req.Header.Set(sessionHeader, session)
	}
	if version != "" {
		req.Header.Set(versionHeader, version)
	}
	return req, nil
}

// describe sets the headers that the stateless revision wants repeated from
// the body (2026-07-28, Transports).
func (s *Server) describe(req *http.Request, m relay.Message, line []byte) {
	params := m.Params.Of(line)
	meta, ok := relay.Member(params, "_meta")
	if !ok {
		return
	}
	span, ok := relay.Member(meta.Of(params), metaVersion)
	var version string
	if !ok || json.Unmarshal(span.Of(meta.Of(params)), &version) != nil || !headerSafe(version) {
		return
	}
	req.Header.Set(versionHeader, version)
	req.Header.Set("Mcp-Method", headerValue(m.Method))
	member, ok := map[string]string{"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}[m.Method]
	if !ok {
		return
	}
	var name string
	if at, ok := relay.Member(params, member); ok && json.Unmarshal(at.Of(params), &name) == nil {
		req.Header.Set("Mcp-Name", headerValue(name))
		if m.Method == "tools/call" {
			s.params.set(req.Header, name, params)
		}
	}
}

func headerSafe(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) && strings.TrimSpace(s) == s
}

func headerValue(s string) string {
	if headerSafe(s) && !strings.HasPrefix(s, "=?base64?") {
		return s
	}
	return "=?base64?" + base64.StdEncoding.EncodeToString([]byte(s)) + "?="
}

// send posts what has no answer.
func (s *Server) send(m relay.Message, line []byte) {
	ctx, cancel := context.WithTimeout(s.ctx, notifyWait)
	defer cancel()
	res, err := s.post(ctx, m, line)
	if err != nil {
		if s.ctx.Err() == nil {
			s.log("a message could not be sent: " + unreachable(err))
		}
		return
	}
	defer res.Body.Close() //nolint:errcheck // only read from
	if res.StatusCode >= 300 {
		s.log("a message was answered " + status(res.StatusCode))
	}
	if m.Method == "notifications/initialized" && s.cfg.Transport == StreamableHTTP {
		// What a server asks goes to a stream that is open: it comes before what
		// could make it ask.
		opened := make(chan struct{})
		s.wg.Go(func() { s.listen(sync.OnceFunc(func() { close(opened) })) })
		t := time.NewTimer(listenWait)
		defer t.Stop()
		select {
		case <-opened:
		case <-t.C:
		case <-s.ctx.Done():
		}
	}
}

// post sends one message.
func (s *Server) post(ctx context.Context, m relay.Message, line []byte) (*http.Response, error) {
	req, err := s.newRequest(ctx, http.MethodPost, line)
	if err != nil {
		return nil, err
	}
	s.describe(req, m, line)
	return s.do(req)
}

// postIn sends one message in a session that is not in use yet, or outside of
// any.
func (s *Server) postIn(ctx context.Context, session string, m relay.Message, line []byte) (*http.Response, error) {
	req, err := s.newRequest(ctx, http.MethodPost, line)
	if err != nil {
		return nil, err
	}
	req.Header.Del(sessionHeader)
	if session != "" {
		req.Header.Set(sessionHeader, session)
	}
	if m.Method == "initialize" {
		req.Header.Del(versionHeader) // not agreed yet
	}
	return s.do(req)
}

// request posts one request and sees to it that it is answered. Where the
// server has forgotten the session it is sent again in a new one.
func (s *Server) request(ctx context.Context, m relay.Message, line []byte) {
	id := m.ID.Of(line)
	s.past.note(m, line)
	for again := true; ; again = false {
		old := s.sessionID()
		res, err := s.post(ctx, m, line)
		if err != nil {
			if ctx.Err() == nil {
				s.fail(id, unreachable(err))
			}
			return
		}
		if res.StatusCode != http.StatusNotFound || old == "" || m.Method == "initialize" {
			more := s.response(ctx, m, id, res, again)
			_ = res.Body.Close()
			if !more {
				return
			}
			s.learnParams(ctx, m, line)
			continue
		}
		_ = res.Body.Close()
		err = errors.New("the server has ended the session")
		if again {
			err = s.renew(ctx, old)
		}
		if err != nil {
			if ctx.Err() == nil {
				s.fail(id, err.Error())
				s.cancel(err)
			}
			return
		}
	}
}

// response passes on what a server answered to a request. It is true where the
// request lacked headers, and there is another try.
func (s *Server) response(ctx context.Context, m relay.Message, id []byte, res *http.Response, again bool) (more bool) {
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	switch {
	case s.cfg.Transport == SSE && res.StatusCode < 300:
		return false // its answer comes with the stream
	case kind == "application/json":
		return s.answer(m, id, res, again)
	case res.StatusCode == http.StatusOK && kind == "text/event-stream":
		s.adopt(m, res)
		if !s.follow(ctx, m, id, res.Body) && ctx.Err() == nil {
			s.fail(id, "the server's stream ended without an answer")
		}
	default:
		s.fail(id, "the server answered "+status(res.StatusCode)+noAnswer(m, res))
	}
	return false
}

// noAnswer is the next step for a status that answers no request.
func noAnswer(m relay.Message, res *http.Response) string {
	switch code := res.StatusCode; {
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return loginHint(code, res.Header)
	case m.Method == "initialize" && (code == http.StatusNotFound || code == http.StatusMethodNotAllowed):
		return ": the url is no Streamable HTTP endpoint; transport: sse is for servers that speak the older HTTP+SSE"
	}
	return ", which is no answer to a request"
}

// answer passes on a JSON body, if it is the request's answer. It is true as
// response is.
func (s *Server) answer(m relay.Message, id []byte, res *http.Response, again bool) (more bool) {
	body, err := io.ReadAll(io.LimitReader(res.Body, int64(s.cfg.MaxMessage)+1))
	switch {
	case err != nil:
		s.fail(id, "the server's answer was cut off")
		return false
	case len(body) > s.cfg.MaxMessage:
		s.fail(id, fmt.Sprintf("the server's answer is over %d bytes", s.cfg.MaxMessage))
		return false
	}
	if again && mismatch(m, res, body) {
		return true
	}
	s.adopt(m, res)
	if answers(body, id) {
		s.learn(m, body)
		s.emit(body)
		return false
	}
	if rm, err := relay.Peek(body); err == nil && rm.Kind == relay.Batch {
		for _, el := range relay.Elements(body) {
			if answers(el, id) {
				s.emit(bytes.Clone(body))
				return false
			}
		}
	}
	if res.StatusCode >= 300 {
		s.fail(id, "the server answered "+status(res.StatusCode)+noAnswer(m, res))
		return false
	}
	s.fail(id, "the server answered "+status(res.StatusCode)+" with something else than an answer")
	return false
}

// answers says whether a message is the response to an id. An error without an
// id, as servers send for what they refuse, is none.
func answers(raw, id []byte) bool {
	m, err := relay.Peek(raw)
	if err != nil || m.Kind != relay.Response {
		return false
	}
	got, ok := relay.IDKey(m.ID.Of(raw))
	want, _ := relay.IDKey(id)
	return ok && got == want
}

// adopt keeps the session's id from the answer to initialize.
func (s *Server) adopt(m relay.Message, res *http.Response) {
	if m.Method != "initialize" || res.StatusCode != http.StatusOK {
		return
	}
	if id := res.Header.Get(sessionHeader); len(id) <= 1024 && headerSafe(id) {
		s.mu.Lock()
		s.session = id
		s.mu.Unlock()
	}
}

// learn keeps the version that was negotiated, and which headers tools want.
func (s *Server) learn(m relay.Message, raw []byte) {
	if m.Method == "tools/list" {
		s.params.learn(raw)
	}
	if m.Method != "initialize" {
		return
	}
	if text, _, ok := agreed(raw); ok {
		s.past.mu.Lock()
		s.past.agreed = text
		s.past.mu.Unlock()
	}
	var res struct {
		Result struct {
			ProtocolVersion string `json:"protocolVersion"`
		} `json:"result"`
	}
	if json.Unmarshal(raw, &res) == nil && len(res.Result.ProtocolVersion) <= 32 && headerSafe(res.Result.ProtocolVersion) {
		s.mu.Lock()
		s.version = res.Result.ProtocolVersion
		s.mu.Unlock()
	}
}

// endSession tells the server that the session is over, if it can hear it.
func (s *Server) endSession() {
	if s.sessionID() == "" || s.cfg.Transport != StreamableHTTP {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), endWait)
	defer cancel()
	req, err := s.newRequest(ctx, http.MethodDelete, nil)
	if err != nil {
		return
	}
	if res, err := s.do(req); err == nil {
		_ = res.Body.Close()
	}
}
