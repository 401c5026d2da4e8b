package streamhttp

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

const (
	maxRequests = 4096 // open requests of one session
	backlogMax  = 256  // messages kept for a stream to come
	backlogSize = 1 << 20
)

// session routes messages between a backend and the client's streams.
type session struct {
	h       *Handler
	id      string
	backend Session       // set before the session is found
	ending  chan struct{} // closed by end
	endOnce sync.Once
	gone    chan struct{} // closed when nothing is left

	mu       sync.Mutex
	users    int
	idle     *time.Timer
	dead     bool
	requests map[string]*stream // IDKey of an open request -> its stream
	tokens   map[string]*stream // progress token -> stream
	streams  []*stream          // open POST streams, oldest first
	general  *stream            // the GET stream, or nil
	backlog  [][]byte
	size     int
	dropped  int
	kick     chan struct{} // the backlog has grown
}

// stream is one HTTP response that takes messages.
type stream struct {
	ch    chan []byte
	left  chan struct{}     // closed when the HTTP side has gone
	ids   map[string][]byte // open requests: IDKey -> id as it stood
	token []string
}

func newSession(h *Handler, id string) *session {
	s := &session{
		h: h, id: id, ending: make(chan struct{}), gone: make(chan struct{}), kick: make(chan struct{}, 1),
		requests: map[string]*stream{}, tokens: map[string]*stream{},
	}
	s.idle = time.AfterFunc(h.cfg.Idle, s.end)
	return s
}

// own waits for the session's end, whoever causes it, and cleans up.
func (s *session) own() {
	select {
	case <-s.ending:
	case <-s.backend.Done():
	}
	s.idle.Stop()
	s.h.remove(s.id)
	// A backend blocked in emit goes on when its stream has left or the
	// session ends.
	s.endOnce.Do(func() { close(s.ending) })
	ctx, cancel := context.WithTimeout(context.Background(), s.h.cfg.Stop)
	defer cancel()
	if err := s.backend.Close(ctx); err != nil {
		s.h.cfg.Logger.Warn("an MCP session did not close cleanly", "error", relay.Cut([]byte(err.Error()), 300))
	}
	s.mu.Lock()
	s.dead = true
	s.mu.Unlock()
	close(s.gone)
}

func (s *session) end() { s.endOnce.Do(func() { close(s.ending) }) }

func (s *session) use() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return false
	}
	s.users++
	s.idle.Stop()
	return true
}

func (s *session) unuse() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users == 0 && !s.dead {
		s.idle.Reset(s.h.cfg.Idle)
	}
}

// emit routes one message. It is called by the backend.
func (s *session) emit(m relay.Message, raw []byte) {
	OneLine(raw) // a carriage return would end an event's line
	if m.Kind == relay.Batch {
		for _, e := range relay.Elements(raw) {
			if em, err := relay.Peek(e); err == nil {
				s.emit(em, e)
			}
		}
		return
	}
	st := s.route(m, raw)
	if st == nil {
		return
	}
	select {
	case st.ch <- raw:
	case <-st.left:
		if m.Kind != relay.Response {
			s.keep(raw)
		}
		return
	case <-s.ending:
		return
	}
	select {
	case <-st.left: // perhaps before the message got there
		s.salvage(st)
	default:
	}
}

// salvage keeps what a stream that was left did not write, for the next one.
func (s *session) salvage(st *stream) {
	for {
		select {
		case raw := <-st.ch:
			if m, err := relay.Peek(raw); err == nil && m.Kind != relay.Response {
				s.keep(raw)
			}
		default:
			return
		}
	}
}

// route finds the stream for a message, or keeps it and returns nil.
func (s *session) route(m relay.Message, raw []byte) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.Kind == relay.Response {
		k, _ := relay.IDKey(m.ID.Of(raw))
		st := s.requests[k]
		delete(s.requests, k)
		return st // nil: an answer to nothing, or its client has gone
	}
	if m.Method == "notifications/progress" {
		params := m.Params.Of(raw)
		if tok, ok := relay.Member(params, "progressToken"); ok {
			k, _ := relay.IDKey(tok.Of(params))
			if st := s.tokens[k]; st != nil {
				return st
			}
		}
	}
	// A stdio server does not say which request a message belongs to. With one
	// open request it is most likely that one.
	switch {
	case len(s.streams) == 1:
		return s.streams[0]
	case s.general != nil:
		return s.general
	case len(s.streams) > 0:
		return s.streams[len(s.streams)-1]
	}
	s.keepLocked(raw)
	return nil
}

func (s *session) keep(raw []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keepLocked(raw)
}

func (s *session) keepLocked(raw []byte) {
	s.backlog = append(s.backlog, raw)
	s.size += len(raw)
	for len(s.backlog) > backlogMax || s.size > backlogSize {
		s.size -= len(s.backlog[0])
		s.backlog = s.backlog[1:]
		s.dropped++
	}
	select {
	case s.kick <- struct{}{}: // the general stream, if there is one, takes it
	default:
	}
}

var (
	errDuplicate = errors.New("a request with this id is open already")
	errRequests  = errors.New("too many requests are open")
	errNoID      = errors.New("a request's id must be a string or a number")
)

