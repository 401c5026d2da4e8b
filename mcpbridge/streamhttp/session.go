package streamhttp

import (
	"context"
	"errors"
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
	owner   string
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
	history  history
}

// stream is one HTTP response that takes messages.
type stream struct {
	ch    chan []byte
	left  chan struct{}     // closed when the HTTP side has gone
	ids   map[string][]byte // open requests: IDKey -> id as it stood
	token []string

	n      int64 // in the session's history; 0 is the general stream or none
	events int64 // number of the last event
	gap    int64 // the last one that cannot be sent again
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
	s.h.places.Leave(s.owner)
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
	st, ch, left := s.route(m, raw)
	if st == nil {
		return
	}
	select {
	case <-left: // before there is a choice
		s.missed(st, m, raw)
		return
	default:
	}
	select {
	case ch <- raw:
	case <-left:
		s.missed(st, m, raw)
		return
	case <-s.ending:
		return
	}
	select {
	case <-left: // perhaps before the message got there
		s.salvage(st)
	default:
	}
}

// missed takes what a stream's client was not there for.
func (s *session) missed(st *stream, m relay.Message, raw []byte) {
	switch {
	case st.n != 0:
		s.hold(st, raw)
	case m.Kind != relay.Response:
		s.keep(raw)
	}
}

// salvage keeps what a stream that was left did not write, for the next one.
func (s *session) salvage(st *stream) {
	if st.n != 0 {
		s.hold(st, nil)
		return
	}
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

// route finds the stream for a message, or keeps it and returns nil; and the
// stream's ends as they are now.
func (s *session) route(m relay.Message, raw []byte) (st *stream, ch chan []byte, left chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st = s.find(m, raw); st != nil {
		ch, left = st.ch, st.left
	}
	return st, ch, left
}

// find is route's choice. s.mu is held.
func (s *session) find(m relay.Message, raw []byte) *stream {
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
	errRequests  = errors.New("too many requests are open: wait for some to be answered")
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
	resumable := st.n != 0 && len(st.ids) > 0
	for k := range st.ids {
		if s.requests[k] == st && !resumable {
			delete(s.requests, k)
		}
	}
	for _, t := range st.token {
		if s.tokens[t] == st && !resumable {
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
