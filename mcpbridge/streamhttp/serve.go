package streamhttp

import (
	"net/http"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

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
	if sse && len(st.ids) > 0 {
		s.mu.Lock()
		s.enroll(st)
		s.mu.Unlock()
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
	if sse {
		out.s, out.st, out.prime = s, st, r.Header.Get(versionHeader) >= primed
	}
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
	for s.open(st) {
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

// open says whether a stream has requests that are not answered.
func (s *session) open(st *stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(st.ids) > 0
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
	s.mu.Lock()
	var open [][]byte
	for _, id := range st.ids {
		open = append(open, id)
	}
	s.mu.Unlock()
	for _, id := range open {
		write(relay.ErrorLine(id, -32000, msg))
	}
}

// get serves the session's general stream.
func (s *session) get(w http.ResponseWriter, r *http.Request) {
	if sse, _ := accepts(r); !sse {
		fail(w, http.StatusNotAcceptable, nil, -32600, "Accept must name text/event-stream")
		return
	}
	last := r.Header.Get("Last-Event-ID")
	var missed []sent
	if last != "" {
		old, events, ok := s.after(last)
		switch {
		case !ok:
			fail(w, http.StatusBadRequest, nil, -32600, "the events after this one are gone")
			return
		case old != nil:
			s.resume(w, r, old, last)
			return
		}
		missed = events
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
	out := writer{w: w, sse: true, s: s, st: st}
	out.begin()
	for _, ev := range missed {
		if out.again(ev) != nil {
			return
		}
	}
	if s.flush(&out) != nil {
		return
	}
	alive := time.NewTicker(aliveEvery)
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
		case <-s.h.drain:
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
