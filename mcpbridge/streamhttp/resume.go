package streamhttp

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// Streams can be resumed (2025-11-25, Transports, Resumability): each event has
// an id, STREAM-NUMBER, and a session keeps what it sent last. A stream whose
// client has gone goes on in there, and a GET with the id of the last event
// that came takes it up. What is older than the bounds is gone.

const (
	keptEvents = 512
	keptBytes  = 2 << 20
)

// sent is one event that was sent, or waits for its stream to be taken up.
type sent struct {
	stream, n int64
	raw       []byte
}

// history is what a session remembers of its streams. The session's lock
// guards it.
type history struct {
	events  []sent // of all streams, oldest first
	size    int
	last    int64             // stream; 0 is the general one
	general int64             // number of its last event
	streams map[int64]*stream // of requests, while there is something to take up
}

// note gives an event its number and keeps it. s.mu is held.
func (s *session) note(st *stream, raw []byte) sent {
	h := &s.history
	ev := sent{raw: raw}
	if st.n == 0 {
		h.general++
		ev.n = h.general
	} else {
		st.events++
		ev.stream, ev.n = st.n, st.events
	}
	if len(raw) > keptBytes/2 {
		st.gap = ev.n // too large to be sent again
		if st.n != 0 && len(st.ids) == 0 {
			delete(h.streams, st.n)
		}
		return ev
	}
	h.events = append(h.events, ev)
	for h.size += len(raw); len(h.events) > keptEvents || h.size > keptBytes; {
		old := h.events[0]
		h.size -= len(old.raw)
		h.events = h.events[1:]
		if o := h.streams[old.stream]; o != nil {
			o.gap = old.n
			if len(o.ids) == 0 && old.n == o.events {
				delete(h.streams, o.n) // nothing is left of it
			}
		}
	}
	return ev
}

// enroll makes a request's stream one that can be taken up. s.mu is held.
func (s *session) enroll(st *stream) {
	s.history.last++
	st.n = s.history.last
	if s.history.streams == nil {
		s.history.streams = map[int64]*stream{}
	}
	s.history.streams[st.n] = st
}

// hold keeps a message for a stream whose client has gone, after those that
// had not been written yet.
func (s *session) hold(st *stream, raw []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holdRest(st)
	if raw != nil {
		s.holdOne(st, raw)
	}
}

// holdOne keeps one message: for the stream what belongs to its requests alone,
// for the next reader of any all else. s.mu is held.
func (s *session) holdOne(st *stream, raw []byte) {
	m, err := relay.Peek(raw)
	switch {
	case err != nil:
	case m.Kind == relay.Response, m.Method == "notifications/progress" && len(st.ids) > 0:
		s.note(st, raw)
		s.settle(st, raw)
	default:
		s.keepLocked(raw)
	}
}

// holdRest keeps what was on its way to a stream that was left. s.mu is held.
func (s *session) holdRest(st *stream) {
	for {
		select {
		case raw := <-st.ch:
			s.holdOne(st, raw)
		default:
			return
		}
	}
}

// settle strikes a request off its stream's list when its answer is there. s.mu
// is held.
func (s *session) settle(st *stream, raw []byte) {
	if m, err := relay.Peek(raw); err == nil && m.Kind == relay.Response {
		k, _ := relay.IDKey(m.ID.Of(raw))
		delete(st.ids, k)
	}
	if len(st.ids) > 0 {
		return
	}
	for _, t := range st.token {
		if s.tokens[t] == st {
			delete(s.tokens, t)
		}
	}
	if st.gap == st.events {
		delete(s.history.streams, st.n)
	}
}

func eventID(stream, n int64) string { return fmt.Sprintf("%d-%d", stream, n) }

// after finds the stream of an event and what came after it. It is false where
// that is not known any more.
func (s *session) after(id string) (st *stream, events []sent, ok bool) {
	first, second, cut := strings.Cut(id, "-")
	number, err1 := strconv.ParseInt(first, 10, 64)
	n, err2 := strconv.ParseInt(second, 10, 64)
	if !cut || err1 != nil || err2 != nil || n < 0 {
		return nil, nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := &s.history
	if number != 0 {
		if st = h.streams[number]; st == nil || n > st.events || n < st.gap {
			return nil, nil, false
		}
	} else if n > h.general {
		return nil, nil, false
	}
	for _, ev := range h.events {
		if ev.stream == number && ev.n > n {
			events = append(events, ev)
		}
	}
	return st, events, true
}

// resume takes a stream of requests up: what was missed, then what comes.
func (s *session) resume(w http.ResponseWriter, r *http.Request, st *stream, last string) {
	s.mu.Lock()
	select {
	case <-st.left:
	default:
		s.mu.Unlock()
		fail(w, http.StatusConflict, nil, -32600, "this stream is being read already")
		return
	}
	s.holdRest(st)
	st.ch, st.left = make(chan []byte, 16), make(chan struct{})
	if len(st.ids) > 0 {
		s.streams = append(s.streams, st)
	}
	s.mu.Unlock()
	defer s.drop(st)
	_, missed, ok := s.after(last)
	if !ok {
		fail(w, http.StatusBadRequest, nil, -32600, "the events after this one are gone")
		return
	}
	out := writer{w: w, sse: true, s: s, st: st}
	out.begin()
	for _, ev := range missed {
		if out.again(ev) != nil {
			return
		}
	}
	s.answer(r, st, &out)
}
