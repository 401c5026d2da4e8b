package streamhttp

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/fair"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// Session is one client's session with what is behind the endpoint.
type Session interface {
	// Receive takes one message of the client, in one line. It may keep raw.
	// Responses come through the Emit given at opening.
	Receive(ctx context.Context, m relay.Message, raw []byte) error
	// Done is closed when the session can answer nothing more; Err then says
	// why.
	Done() <-chan struct{}
	Err() error
	// Close ends the session and waits until nothing of it is left.
	Close(ctx context.Context) error
}

// Emit sends one message to the client, in one line. It blocks while the
// client reads slowly, and never fails: what no stream takes is kept for a
// while and then dropped.
type Emit func(m relay.Message, raw []byte)

// Config describes one endpoint.
type Config struct {
	// Open starts a session for a client that sent initialize.
	Open func(ctx context.Context, r *http.Request, emit Emit) (Session, error)
	// Owner, where set, names who sent a request: a session is known to the one
	// that opened it alone, and backends without sessions are not shared.
	Owner func(*http.Request) string
	// Stateless serves requests of the revision 2026-07-28, which knows no
	// sessions, if what Open gives speaks it. Otherwise a client is told which
	// versions there are.
	Stateless bool
	// Serve, where set, serves each request of the revision 2026-07-28 by itself,
	// in place of Stateless: it gives emit what belongs to the request, the
	// response last, and returns when there is nothing more. What comes after
	// the response is dropped. ctx ends with the client's connection and with
	// the handler.
	Serve func(ctx context.Context, r *http.Request, m relay.Message, raw []byte, emit Emit)
	// MaxBody bounds a request's body in bytes.
	MaxBody int64
	// MaxSessions bounds the sessions that are open at once. An owner that has
	// none gets one even beyond, so that no other can shut it out.
	MaxSessions int
	// Idle ends a session that had no request for that long.
	Idle time.Duration
	// Stop bounds a session's Close; 0 means 20 seconds.
	Stop time.Duration
	// Logger must be set.
	Logger *slog.Logger
}

const (
	sessionHeader = "Mcp-Session-Id"
	versionHeader = "Mcp-Protocol-Version"
	// StatelessVersion is the revision without sessions.
	StatelessVersion = "2026-07-28"
)

var versions = []string{"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"}

// Handler serves one endpoint. Close it when done.
type Handler struct {
	cfg Config

	mu       sync.Mutex
	sessions map[string]*session
	closed   bool
	drain    chan struct{} // closed by Drain
	drained  sync.Once
	wg       sync.WaitGroup // one for each session's owner

	// places are those of sessions, from before they open until nothing of them
	// is left, by owner.
	places    *fair.Queue
	stateless stateless

	// singles are the requests that Serve has; life ends them.
	singles *fair.Queue
	life    context.Context
	end     context.CancelFunc
}

// New checks the configuration.
func New(cfg Config) (*Handler, error) {
	if cfg.Open == nil || cfg.Logger == nil || cfg.MaxBody <= 0 || cfg.MaxSessions <= 0 || cfg.Idle <= 0 {
		return nil, errors.New("streamhttp: incomplete configuration")
	}
	if cfg.Stop <= 0 {
		cfg.Stop = 20 * time.Second
	}
	h := &Handler{cfg: cfg, sessions: map[string]*session{}, drain: make(chan struct{})}
	var err error
	if h.places, err = fair.New(fair.Config{Places: cfg.MaxSessions, Own: true}); err != nil {
		return nil, err
	}
	if h.singles, err = fair.New(fair.Config{Places: maxRequests, Own: true}); err != nil {
		return nil, err
	}
	h.life, h.end = context.WithCancel(context.Background())
	h.stateless.h, h.stateless.of = h, map[string]*statelessOwner{}
	return h, nil
}

// Drain ends the general streams, now and from now on. Requests go on.
func (h *Handler) Drain() { h.drained.Do(func() { close(h.drain) }) }

// Close ends all sessions, refuses new ones, and waits.
func (h *Handler) Close(ctx context.Context) error {
	h.mu.Lock()
	h.closed = true
	all := make([]*session, 0, len(h.sessions))
	for _, s := range h.sessions {
		all = append(all, s)
	}
	h.mu.Unlock()
	for _, s := range all {
		s.end()
	}
	h.end()
	done := make(chan struct{})
	go func() { h.wg.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Len counts the open sessions.
func (h *Handler) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.sessions)
}

