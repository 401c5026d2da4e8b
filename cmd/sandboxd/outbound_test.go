package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/config"
	"github.com/sandboxd/sandboxd/mcpbridge"
	"github.com/sandboxd/sandboxd/netguard"
)

// publishing serves workflows as serve does: behind the registry's checks, with
// their engines behind a real guard.
type publishing struct {
	url     string
	log     *lockedBuffer
	mu      sync.Mutex
	records []netguard.Record
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func publishWorkflows(t *testing.T, token string, workflows ...config.Workflow) *publishing {
	t.Helper()
	out := &publishing{log: &lockedBuffer{}}
	guard, err := netguard.New(netguard.Options{Upstream: "127.0.0.1:9", Record: func(r netguard.Record) {
		out.mu.Lock()
		out.records = append(out.records, r)
		out.mu.Unlock()
	}})
	if err != nil {
		t.Fatal(err)
	}
	l := &launcher{guard: guard, log: slog.New(slog.NewTextHandler(out.log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	cfg := &config.Config{Tenant: "t", Outbound: config.Outbound{Workflows: workflows}}
	pub, err := newPublished(l, cfg)
	if err != nil {
		t.Fatal(err)
	}
	bridge := bridgeConfig(l, cfg, token)
	bridge.Handlers = map[string]http.Handler{"/mcp-outbound": pub.Handler()}
	registry, err := mcpbridge.New(bridge)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(registry.Handler())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := pub.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := registry.Close(ctx); err != nil {
			t.Error(err)
		}
		srv.CloseClientConnections()
		srv.Close()
	})
	out.url = srv.URL + "/mcp-outbound"
	return out
}

// questionEngine asks, and ends with the answer.
func questionEngine(t *testing.T) string {
	t.Helper()
	answers := make(chan string, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("X-Key"); got != "hunter2" {
			t.Errorf("%s %s came with %q", r.Method, r.URL, got)
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if r.URL.Path == "/runs/1" {
			answers <- string(body)
			return
		}
		w.Header().Set("Content-Type", "application/x-ndjson")
		fmt.Fprint(w, `{"type":"run","url":"/runs/1"}`+"\n"+`{"type":"ask","id":"q","message":"Really?"}`+"\n")
		_ = http.NewResponseController(w).Flush()
		select {
		case a := <-answers:
			fmt.Fprintf(w, `{"type":"done","outputs":{"answer":%s}}`, a)
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	return srv.URL
}

func TestWorkflowsThroughTheGuard(t *testing.T) {
	engine := questionEngine(t)
	p := publishWorkflows(t, "", config.Workflow{
		ID: "ask", URL: engine + "/start", AllowLocalEndpoint: true, Headers: []config.Var{{Name: "X-Key", Value: config.NewSecret("hunter2")}},
		Inputs: []config.WorkflowInput{{Name: "n", Type: "integer", Required: true}},
	})
	hc := &http.Client{Transport: &http.Transport{}}
	defer hc.CloseIdleConnections()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept"}, nil
		},
	})
	cs, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: p.url, HTTPClient: hc, MaxRetries: -1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cs.Close()
	res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "relavium_ask", Arguments: map[string]any{"n": 1}})
	if err != nil || res.IsError || !strings.Contains(fmt.Sprint(res.StructuredContent), "accept") {
		t.Errorf("%+v, %v", res, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.records) == 0 || p.records[0].Sandbox != "outbound:ask" || !p.records[0].Allow {
		t.Errorf("%+v", p.records)
	}
	if all := fmt.Sprintf("%+v", p.records) + p.log.String(); strings.Contains(all, "hunter2") {
		t.Errorf("the secret was written down: %s", all)
	}
}

// An engine can send the publisher nowhere else, nor get its headers there.
func TestAnEngineCannotRedirect(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("another port was reached with %v", r.Header)
	}))
	t.Cleanup(other.Close)
	for _, status := range []int{301, 302, 303, 307, 308} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, status) }))
		t.Cleanup(srv.Close)
		p := publishWorkflows(t, "", config.Workflow{
			ID: "w", URL: srv.URL, AllowLocalEndpoint: true, Headers: []config.Var{{Name: "X-Key", Value: config.NewSecret("hunter2")}},
		})
		res, err := http.Post(p.url, "application/json", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`))
		if err != nil {
			t.Fatal(err)
		}
		session := res.Header.Get("Mcp-Session-Id")
		_ = res.Body.Close()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url,
			strings.NewReader(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"relavium_w"}}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Mcp-Session-Id", session)
		if res, err = http.DefaultClient.Do(req); err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || !strings.Contains(string(body), `"isError":true`) || strings.Contains(string(body), "hunter2") {
			t.Errorf("%d: %s, %v", status, body, err)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// A WebSocket meets the same checks as every other request.
func TestOutboundSocketsAreChecked(t *testing.T) {
	const token = "a token of enough characters"
	w := config.Workflow{ID: "w", URL: "https://engine.example.com/"}
	open, closed := publishWorkflows(t, "", w), publishWorkflows(t, token, w)
	for name, tt := range map[string]struct {
		p      *publishing
		header http.Header
		status int // 0: let in
	}{
		"no page":               {open, http.Header{}, 0},
		"a local page":          {open, http.Header{"Origin": {"http://localhost:3000"}}, 0},
		"a foreign page":        {open, http.Header{"Origin": {"https://evil.example"}}, 403},
		"an opaque page":        {open, http.Header{"Origin": {"null"}}, 403},
		"a cross-site page":     {open, http.Header{"Sec-Fetch-Site": {"cross-site"}}, 403},
		"a rebound name":        {open, http.Header{"Host": {"evil.example"}}, 403},
		"without the token":     {closed, http.Header{}, 401},
		"with another token":    {closed, http.Header{"Authorization": {"Bearer nonsense"}}, 401},
		"with the token":        {closed, http.Header{"Authorization": {"Bearer " + token}}, 0},
		"a page with the token": {closed, http.Header{"Authorization": {"Bearer " + token}, "Origin": {"https://evil.example"}}, 403},
	} {
		host := tt.header.Get("Host")
		tt.header.Del("Host")
		conn, res, err := websocket.Dial(t.Context(), strings.Replace(tt.p.url, "http", "ws", 1), &websocket.DialOptions{
			Subprotocols: []string{"mcp"}, HTTPHeader: tt.header, Host: host,
		})
		switch {
		case err == nil && tt.status == 0:
			if err := conn.Write(t.Context(), websocket.MessageText, []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if _, b, err := conn.Read(t.Context()); err != nil || !strings.Contains(string(b), "relavium_w") {
				t.Errorf("%s: %s, %v", name, b, err)
			}
			_ = conn.CloseNow()
		case err == nil:
			_ = conn.CloseNow()
			t.Errorf("%s: let in", name)
		case res == nil || res.StatusCode != tt.status:
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWhatCannotBePublishedIsAFault(t *testing.T) {
	guard, err := netguard.New(netguard.Options{Upstream: "127.0.0.1:9"})
	if err != nil {
		t.Fatal(err)
	}
	l := &launcher{guard: guard, log: slog.New(slog.DiscardHandler)}
	at := func(id string) config.Workflow { return config.Workflow{ID: id, URL: "https://engine.example.com/"} }
	bad := at("c")
	bad.InputSchema = json.RawMessage(`{"type":"object","$ref":"https://x.example/"}`)
	_, err = newPublished(l, &config.Config{Outbound: config.Outbound{Workflows: []config.Workflow{at("a.b"), at("a_b"), bad, at("fine")}}})
	if err == nil || exitCode(err) != exitUsage {
		t.Fatal(err)
	}
	for _, want := range []string{"workflow a.b cannot", "workflow a_b cannot", "workflow c cannot"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
}
