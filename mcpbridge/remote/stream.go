package remote

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// follow passes on a request's stream until its answer. Where the server gave
// an event's id it may end the stream as often as it likes (2025-11-25,
// Resumability and Redelivery): it is asked to go on, for as long as the caller
// waits. It says whether the answer came.
func (s *Server) follow(ctx context.Context, m relay.Message, id []byte, body io.ReadCloser) bool {
	ev := newEvents(body, s.cfg.MaxMessage)
	for idle, failures := 0, 0; ; {
		answered, got := s.drain(ev, m, id)
		_ = body.Close()
		if answered {
			return true
		}
		if idle++; got {
			idle = 0
		}
		if ev.lastID == "" {
			return false
		}
		for {
			if !s.wait(ctx, max(ev.retry, minRetry<<min(idle+failures, 8))) {
				return false
			}
			res, code := s.get(ctx, ev.lastID) //nolint:bodyclose // closed when it was drained
			if res != nil {
				body, failures = res.Body, 0
				break
			}
			if failures++; failures >= maxFailures || code != 0 && code < 500 {
				return false
			}
		}
		ev = ev.resume(body)
	}
}

// drain passes on what a stream has, up to the answer.
func (s *Server) drain(ev *events, m relay.Message, id []byte) (answered, got bool) {
	for {
		data, err := ev.next()
		if errors.Is(err, errEventSize) {
			s.fail(id, err.Error())
			return true, got
		}
		if err != nil {
			return false, got
		}
		got = true
		last := answers(data, id)
		if last {
			s.learn(m, data)
		}
		s.emit(data)
		if last {
			return true, got
		}
	}
}

func (s *Server) wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(min(max(d, minRetry), maxRetry))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// get opens a stream. Without one it says why with a status, or 0.
func (s *Server) get(ctx context.Context, lastID string) (*http.Response, int) {
	req, err := s.newRequest(ctx, http.MethodGet, nil)
	if err != nil {
		return nil, 0
	}
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	res, err := s.do(req)
	if err != nil {
		return nil, 0
	}
	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); res.StatusCode != http.StatusOK || kind != "text/event-stream" {
		_ = res.Body.Close()
		return nil, res.StatusCode
	}
	return res, res.StatusCode
}

// listen keeps the stream open on which a server speaks unasked. A server may
// have none (405). One that has forgotten the session is given a new one.
func (s *Server) listen(opened func()) {
	defer opened()
	lastID, retry, failures, had := "", minRetry, 0, false
	for s.ctx.Err() == nil && failures < maxFailures {
		session := s.sessionID()
		res, code := s.get(s.ctx, lastID)
		opened()
		switch {
		case res != nil:
			failures, had = 0, true
			ev := newEvents(res.Body, s.cfg.MaxMessage)
			for data, err := ev.next(); err == nil; data, err = ev.next() {
				s.emit(data)
			}
			_ = res.Body.Close()
			lastID, retry = ev.lastID, max(ev.retry, time.Second)
		case !had:
			return // it has none
		case code == http.StatusNotFound && session != "":
			if err := s.renew(s.ctx, session); err != nil {
				s.cancel(err)
				return
			}
			lastID = ""
			failures++ // until a stream opens
			continue
		default:
			failures++
		}
		if !s.wait(s.ctx, retry<<failures) {
			return
		}
	}
}
