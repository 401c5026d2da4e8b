package mcpbridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandboxd/sandboxd/mcpbridge/internal/fake"
)

func serve(t testing.TB, r *Registry) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(r.Handler())
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return srv
}

func do(t testing.TB, method, url, body string, header ...string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		} else {
			req.Header.Set(header[i], header[i+1])
		}
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b), res.Header
}

func TestAPI(t *testing.T) {
	start, last := starts(func() *fake.Server {
		return &fake.Server{Tools: echoTools, Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
			_, args := r.Tool()
			switch {
			case strings.Contains(string(args), "fail"):
				return json.RawMessage(`{"content":[{"type":"text","text":"it broke"}],"isError":true}`), nil
			case strings.Contains(string(args), "rpc"):
				return nil, &fake.Error{Code: -32042, Message: "no way"}
			case strings.Contains(string(args), "hang"):
				return nil, nil
			}
			return echoHandle(r)
		}}
	})
	r := newRegistry(t, Config{MaxBody: 1000}, Server{Name: "x", Start: start, Required: true, CallTimeout: 50 * time.Millisecond})
	url := serve(t, r).URL
	const act = "/api/v1/automation/connectors/x/actions/"
	for _, tt := range []struct {
		name, method, path, body string
		header                   []string
		status                   int
		want                     string // part of the answer
	}{
		{"health", "GET", "/healthz", "", []string{"Host", "elsewhere"}, 200, `"status":"ok"`},
		{"list", "GET", "/api/v1/automation/connectors", "", nil, 200, `[{"name":"x","label":"x","type":"api","actions":[{"key":"echo"`},
		{"get", "GET", "/api/v1/automation/connectors/x", "", nil, 200, `{"name":"x"`},
		{"configured name", "GET", "/api/v1/automation/connectors/X", "", nil, 200, `{"name":"x"`},
		{"call", "POST", act + "echo", `{"text":"hi"}`, nil, 200, `{"ok":true,"content":[{"type":"text","text":"{\"text\":\"hi\"}"}]}`},
		{"pretty", "POST", act + "echo", "{\n \"text\":\r\n \"hi\"\n}\n", nil, 200, `"ok":true`},
		{"tool error", "POST", act + "echo", `{"text":"fail"}`, nil, 200, `{"ok":false,"content":[{"type":"text","text":"it broke"}],"error":{"code":"tool_error","message":"it broke"}}`},
		{"server error", "POST", act + "echo", `{"text":"rpc"}`, nil, 502, `"code":"server_error","message":"server answered error -32042: \"no way\""`},
		{"timeout", "POST", act + "echo", `{"text":"hang"}`, nil, 504, `"code":"timeout"`},
		{"invalid", "POST", act + "echo", `{"text":[]}`, nil, 422, `"path":"/text"`},
		{"no arguments", "POST", act + "echo", ``, nil, 422, `missing properties`},
		{"no JSON", "POST", act + "echo", `{"text"`, nil, 400, `"code":"invalid_request"`},
		{"large", "POST", act + "echo", `{"text":"` + strings.Repeat("x", 1000) + `"}`, nil, 413, `"code":"too_large"`},
		{"form", "POST", act + "echo", `{"text":"x"}`, []string{"Content-Type", "text/plain"}, 400, `Content-Type`},
		{"no action", "POST", act + "nothing", `{}`, nil, 404, `"code":"unknown_action"`},
		{"no connector", "POST", "/api/v1/automation/connectors/y/actions/echo", `{}`, nil, 404, `"code":"unknown_connector"`},
		{"no path", "GET", "/nothing", "", nil, 404, `"code":"no_such_path"`},
		{"rebound name", "GET", "/api/v1/automation/connectors", "", []string{"Host", "evil.example:80"}, 403, `"code":"forbidden"`},
		{"foreign page", "POST", act + "echo", `{"text":"x"}`, []string{"Origin", "https://evil.example"}, 403, `"code":"forbidden"`},
		{"opaque page", "POST", act + "echo", `{"text":"x"}`, []string{"Origin", "null"}, 403, `"code":"forbidden"`},
		{"foreign page without Origin", "POST", act + "echo", `{"text":"x"}`, []string{"Sec-Fetch-Site", "cross-site"}, 403, `"code":"forbidden"`},
		{"userinfo in Origin", "POST", act + "echo", `{"text":"x"}`, []string{"Origin", "http://evil@localhost"}, 403, `"code":"forbidden"`},
		{"local page", "POST", act + "echo", `{"text":"x"}`, []string{"Origin", "http://localhost:3000"}, 200, `"ok":true`},
		{"mcp rebound", "POST", "/mcp", `{}`, []string{"Host", "evil.example"}, 403, `"code":"forbidden"`},
		{"mcp raw rebound", "POST", "/mcp/x", `{}`, []string{"Origin", "https://evil.example"}, 403, `"code":"forbidden"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, body, _ := do(t, tt.method, url+tt.path, tt.body, tt.header...)
			if status != tt.status || !strings.Contains(body, tt.want) {
				t.Errorf("got %d %s\nwant %d with %s", status, body, tt.status, tt.want)
			}
		})
	}
	_ = last
}

func TestAuthorize(t *testing.T) {
	start, _ := starts(echoServer)
	r := newRegistry(t, Config{Authorize: func(req *http.Request) (*Scope, error) {
		if req.Header.Get("Authorization") != "Bearer right" {
			return nil, errors.New("wrong token")
		}
		return nil, nil
	}}, Server{Name: "x", Start: start, Required: true})
	url := serve(t, r).URL
	for _, path := range []string{"/api/v1/automation/connectors", "/mcp", "/mcp/x", "/api/v1/events", "/api/v1/servers"} {
		status, body, _ := do(t, "GET", url+path, "")
		if status != 401 || strings.Contains(body, "wrong") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if status, _, _ := do(t, "GET", url+"/api/v1/automation/connectors", "", "Authorization", "Bearer right"); status != 200 {
		t.Errorf("with the token: %d", status)
	}
	if status, _, _ := do(t, "GET", url+"/healthz", ""); status != 200 {
		t.Errorf("health: %d", status)
	}
}

func connect(t testing.TB, endpoint string, opts *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	return connectAs(t, endpoint, opts, "")
}

// connectAs speaks one revision; empty is go-sdk's newest.
func connectAs(t testing.TB, endpoint string, opts *mcp.ClientOptions, version string) *mcp.ClientSession {
	t.Helper()
	hc := &http.Client{Transport: &http.Transport{}}
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, opts)
	cs, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: endpoint, HTTPClient: hc, MaxRetries: -1}, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cs.Close(); err != nil {
			t.Errorf("closing the client: %v", err)
		}
		hc.CloseIdleConnections()
	})
	return cs
}

func TestAggregateWithSDKClient(t *testing.T) {
	start, _ := starts(func() *fake.Server {
		return &fake.Server{Tools: echoTools, Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
			var p struct {
				Meta struct {
					ProgressToken json.RawMessage
				} `json:"_meta"`
			}
			_ = json.Unmarshal(r.Params, &p)
			if p.Meta.ProgressToken != nil {
				for i := range 3 {
					r.Write(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d}}`, p.Meta.ProgressToken, i+1))
				}
			}
			return echoHandle(r)
		}}
	})
	r := newRegistry(t, Config{}, Server{Name: "one", Start: start, Required: true}, Server{Name: "two", Start: start, Required: true})
	got := make(chan float64, 8)
	changed := make(chan struct{}, 8)
	cs := connect(t, serve(t, r).URL+"/mcp", &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, req *mcp.ProgressNotificationClientRequest) {
			if req.Params.ProgressToken == "mine" {
				got <- req.Params.Progress
			}
		},
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} },
	})
	list, err := cs.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tl := range list.Tools {
		names = append(names, tl.Name)
	}
	if diff := cmp.Diff([]string{"mcp_one_echo", "mcp_two_echo"}, names); diff != "" {
		t.Error(diff)
	}
	params := &mcp.CallToolParams{Name: "mcp_two_echo", Arguments: map[string]any{"text": "hi"}}
	params.SetProgressToken("mine")
	res, err := cs.CallTool(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	if text := res.Content[0].(*mcp.TextContent).Text; text != `{"text":"hi"}` {
		t.Errorf("got %s", text)
	}
	for i := range 3 {
		if p := <-got; p != float64(i+1) {
			t.Errorf("progress %g, want %d", p, i+1)
		}
	}
	res, err = cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "mcp_one_echo", Arguments: map[string]any{"text": 1}})
	if err != nil || !res.IsError || !strings.Contains(res.Content[0].(*mcp.TextContent).Text, "/text") {
		t.Errorf("invalid arguments: %+v, %v", res, err)
	}
	if _, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "mcp_one_nothing"}); err == nil {
		t.Error("an unknown tool was called")
	}
	if err := r.Remove(t.Context(), "two"); err != nil {
		t.Fatal(err)
	}
	<-changed
}

