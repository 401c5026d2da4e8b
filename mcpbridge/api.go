package mcpbridge

import (
	_ "embed" // the description of this API
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/mcpbridge/streamhttp"
)

// Handler serves everything that the registry offers over HTTP:
//
//	GET  /healthz
//	GET  /api/v1/openapi.json
//	GET  /api/v1/automation/connectors
//	GET  /api/v1/automation/connectors/{name}
//	POST /api/v1/automation/connectors/{name}/actions/{key}
//	GET  /api/v1/servers
//	GET  /api/v1/events
//	     /mcp           every server's tools as one MCP endpoint
//	     /mcp/{server}  one server, raw; also as /mcp/{server}/mcp, since some
//	                    clients put up with no path that does not end in /mcp
//
// and what Config.Handlers adds. Requests are checked for Host and Origin and
// by Config.Authorize first.
func (r *Registry) Handler() http.Handler {
	mux := http.NewServeMux()
	for _, route := range r.routes() {
		mux.HandleFunc(route.pattern, route.serve)
	}
	for path, h := range r.cfg.Handlers {
		mux.HandleFunc(path, func(w http.ResponseWriter, req *http.Request) {
			if !scopeOf(req).whole() {
				writeError(w, errf(CodeNoPath, "no such path"))
				return
			}
			h.ServeHTTP(w, req)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		writeError(w, errf(CodeNoPath, "no such path"))
	})
	return r.guard(mux)
}

// openAPI describes the routes; a test holds it against what they answer.
//
//go:embed openapi.json
var openAPI []byte

type route struct {
	pattern string
	serve   http.HandlerFunc
}

func (r *Registry) routes() []route {
	return []route{
		{"GET /healthz", r.health},
		{"GET /api/v1/openapi.json", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(openAPI) // the client may be gone
		}},
		{"GET /api/v1/automation/connectors", r.listConnectors},
		{"GET /api/v1/automation/connectors/{name}", r.getConnector},
		{"POST /api/v1/automation/connectors/{name}/actions/{key}", r.invoke},
		{"GET /api/v1/servers", r.listServers},
		{"GET /api/v1/events", r.streamEvents},
		{"/mcp", r.aggregate.ServeHTTP},
		{"/mcp/{server}", r.serveRaw},
		{"/mcp/{server}/mcp", r.serveRaw},
	}
}

func (r *Registry) serveRaw(w http.ResponseWriter, req *http.Request) {
	e := r.seen(req, req.PathValue("server"))
	if e == nil {
		writeError(w, errf(CodeUnknownConnector, "no server %q", relay.Cut([]byte(req.PathValue("server")), 80)))
		return
	}
	e.raw.ServeHTTP(w, req)
}

// health says 200 once every required server is ready, else 503.
func (r *Registry) health(w http.ResponseWriter, _ *http.Request) {
	counts := map[State]int{}
	status, code := "ok", http.StatusOK
	for _, e := range r.list() {
		e.mu.Lock()
		st := e.state
		e.mu.Unlock()
		counts[st]++
		if e.srv.Required && st != StateReady && st != StateIdle {
			status, code = "degraded", http.StatusServiceUnavailable
		}
	}
	writeJSON(w, code, map[string]any{"status": status, "servers": counts})
}

func (r *Registry) listServers(w http.ResponseWriter, req *http.Request) {
	scope := scopeOf(req)
	all := []Status{}
	for _, st := range r.Status() {
		if scope.server(st.Name) {
			all = append(all, scope.status(st))
		}
	}
	writeJSON(w, http.StatusOK, all)
}

func (r *Registry) listConnectors(w http.ResponseWriter, req *http.Request) {
	scope := scopeOf(req)
	all := []Descriptor{}
	for _, c := range r.Connectors() {
		if d := c.Descriptor(); scope.server(d.Name) {
			all = append(all, scope.descriptor(d))
		}
	}
	writeJSON(w, http.StatusOK, all)
}

func (r *Registry) getConnector(w http.ResponseWriter, req *http.Request) {
	e := r.seen(req, req.PathValue("name"))
	if e == nil || e.snap.Load() == nil {
		writeError(w, errf(CodeUnknownConnector, "no connector %q", relay.Cut([]byte(req.PathValue("name")), 80)))
		return
	}
	writeJSON(w, http.StatusOK, scopeOf(req).descriptor(e.descriptor()))
}