// ServeHTTP serves POST, GET and DELETE.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v := r.Header.Get(versionHeader)
	if v != "" && !slices.Contains(versions, v) && r.Method != http.MethodPost {
		if v == StatelessVersion {
			w.Header().Set("Allow", "POST")
			fail(w, http.StatusMethodNotAllowed, nil, -32600, "this revision has POST alone")
			return
		}
		unsupported(w, nil, v, h.versions())
		return
	}
	switch r.Method {
	case http.MethodPost:
		h.post(w, r)
	case http.MethodGet:
		if s := h.find(w, r); s != nil {
			s.get(w, r)
		}
	case http.MethodDelete:
		if s := h.find(w, r); s != nil {
			// The client need not wait until the server has stopped.
			h.remove(s.id)
			s.end()
			w.WriteHeader(http.StatusNoContent)
		}
	default:
		w.Header().Set("Allow", "GET, POST, DELETE")
		fail(w, http.StatusMethodNotAllowed, nil, -32600, "use GET, POST or DELETE")
	}
}

// fail answers with a JSON-RPC error; a nil id becomes null.
func fail(w http.ResponseWriter, status int, id []byte, code int, msg string) {
	if id == nil {
		id = []byte("null")
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(relay.ErrorLine(id, code, msg)) // the client may be gone
}

func (h *Handler) find(w http.ResponseWriter, r *http.Request) *session {
	id := r.Header.Get(sessionHeader)
	if id == "" {
		fail(w, http.StatusBadRequest, nil, -32600, "the header Mcp-Session-Id is missing: initialize first")
		return nil
	}
	h.mu.Lock()
	s := h.sessions[id]
	h.mu.Unlock()
	if s == nil || s.owner != h.owner(r) || !s.use() {
		fail(w, http.StatusNotFound, nil, -32001, "no such session: initialize again")
		return nil
	}
	context.AfterFunc(r.Context(), s.unuse)
	return s
}

// ReadMessage reads a POST's body as one message in one line. It has answered
// where ok is false.
func ReadMessage(w http.ResponseWriter, r *http.Request, maxBody int64) (m relay.Message, raw []byte, ok bool) {
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" {
		fail(w, http.StatusUnsupportedMediaType, nil, -32600, "Content-Type must be application/json")
		return m, nil, false
	}
	raw, err := ReadBody(w, r, maxBody)
	if err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			fail(w, http.StatusRequestEntityTooLarge, nil, -32600, fmt.Sprintf("the body is over %d bytes", maxBody))
		} else {
			fail(w, http.StatusBadRequest, nil, -32600, "the body could not be read")
		}
		return m, nil, false
	}
	if m, err = relay.Peek(raw); err != nil {
		fail(w, http.StatusBadRequest, nil, -32700, err.Error())
		return m, nil, false
	}
	if m.Kind == relay.Stray {
		fail(w, http.StatusBadRequest, nil, -32600, "the body is no JSON-RPC 2.0 message")
		return m, nil, false
	}
	OneLine(raw)
	return m, raw, true
}

// OneLine makes a valid JSON text fit one line, in place: outside of strings a
// newline or carriage return is white space, and inside it cannot stand.
func OneLine(raw []byte) {
	for _, c := range []byte{'\n', '\r'} {
		for i := bytes.IndexByte(raw, c); i >= 0; {
			raw[i] = ' '
			j := bytes.IndexByte(raw[i:], c)
			if j < 0 {
				break
			}
			i += j
		}
	}
}

