package streamhttp

import (
	"context"
	"net/http"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// acceptable checks what every request of the revision 2026-07-28 must have. It
// has answered where it is false.
func acceptable(w http.ResponseWriter, r *http.Request, m relay.Message, raw []byte) bool {
	id := m.ID.Of(raw)
	if m.Kind != relay.Request {
		// Closing the response is how a request is cancelled here; there is
		// nothing else to be told.
		w.WriteHeader(http.StatusAccepted)
		return false
	}
	if _, ok := relay.IDKey(id); !ok || len(id) > 1024 {
		fail(w, http.StatusBadRequest, nil, -32600, errNoID.Error())
		return false
	}
	if code, msg := checkHeaders(r, m, raw); code != 0 {
		fail(w, http.StatusBadRequest, id, code, msg)
		return false
	}
	return true
}

// single has one request served by itself.
func (h *Handler) single(w http.ResponseWriter, r *http.Request, m relay.Message, raw []byte) {
	id := m.ID.Of(raw)
	if !acceptable(w, r, m, raw) {
		return
	}
	if v := r.Header.Get(versionHeader); v != StatelessVersion {
		unsupported(w, id, v, h.versions())
		return
	}
	h.mu.Lock()
	closed := h.closed
	if !closed {
		h.wg.Add(1)
	}
	h.mu.Unlock()
	if closed {
		fail(w, http.StatusServiceUnavailable, id, -32000, errClosed.Error())
		return
	}
	defer h.wg.Done()
	owner := h.owner(r)
	if h.singles.Enter(r.Context(), owner) != nil { // nobody waits for a place
		fail(w, http.StatusServiceUnavailable, id, -32000, errRequests.Error())
		return
	}
	defer h.singles.Leave(owner)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(h.life, cancel)() //nolint:contextcheck // the handler's end is one of the request's too
	ch, left, done := make(chan []byte, 16), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		h.cfg.Serve(ctx, r, m, raw, func(_ relay.Message, line []byte) {
			OneLine(line)
			select {
			case ch <- line:
			case <-left:
			}
		})
	}()
	respond(w, r, ch, done, func() []byte { return relay.ErrorLine(id, -32000, "the request was given up") })
	close(left)
	cancel()
	<-done
}

// respond writes what comes for a request until its response, or the last word
// when gone is closed without one. It says whether the client left before.
func respond(w http.ResponseWriter, r *http.Request, ch <-chan []byte, gone <-chan struct{}, last func() []byte) (left bool) {
	sse, plain := accepts(r)
	alive := time.NewTicker(aliveEvery)
	defer alive.Stop()
	var out *writer
	for {
		var line []byte
		select {
		case line = <-ch:
		case <-r.Context().Done():
			return true
		case <-alive.C:
			if out != nil && out.comment() != nil {
				return true
			}
			continue
		case <-gone:
			select {
			case line = <-ch: // it came before the end
			default:
				line = last()
			}
		}
		m, err := relay.Peek(line)
		if err != nil {
			return false
		}
		final := m.Kind == relay.Response
		if out == nil && final && plain {
			w.Header().Set("Content-Type", "application/json")
			out = &writer{w: w}
			w.WriteHeader(status(m, line))
			_ = out.write(line) // the client may be gone
			return false
		}
		if !sse && !final {
			continue
		}
		if out == nil {
			out = &writer{w: w, sse: true}
			out.begin()
		}
		if out.message(line) != nil {
			return !final
		}
		if final {
			return false
		}
	}
}
