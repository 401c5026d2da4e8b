package callback

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"

	"github.com/sandboxd/sandboxd/mcpbridge/outbound"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// run is one run that the engine has started.
type run struct {
	w      *Workflow
	cancel context.CancelCauseFunc
	caller outbound.Caller
	body   io.Reader
	wg     sync.WaitGroup // the questions

	url   *url.URL // nil until the engine has named it
	asked map[string]bool

	mu   sync.Mutex
	open int // questions that wait
}

// errEndless marks a stream that is longer than any honest one.
var errEndless = errors.New("the engine's stream of events does not end")

// bounded fails where LimitReader would look like an end.
type bounded struct {
	r    io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errEndless
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// follow reads events until the run ends. ended says that the engine itself
// has ended it.
func (r *run) follow(ctx context.Context) (outputs json.RawMessage, ended bool, err error) {
	src := &bounded{r.body, r.w.cfg.MaxStream}
	lines := relay.NewReader(src, r.w.cfg.MaxEvent)
	for {
		l, err := lines.Next()
		switch {
		case ctx.Err() != nil:
			return nil, false, context.Cause(ctx)
		case errors.Is(err, io.EOF):
			return nil, false, errors.New("the engine's stream ended before the run did")
		case errors.Is(err, errEndless), errors.Is(err, relay.ErrEndless), src.left <= 0 && !l.Newline:
			return nil, false, errEndless
		case err != nil:
			r.w.cfg.Logger.Warn("an engine's stream broke off", "workflow", r.w.cfg.ID, "error", relay.Cut([]byte(err.Error()), 300))
			return nil, false, errors.New("the connection to the engine broke off")
		case l.Oversize > 0:
			return nil, false, fmt.Errorf("the engine sent an event of %d bytes, at most %d are read", l.Oversize, r.w.cfg.MaxEvent)
		case len(l.Text) == 0:
			continue // a sign of life
		}
		ev, err := readEvent(l.Text)
		if err != nil {
			return nil, false, fmt.Errorf("the engine sent an event that cannot be read: %w", err)
		}
		switch ev.Type {
		case "done":
			return ev.Outputs, true, nil
		case "error":
			return nil, true, errors.New(ev.Message)
		case "progress":
			r.caller.Progress(outbound.Progress{Done: ev.Done, Total: ev.Total, Message: ev.Message})
		case "run":
			err = r.named(ev.URL)
		case "ask":
			err = r.ask(ctx, ev)
		}
		if err != nil {
			return nil, false, err
		}
	}
}

// named takes the run's own address, which must be of the same origin: the
// headers go there too.
func (r *run) named(at string) error {
	u, err := r.w.base.Parse(at)
	switch {
	case r.url != nil:
		return errors.New("the engine named the run's address twice")
	case err != nil || u.Scheme != r.w.base.Scheme || u.Host != r.w.base.Host || u.User != nil || len(at) > 2048:
		return errors.New("the engine named an address for the run that is not its own")
	}
	r.url = u
	return nil
}

// ask asks the client's user, while the stream is read on.
func (r *run) ask(ctx context.Context, ev event) error {
	r.mu.Lock()
	full := r.open >= maxAsks
	if !full {
		r.open++
	}
	r.mu.Unlock()
	switch {
	case r.url == nil:
		return errors.New("the engine asked something before it named the run's address")
	case r.asked[ev.ID]:
		return errors.New("the engine asked twice under one id")
	case full:
		return errors.New("the engine asked too many things at once")
	}
	r.asked[ev.ID] = true
	r.wg.Go(func() {
		answer, err := r.caller.Ask(ctx, outbound.Question{Message: ev.Message, Schema: ev.Schema, URL: ev.URL})
		if err == nil {
			err = r.answer(ctx, ev.ID, answer)
		}
		r.mu.Lock()
		r.open--
		r.mu.Unlock()
		if err != nil {
			r.cancel(err) // which ends follow
		}
	})
	return nil
}

// answer posts a person's answer to the run's address.
func (r *run) answer(ctx context.Context, id string, a outbound.Answer) error {
	body, err := json.Marshal(struct {
		ID      string          `json:"id"`
		Action  outbound.Action `json:"action"`
		Content json.RawMessage `json:"content,omitempty"`
	}{id, a.Action, a.Content})
	if err != nil {
		return errors.New("the answer cannot be sent")
	}
	ctx, cancel := context.WithTimeout(ctx, sideTimeout)
	defer cancel()
	res, err := r.w.do(ctx, http.MethodPost, r.url, body)
	if err != nil {
		return err
	}
	_ = res.Body.Close()
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return fmt.Errorf("the engine did not take the answer: status %d", res.StatusCode)
	}
	return nil
}
