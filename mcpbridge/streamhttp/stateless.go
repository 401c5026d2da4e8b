package streamhttp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// The revision 2026-07-28 knows no sessions: each POST says for itself which
// version and capabilities it has. All such requests of an endpoint share one
// backend, whose ids and progress tokens are the bridge's own.

const (
	metaVersion      = "io.modelcontextprotocol/protocolVersion"
	metaSubscription = "io.modelcontextprotocol/subscriptionId"

	codeHeaderMismatch     = -32020
	codeMissingCapability  = -32021
	codeUnsupportedVersion = -32022

	probeTimeout = 10 * time.Second
	legacyFor    = 10 * time.Minute
)

var errLegacy = errors.New("the server does not speak " + StatelessVersion)

// stateless keeps the shared backends of one endpoint, one for each owner.
type stateless struct {
	h *Handler

	mu     sync.Mutex
	of     map[string]*statelessOwner // those that ever asked
	legacy time.Time                  // until when the server counts as an older one
}

// statelessOwner has one owner's backend.
type statelessOwner struct {
	turn chan struct{} // holds one element while a request looks for the backend, or starts it
	run  *statelessRun
}

// statelessRun is one backend and the requests that are open with it.
type statelessRun struct {
	s       *session // owns and ends the backend
	backend Session

	mu   sync.Mutex
	last int64
	open map[int64]*statelessRequest
}

// statelessRequest is one POST that waits for its answer.
type statelessRequest struct {
	id, token []byte // as the client wrote them; token is nil without progress
	ch        chan []byte
	left      chan struct{}
}

// get returns the running backend, or starts one and asks whether it speaks
// this revision.
func (st *stateless) get(r *http.Request) (*statelessRun, error) {
	o := st.owned(st.h.owner(r))
	select {
	case o.turn <- struct{}{}:
		defer func() { <-o.turn }()
	case <-r.Context().Done():
		return nil, context.Cause(r.Context())
	}
	if run := o.run; run != nil {
		select {
		case <-run.s.ending:
		default:
			if run.s.use() {
				return run, nil
			}
		}
		o.run = nil
	}
	st.mu.Lock()
	legacy := time.Now().Before(st.legacy)
	st.mu.Unlock()
	if legacy {
		return nil, errLegacy
	}
	run := &statelessRun{open: map[int64]*statelessRequest{}}
	s, err := st.h.start(r, run.emit)
	if err != nil {
		return nil, err
	}
	run.s, run.backend = s, s.backend
	if err := run.probe(r.Context()); err != nil {
		s.end()
		if errors.Is(err, errLegacy) {
			st.mu.Lock()
			st.legacy = time.Now().Add(legacyFor)
			st.mu.Unlock()
		}
		return nil, err
	}
	o.run = run
	return run, nil
}

// owned is one owner's place. There are no more than those who may connect.
func (st *stateless) owned(name string) *statelessOwner {
	st.mu.Lock()
	defer st.mu.Unlock()
	o := st.of[name]
	if o == nil {
		o = &statelessOwner{turn: make(chan struct{}, 1)}
		st.of[name] = o
	}
	return o
}