func (r *Registry) invoke(w http.ResponseWriter, req *http.Request) {
	e := r.seen(req, req.PathValue("name"))
	if e == nil {
		writeError(w, errf(CodeUnknownConnector, "no connector %q", relay.Cut([]byte(req.PathValue("name")), 80)))
		return
	}
	key := req.PathValue("key")
	scope := scopeOf(req)
	if snap := e.snap.Load(); !scope.tool(e.slug, key) || scope.narrows() && snap != nil && snap.byName[key] == nil {
		// The usual error names tools that this client may not know.
		writeError(w, errf(CodeUnknownAction, "connector %q has no action %q", e.slug, relay.Cut([]byte(key), 80)))
		return
	}
	args, err := r.readArgs(w, req)
	if err != nil {
		writeError(w, err)
		return
	}
	ctx := req.Context()
	if scope != nil {
		ctx = WithCaller(ctx, scope.name())
	}
	res, cerr := e.call(ctx, key, args)
	if cerr != nil {
		writeError(w, asError(cerr))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	done, werr := streamhttp.Deadline(w)
	if werr == nil {
		defer done()
		werr = res.WriteJSON(w)
	}
	if werr != nil {
		r.cfg.Logger.Debug("client left before its result was written", "server", e.slug)
	}
}

// readArgs reads the body: an object of arguments, or nothing for none.
func (r *Registry) readArgs(w http.ResponseWriter, req *http.Request) (json.RawMessage, *Error) {
	// A form or plain text is what a foreign page can send without asking.
	if t, _, err := mime.ParseMediaType(req.Header.Get("Content-Type")); req.ContentLength != 0 && (err != nil || t != "application/json") {
		return nil, errf(CodeInvalidRequest, "Content-Type must be application/json")
	}
	body, err := streamhttp.ReadBody(w, req, r.cfg.MaxBody)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, errf(CodeTooLarge, "the body is over %d bytes", r.cfg.MaxBody)
	case err != nil:
		return nil, errf(CodeInvalidRequest, "the body could not be read")
	case len(body) == 0:
		return json.RawMessage(`{}`), nil
	}
	if _, err := relay.Depth(body); err != nil {
		return nil, errf(CodeInvalidRequest, "the body is %s", err)
	}
	// Pretty-printed arguments must still fit one line.
	streamhttp.OneLine(body)
	return body, nil
}

// streamEvents sends the registry's events from now on as an SSE stream.
func (r *Registry) streamEvents(w http.ResponseWriter, req *http.Request) {
	scope := scopeOf(req)
	events, stop := r.events.subscribe(req.Context(), scope.name())
	if events == nil {
		writeError(w, errf(CodeBusy, "%d streams of events are open already: close one", r.cfg.MaxEventStreams))
		return
	}
	defer stop()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache, no-transform")
	w.WriteHeader(http.StatusOK)
	rc := http.NewResponseController(w)
	alive := time.NewTicker(25 * time.Second)
	defer alive.Stop()
	// The first bytes tell the client that it is subscribed.
	for text := ": subscribed\n\n"; ; {
		done, err := streamhttp.Deadline(w)
		if err != nil {
			return
		}
		if _, err := io.WriteString(w, text); err != nil || rc.Flush() != nil {
			return
		}
		done()
		select {
		case <-req.Context().Done():
			return
		case <-r.done:
			return
		case <-r.drained:
			return
		case <-alive.C:
			text = ": alive\n\n"
		case ev := <-events:
			ev, ok := scope.event(ev)
			if !ok {
				text = ""
				continue
			}
			b, err := json.Marshal(ev)
			if err != nil {
				return
			}
			text = fmt.Sprintf("event: %s\ndata: %s\n\n", ev.Type, b)
		}
	}
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		status, b = http.StatusInternalServerError, []byte(`{"ok":false,"error":{"code":"internal","message":"the answer could not be written"}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // the client may be gone
}

// writeError answers in the shape of a result.
func writeError(w http.ResponseWriter, e *Error) {
	status := e.Code.Status()
	if e.Code == CodeServerDown || e.Code == CodeBusy {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, status, struct {
		OK    bool   `json:"ok"`
		Error *Error `json:"error"`
	}{false, e})
}
