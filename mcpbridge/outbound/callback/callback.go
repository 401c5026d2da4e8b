package callback

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/outbound"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// ContentType is that of an engine's stream of events: one JSON object a line.
const ContentType = "application/x-ndjson"

const (
	sideTimeout = 30 * time.Second // for an engine to take an answer
	stopTimeout = 5 * time.Second  // for an engine to take a cancellation
	maxAsks     = 16               // questions of one run at once
	maxRefusal  = 64 << 10         // bytes read of a refusal
)

// Config is one workflow of an engine.
type Config struct {
	// ID is the workflow's id, which the engine is told.
	ID string
	// URL is where a run is started, http or https.
	URL string
	// Header is sent with each request; it is never shown.
	Header http.Header
	// Client must reach the URL's host and port and should reach no other. Its
	// redirects are not followed here.
	Client *http.Client
	// Logger receives what a client of the workflow is not told; nil discards it.
	Logger *slog.Logger
	// MaxEvent bounds one event in bytes; 0 means 5 MiB.
	MaxEvent int
	// MaxStream bounds all events of one run in bytes; 0 means 64 MiB.
	MaxStream int64
}

// Workflow is a Runner whose runs are an engine's. It is safe for concurrent
// use.
type Workflow struct {
	cfg    Config
	base   *url.URL
	client *http.Client
}

var _ outbound.Runner = (*Workflow)(nil)

// New checks the configuration.
func New(cfg Config) (*Workflow, error) {
	base, err := url.Parse(cfg.URL)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" || base.User != nil {
		return nil, errors.New("callback: the url is no plain http or https address")
	}
	if cfg.ID == "" || cfg.Client == nil || cfg.MaxEvent < 0 || cfg.MaxStream < 0 {
		return nil, errors.New("callback: no id, no client or a negative limit")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.MaxEvent == 0 {
		cfg.MaxEvent = 5 << 20
	}
	if cfg.MaxStream == 0 {
		cfg.MaxStream = 64 << 20
	}
	cfg.Header = cfg.Header.Clone()
	client := *cfg.Client
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Workflow{cfg: cfg, base: base, client: &client}, nil
}

// Run implements outbound.Runner.
func (w *Workflow) Run(ctx context.Context, inputs json.RawMessage, caller outbound.Caller) (json.RawMessage, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	body, err := json.Marshal(map[string]any{"workflow": w.cfg.ID, "inputs": inputs})
	if err != nil {
		return nil, errors.New("the inputs cannot be sent")
	}
	res, err := w.do(ctx, http.MethodPost, w.base, body)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close() //nolint:errcheck // only read from
	t, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if res.StatusCode != http.StatusOK || err != nil || t != ContentType {
		return nil, refusal(res, t)
	}
	r := &run{w: w, cancel: cancel, caller: caller, asked: map[string]bool{}, body: res.Body}
	outputs, ended, err := r.follow(ctx)
	cancel(err)
	_ = res.Body.Close()
	r.wg.Wait()
	if !ended {
		w.stop(ctx, r.url)
	}
	return outputs, err
}

// do sends one request. Its error is fit for a client: it names no address.
func (w *Workflow) do(ctx context.Context, method string, to *url.URL, body []byte) (*http.Response, error) {
	var r io.Reader
	if body != nil {
		r = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, to.String(), r)
	if err != nil {
		return nil, errors.New("the engine's address cannot be used")
	}
	for k, vs := range w.cfg.Header {
		req.Header[http.CanonicalHeaderKey(k)] = vs
	}
	req.Header.Set("Accept", ContentType)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := w.client.Do(req)
	if err == nil {
		return res, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	var u *url.Error // it would repeat the address
	if errors.As(err, &u) {
		err = u.Err
	}
	w.cfg.Logger.Warn("an engine could not be reached", "workflow", w.cfg.ID, "error", relay.Cut([]byte(err.Error()), 300))
	return nil, errors.New("the engine cannot be reached")
}

// refusal says why a run did not start, in the engine's own words if it has
// some.
func refusal(res *http.Response, mediaType string) error {
	if res.StatusCode == http.StatusOK {
		return fmt.Errorf("the engine answered with content of another type than %s", ContentType)
	}
	if mediaType == "application/json" || mediaType == ContentType {
		b, err := io.ReadAll(io.LimitReader(res.Body, maxRefusal))
		if err == nil {
			if ev, err := readEvent(bytes.TrimSpace(b)); err == nil && ev.Type == "error" {
				return fmt.Errorf("the engine refused it: %s", ev.Message)
			}
		}
	}
	return fmt.Errorf("the engine refused it with status %d", res.StatusCode)
}

// stop tells the engine that nobody waits for a run any more. A run that named
// no address sees it by its closed connection.
func (w *Workflow) stop(ctx context.Context, at *url.URL) {
	if at == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	res, err := w.do(ctx, http.MethodDelete, at, nil)
	if err != nil {
		return // and it was logged
	}
	_ = res.Body.Close()
	if res.StatusCode >= 300 && res.StatusCode != http.StatusNotFound {
		w.cfg.Logger.Warn("an engine did not take a cancellation", "workflow", w.cfg.ID, "status", res.StatusCode)
	}
}