// probe asks for server/discover. A server that answers with an error, ends,
// or says nothing is one of an older revision; it has a sandbox of its own
// for this, so that nothing else ends with it.
func (run *statelessRun) probe(ctx context.Context) error {
	msg := []byte(`{"jsonrpc":"2.0","id":"probe","method":"server/discover","params":{"_meta":{"` + metaVersion + `":"` + StatelessVersion +
		`","io.modelcontextprotocol/clientInfo":{"name":"sandboxd","version":"0"},"io.modelcontextprotocol/clientCapabilities":{}}}}`)
	m, err := relay.Peek(msg)
	if err != nil {
		return err
	}
	n, req, msg, err := run.add(m, msg)
	if err != nil {
		return err
	}
	defer run.drop(n, req)
	if m, err = relay.Peek(msg); err != nil { // its id is another now
		return err
	}
	if err := run.backend.Receive(ctx, m, msg); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx) // the client left: that says nothing of the server
		}
		return errLegacy
	}
	t := time.NewTimer(probeTimeout)
	defer t.Stop()
	for {
		select {
		case raw := <-req.ch:
			switch m, err := relay.Peek(raw); {
			case err != nil || m.Kind != relay.Response:
			case m.Error.End != 0:
				return errLegacy
			default:
				return nil
			}
		case <-run.backend.Done():
			return errLegacy
		case <-t.C:
			return errLegacy
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// add gives a request an id of the bridge's own.
func (run *statelessRun) add(m relay.Message, raw []byte) (int64, *statelessRequest, []byte, error) {
	req := &statelessRequest{id: m.ID.Of(raw), ch: make(chan []byte, 16), left: make(chan struct{})}
	run.mu.Lock()
	run.last++
	n := run.last
	full := len(run.open) >= maxRequests
	if !full {
		run.open[n] = req
	}
	run.mu.Unlock()
	if full {
		return 0, nil, nil, errRequests
	}
	own := strconv.AppendInt(nil, n, 10)
	edits := []relay.Edit{{Span: m.ID, With: own}}
	params := m.Params.Of(raw)
	if meta, ok := relay.Member(params, "_meta"); ok {
		if tok, ok := relay.Member(meta.Of(params), "progressToken"); ok {
			at := m.Params.Start + meta.Start
			span := relay.Span{Start: at + tok.Start, End: at + tok.End}
			req.token = span.Of(raw)
			edits = append(edits, relay.Edit{Span: span, With: own})
		}
	}
	if len(edits) == 2 && edits[1].Start < edits[0].Start {
		edits[0], edits[1] = edits[1], edits[0]
	}
	out, err := relay.Splice(raw, edits...)
	return n, req, out, err
}

func (run *statelessRun) drop(n int64, req *statelessRequest) {
	run.mu.Lock()
	delete(run.open, n)
	run.mu.Unlock()
	close(req.left)
}

// emit gives a message of the backend to the request that it belongs to, with
// that request's own id and token. A message that belongs to none goes to the
// one that is open, if there is just one.
func (run *statelessRun) emit(m relay.Message, raw []byte) {
	OneLine(raw)
	req, edits := run.match(m, raw)
	if req == nil {
		return
	}
	out, err := relay.Splice(raw, edits...)
	if err != nil {
		return
	}
	select {
	case req.ch <- out:
	case <-req.left:
	case <-run.s.ending:
	}
}

func (run *statelessRun) match(m relay.Message, raw []byte) (*statelessRequest, []relay.Edit) {
	run.mu.Lock()
	defer run.mu.Unlock()
	find := func(id relay.Span) *statelessRequest {
		k, _ := relay.IDKey(id.Of(raw))
		n, err := strconv.ParseInt(strings.TrimLeft(k, "ns"), 10, 64)
		if err != nil {
			return nil
		}
		return run.open[n]
	}
	if m.Kind == relay.Response {
		req := find(m.ID)
		if req == nil {
			return nil, nil
		}
		edits := []relay.Edit{{Span: m.ID, With: req.id}}
		if sub, ok := subscription(raw, m.Result); ok && find(sub) == req {
			edits = append(edits, relay.Edit{Span: sub, With: req.id})
			if sub.Start < m.ID.Start {
				edits[0], edits[1] = edits[1], edits[0]
			}
		}
		return req, edits
	}
	if m.Kind != relay.Notification {
		return nil, nil // this revision has no requests of servers
	}
	if tok, ok := relay.Member(m.Params.Of(raw), "progressToken"); ok && m.Method == "notifications/progress" {
		span := relay.Span{Start: m.Params.Start + tok.Start, End: m.Params.Start + tok.End}
		if req := find(span); req != nil && req.token != nil {
			return req, []relay.Edit{{Span: span, With: req.token}}
		}
		return nil, nil
	}
	if sub, ok := subscription(raw, m.Params); ok {
		if req := find(sub); req != nil {
			return req, []relay.Edit{{Span: sub, With: req.id}}
		}
		return nil, nil
	}
	if len(run.open) == 1 {
		for _, req := range run.open {
			return req, nil
		}
	}
	return nil, nil
}

// subscription finds the id of the subscriptions/listen that a message names.
func subscription(raw []byte, in relay.Span) (relay.Span, bool) {
	body := in.Of(raw)
	meta, ok := relay.Member(body, "_meta")
	if !ok {
		return relay.Span{}, false
	}
	sub, ok := relay.Member(meta.Of(body), metaSubscription)
	at := in.Start + meta.Start
	return relay.Span{Start: at + sub.Start, End: at + sub.End}, ok
}

// post serves one request of this revision.
func (st *stateless) post(w http.ResponseWriter, r *http.Request, m relay.Message, raw []byte) {
	id := m.ID.Of(raw)
	if !acceptable(w, r, m, raw) {
		return
	}
	run, err := st.get(r)
	switch {
	case errors.Is(err, errLegacy):
		unsupported(w, id, r.Header.Get(versionHeader), versions)
		return
	case err != nil:
		fail(w, http.StatusServiceUnavailable, id, -32000, err.Error())
		return
	}
	context.AfterFunc(r.Context(), run.s.unuse)
	run.serve(w, r, m, raw)
}

func (run *statelessRun) serve(w http.ResponseWriter, r *http.Request, m relay.Message, raw []byte) {
	id := m.ID.Of(raw)
	n, req, sent, err := run.add(m, raw)
	if err != nil {
		fail(w, http.StatusServiceUnavailable, id, -32000, err.Error())
		return
	}
	defer run.drop(n, req)
	sm, err := relay.Peek(sent)
	if err == nil {
		err = run.backend.Receive(r.Context(), sm, sent)
	}
	if err != nil {
		fail(w, http.StatusServiceUnavailable, id, -32000, err.Error())
		return
	}
	left := respond(w, r, req.ch, run.s.gone, func() []byte { return relay.ErrorLine(id, -32000, run.backend.Err().Error()) })
	if left {
		run.cancel(r.Context(), n)
	}
}

// cancel tells the backend that nobody waits any more.
func (run *statelessRun) cancel(ctx context.Context, n int64) {
	msg := fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, n)
	m, err := relay.Peek(msg)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	// A backend that is gone or takes nothing needs not be told.
	_ = run.backend.Receive(ctx, m, msg)
}