func (h *Handler) post(w http.ResponseWriter, r *http.Request) {
	m, raw, ok := ReadMessage(w, r, h.cfg.MaxBody)
	if !ok {
		return
	}
	v := r.Header.Get(versionHeader)
	modern := v == StatelessVersion || v == "" && m.Kind == relay.Request && metaVersionOf(m, raw) != ""
	switch {
	case modern && h.cfg.Serve != nil && r.Header.Get(sessionHeader) == "":
		h.single(w, r, m, raw)
		return
	case modern && h.cfg.Stateless && r.Header.Get(sessionHeader) == "":
		h.stateless.post(w, r, m, raw)
		return
	case v != "" && !slices.Contains(versions, v):
		unsupported(w, m.ID.Of(raw), v, h.versions())
		return
	}
	if m.Kind == relay.Request && m.Method == "initialize" {
		if r.Header.Get(sessionHeader) != "" {
			fail(w, http.StatusBadRequest, m.ID.Of(raw), -32600, "the session is initialized already")
			return
		}
		h.open(w, r, m, raw)
		return
	}
	if s := h.find(w, r); s != nil {
		s.post(w, r, m, raw)
	}
}

var (
	errFull   = errors.New("too many sessions are open: end one with DELETE, or try again later")
	errClosed = errors.New("this is being stopped")
)

func (h *Handler) open(w http.ResponseWriter, r *http.Request, m relay.Message, raw []byte) {
	s, err := h.start(r, nil)
	if err != nil {
		status, msg := http.StatusServiceUnavailable, err.Error()
		h.cfg.Logger.Warn("could not open an MCP session", "error", relay.Cut([]byte(msg), 500))
		fail(w, status, m.ID.Of(raw), -32000, msg)
		return
	}
	context.AfterFunc(r.Context(), s.unuse)
	w.Header().Set(sessionHeader, s.id)
	if !s.post(w, r, m, raw) {
		s.end()
	}
}

// versions are those that a client may use here.
func (h *Handler) versions() []string {
	if h.cfg.Stateless || h.cfg.Serve != nil {
		return append(slices.Clone(versions), StatelessVersion)
	}
	return versions
}

func (h *Handler) owner(r *http.Request) string {
	if h.cfg.Owner == nil {
		return ""
	}
	return h.cfg.Owner(r)
}

// start opens a session, in use by its caller. A nil emit is the session's
// own; with another the session has no id that a client could use.
func (h *Handler) start(r *http.Request, emit Emit) (*session, error) {
	h.mu.Lock()
	closed := h.closed
	h.mu.Unlock()
	if closed {
		return nil, errClosed
	}
	owner := h.owner(r)
	if err := h.places.Enter(r.Context(), owner); err != nil {
		return nil, errFull // nobody waits for a place
	}
	s := newSession(h, rand.Text())
	s.owner = owner
	if emit == nil {
		emit = s.emit
	}
	backend, err := h.cfg.Open(r.Context(), r, emit)
	if err != nil {
		s.idle.Stop() // nothing else knows of it
		h.places.Leave(owner)
		return nil, err
	}
	h.mu.Lock()
	if closed = h.closed; !closed {
		s.backend = backend
		s.use()
		h.sessions[s.id] = s
		h.wg.Go(s.own)
	}
	h.mu.Unlock()
	if closed {
		s.idle.Stop()
		defer h.places.Leave(owner)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), h.cfg.Stop)
		defer cancel()
		return nil, errors.Join(errClosed, backend.Close(ctx))
	}
	return s, nil
}

// remove makes a session unknown to clients.
func (h *Handler) remove(id string) {
	h.mu.Lock()
	delete(h.sessions, id)
	h.mu.Unlock()
}

// accepts says which of the two answers the client takes.
func accepts(r *http.Request) (sse, plain bool) {
	all := strings.Join(r.Header.Values("Accept"), ",")
	if strings.TrimSpace(all) == "" {
		return false, true
	}
	for part := range strings.SplitSeq(all, ",") {
		t, _, err := mime.ParseMediaType(strings.TrimSpace(part))
		if err != nil {
			continue
		}
		sse = sse || t == "text/event-stream" || t == "text/*" || t == "*/*"
		plain = plain || t == "application/json" || t == "application/*" || t == "*/*"
	}
	return sse, plain
}

// progressToken is the token that a request asks its progress to carry.
func progressToken(m relay.Message, raw []byte) string {
	meta, ok := relay.Member(m.Params.Of(raw), "_meta")
	if !ok {
		return ""
	}
	b := meta.Of(m.Params.Of(raw))
	tok, ok := relay.Member(b, "progressToken")
	if !ok || !json.Valid(tok.Of(b)) {
		return ""
	}
	k, _ := relay.IDKey(tok.Of(b))
	return k
}
