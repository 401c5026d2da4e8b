package remote

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

var errEventSize = errors.New("the server sent an event over the limit")

// events reads server-sent events (WHATWG HTML, 9.2) under a bound.
type events struct {
	r      *bufio.Reader
	max    int
	name   string // of the last event
	lastID string
	retry  time.Duration
}

func newEvents(r io.Reader, limit int) *events {
	return &events{r: bufio.NewReader(r), max: limit, retry: time.Second}
}

func (e *events) resume(r io.Reader) *events {
	return &events{r: bufio.NewReader(r), max: e.max, lastID: e.lastID, retry: e.retry}
}

// next returns the next event's data. What has none is skipped.
func (e *events) next() ([]byte, error) {
	var data []byte
	name, has := "", false
	for {
		line, err := e.line(len(data))
		if err != nil {
			return nil, err // an event that was cut off is none
		}
		if len(line) == 0 {
			if has && len(data) > 0 {
				e.name = name
				return data, nil
			}
			data, name, has = nil, "", false
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "data":
			if has {
				data = append(data, '\n')
			}
			data, has = append(data, value...), true
		case "event":
			name = string(value[:min(len(value), 64)])
		case "id":
			if len(value) <= 1024 && headerSafe(string(value)) {
				e.lastID = string(value)
			}
		case "retry":
			if ms, err := strconv.Atoi(string(value)); err == nil && ms >= 0 {
				e.retry = time.Duration(min(ms, int(maxRetry/time.Millisecond))) * time.Millisecond
			}
		}
	}
}

// line reads one line without its end. Only \n ends one here: a lone \r is
// left in, where it is white space of the JSON.
func (e *events) line(have int) ([]byte, error) {
	var out []byte
	for {
		part, err := e.r.ReadSlice('\n')
		if len(out)+len(part)+have > e.max+64 {
			return nil, fmt.Errorf("%w of %d bytes", errEventSize, e.max)
		}
		out = append(out, part...)
		if err == nil {
			return bytes.TrimSuffix(bytes.TrimSuffix(out, []byte("\n")), []byte("\r")), nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
	}
}

// startSSE opens the older transport's stream and waits for the endpoint that
// it names.
func (s *Server) startSSE(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, endpointMax)
	defer cancel()
	// The stream lives on after ctx.
	stop := context.AfterFunc(ctx, func() { s.cancel(errors.New("the server named no endpoint in time")) })
	req, err := s.newRequest(s.ctx, http.MethodGet, nil) //nolint:contextcheck // the session's
	if err != nil {
		return err
	}
	res, err := s.do(req)
	if err != nil {
		return errors.New(unreachable(err))
	}
	if res.StatusCode != http.StatusOK {
		_ = res.Body.Close()
		return fmt.Errorf("the server answered %s to the stream's GET%s", status(res.StatusCode), loginHint(res.StatusCode, res.Header))
	}
	ev := newEvents(res.Body, s.cfg.MaxMessage)
	data, err := ev.next()
	if err == nil && ev.name != "endpoint" {
		err = errors.New("the server's first event is no endpoint")
	}
	if err == nil {
		err = s.useEndpoint(string(data))
	}
	if !stop() && err == nil {
		err = context.Cause(s.ctx) //nolint:contextcheck // the session's
	}
	if err != nil {
		_ = res.Body.Close()
		return fmt.Errorf("no endpoint to send to: %s", plain(err))
	}
	s.wg.Go(func() {
		defer res.Body.Close() //nolint:errcheck // only read from
		for {
			data, err := ev.next()
			if err != nil {
				s.cancel(errors.New("the server's stream ended"))
				return
			}
			if ev.name == "message" || ev.name == "" {
				s.emit(data)
			}
		}
	})
	return nil
}

// useEndpoint takes the endpoint of the older transport, which must be of the
// origin that was authored: a server chooses no other host.
func (s *Server) useEndpoint(ref string) error {
	base, err := url.Parse(s.cfg.URL)
	if err != nil {
		return errors.New("the url cannot be used")
	}
	u, err := base.Parse(ref)
	if err != nil || len(ref) > 8<<10 {
		return errors.New("the endpoint cannot be read")
	}
	if u.Scheme != base.Scheme || u.Host != base.Host || u.User != nil {
		return errors.New("the endpoint is of another origin than the server")
	}
	s.mu.Lock()
	s.endpoint = u.String()
	s.mu.Unlock()
	return nil
}