func TestRawEndpointWithSDKClient(t *testing.T) {
	start, _ := starts(func() *fake.Server {
		return &fake.Server{Tools: echoTools, Concurrent: true, Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
			if r.Method == "tools/call" {
				r.Write(`stray log line`)
				r.Write(`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse"}}`)
				r.Write(`{"jsonrpc":"2.0","id":"ask-1","method":"roots/list"}`)
			}
			return echoHandle(r)
		}}
	})
	for _, sharing := range []Sharing{SharingSession, SharingTenant} {
		t.Run(string(sharing), func(t *testing.T) {
			r := newRegistry(t, Config{}, Server{Name: "x", Start: start, Required: true, Sharing: sharing})
			cs := connect(t, serve(t, r).URL+"/mcp/x", nil)
			for range 3 {
				res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"text": "hi"}})
				if err != nil {
					t.Fatal(err)
				}
				if text := res.Content[0].(*mcp.TextContent).Text; text != `{"text":"hi"}` {
					t.Errorf("got %s", text)
				}
			}
		})
	}
}

// A server's shutdown waits for calls, not for streams that never end.
func TestDrainEndsStreams(t *testing.T) {
	r := echoRegistry(t, Config{})
	srv := httptest.NewUnstartedServer(r.Handler())
	srv.Config.RegisterOnShutdown(r.Drain)
	srv.Start()
	defer srv.Close()
	_, _, header := do(t, "POST", srv.URL+"/mcp", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`)
	session := header.Get("Mcp-Session-Id")
	open := make(chan struct{}, 2)
	ended := make(chan error, 2)
	for _, path := range []string{"/api/v1/events", "/mcp"} {
		go func() {
			req, err := http.NewRequestWithContext(context.Background(), "GET", srv.URL+path, nil)
			if err != nil {
				ended <- err
				return
			}
			req.Header.Set("Accept", "text/event-stream")
			req.Header.Set("Mcp-Session-Id", session)
			res, err := http.DefaultClient.Do(req)
			open <- struct{}{}
			if err != nil {
				ended <- err
				return
			}
			defer res.Body.Close()
			_, err = io.Copy(io.Discard, res.Body)
			ended <- err
		}()
	}
	receive(t, "a stream", open)
	receive(t, "a stream", open)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := srv.Config.Shutdown(ctx); err != nil {
		t.Errorf("shutdown: %v", err)
	}
	for range 2 {
		if err := receive(t, "a stream's end", ended); err != nil {
			t.Error(err)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