// add opens a stream for the requests among the messages.
func (s *session) add(ms []relay.Message, raws [][]byte) (*stream, error) {
	st := &stream{ch: make(chan []byte, 16), left: make(chan struct{}), ids: map[string][]byte{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, m := range ms {
		if m.Kind != relay.Request {
			continue
		}
		id := m.ID.Of(raws[i])
		k, ok := relay.IDKey(id)
		_, twice := st.ids[k]
		switch {
		case !ok || len(id) > 1024:
			return nil, errNoID
		case twice || s.requests[k] != nil:
			return nil, errDuplicate
		case len(s.requests)+len(st.ids) >= maxRequests:
			return nil, errRequests
		}
		st.ids[k] = id
		if t := progressToken(m, raws[i]); t != "" {
			st.token = append(st.token, t)
		}
	}
	for k := range st.ids {
		s.requests[k] = st
	}
	for _, t := range st.token {
		s.tokens[t] = st
	}
	if len(st.ids) > 0 {
		s.streams = append(s.streams, st)
	}
	return st, nil
}

// drop forgets a stream whose HTTP side is ending.
func (s *session) drop(st *stream) {
	defer s.salvage(st)
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range st.ids {
		if s.requests[k] == st {
			delete(s.requests, k)
		}
	}
	for _, t := range st.token {
		if s.tokens[t] == st {
			delete(s.tokens, t)
		}
	}
	for i, o := range s.streams {
		if o == st {
			s.streams = append(s.streams[:i:i], s.streams[i+1:]...)
			break
		}
	}
	if s.general == st {
		s.general = nil
	}
	close(st.left)
}

// post sends a client's message on and answers it. It says whether a session
// may go on: an initialize that failed ends it.
func (s *session) post(w http.ResponseWriter, r *http.Request, m relay.Message, raw []byte) bool {
	ms, raws := []relay.Message{m}, [][]byte{raw}
	if m.Kind == relay.Batch {
		ms, raws = nil, relay.Elements(raw)
		for _, e := range raws {
			em, err := relay.Peek(e)
			if err != nil || em.Kind == relay.Request && em.Method == "initialize" {
				fail(w, http.StatusBadRequest, nil, -32600, "a batch cannot hold this message")
				return true
			}
			ms = append(ms, em)
		}
	}
	sse, plain := accepts(r)
	if !sse && !plain {
		fail(w, http.StatusNotAcceptable, nil, -32600, "Accept must name application/json and text/event-stream")
		return false
	}
	st, err := s.add(ms, raws)
	if err != nil {
		fail(w, http.StatusBadRequest, m.ID.Of(raw), -32600, err.Error())
		return true
	}
	defer s.drop(st)
	for i := range ms {
		if err := s.backend.Receive(r.Context(), ms[i], raws[i]); err != nil {
			return s.refuse(w, m, raw, err)
		}
	}
	if len(st.ids) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return true
	}
	out := writer{w: w, sse: sse, batch: m.Kind == relay.Batch}
	return s.answer(r, st, &out) || m.Method != "initialize"
}

func (s *session) refuse(w http.ResponseWriter, m relay.Message, raw []byte, err error) bool {
	select {
	case <-s.backend.Done():
		err = s.backend.Err()
	default:
	}
	fail(w, http.StatusServiceUnavailable, m.ID.Of(raw), -32000, err.Error())
	return m.Method != "initialize"
}

// answer writes what comes for a POST until each of its requests is answered.
// It says whether none of the answers was an error.
func (s *session) answer(r *http.Request, st *stream, out *writer) bool {
	ok := true
	write := func(raw []byte) bool {
		m, err := relay.Peek(raw)
		if err != nil {
			return true
		}
		if m.Kind == relay.Response {
			k, _ := relay.IDKey(m.ID.Of(raw))
			s.mu.Lock()
			delete(st.ids, k)
			s.mu.Unlock()
			ok = ok && m.Error.End == 0
		} else if !out.sse {
			s.keep(raw)
			return true
		}
		return out.message(raw) == nil
	}
	out.begin()
	for len(st.ids) > 0 {
		select {
		case raw := <-st.ch:
			if !write(raw) {
				return ok
			}
		case <-r.Context().Done():
			return ok
		case <-s.gone:
			s.finish(st, write)
			return false
		}
	}
	out.finish()
	return ok
}

// finish answers what a session that ended left open.
func (s *session) finish(st *stream, write func([]byte) bool) {
	for {
		select {
		case raw := <-st.ch:
			write(raw)
			continue
		default:
		}
		break
	}
	msg := "the session was closed"
	if err := s.backend.Err(); err != nil {
		msg = err.Error()
	}
	for _, id := range st.ids {
		write(relay.ErrorLine(id, -32000, msg))
	}
}

// get serves the session's general stream.
func (s *session) get(w http.ResponseWriter, r *http.Request) {
	if sse, _ := accepts(r); !sse {
		fail(w, http.StatusNotAcceptable, nil, -32600, "Accept must name text/event-stream")
		return
	}
	st := &stream{ch: make(chan []byte, 16), left: make(chan struct{})}
	s.mu.Lock()
	if s.general != nil {
		s.mu.Unlock()
		fail(w, http.StatusConflict, nil, -32600, "this session has a stream open already")
		return
	}
	s.general = st
	s.mu.Unlock()
	defer s.drop(st)
	out := writer{w: w, sse: true}
	out.begin()
	if s.flush(&out) != nil {
		return
	}
	alive := time.NewTicker(25 * time.Second)
	defer alive.Stop()
	for {
		var err error
		select {
		case raw := <-st.ch:
			err = out.message(raw)
		case <-s.kick:
			err = s.flush(&out)
		case <-alive.C:
			err = out.comment()
		case <-r.Context().Done():
			return
		case <-s.ending:
			return
		}
		if err != nil {
			return
		}
	}
}

// flush writes the backlog to the general stream.
func (s *session) flush(out *writer) error {
	s.mu.Lock()
	old := s.backlog
	s.backlog, s.size = nil, 0
	s.mu.Unlock()
	for _, raw := range old {
		if err := out.message(raw); err != nil {
			return err
		}
	}
	return nil
}
