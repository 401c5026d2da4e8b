package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandboxd/sandboxd/mcpbridge/client"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	return srv.URL
}

func start(t *testing.T, cfg Config) (*Server, error) {
	t.Helper()
	cfg.Client = &http.Client{Transport: &http.Transport{}}
	s, err := Start(t.Context(), cfg)
	if err == nil {
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if err := s.Close(ctx); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
	return s, err
}

func connect(t *testing.T, cfg Config) (*client.Client, error) {
	t.Helper()
	s, err := start(t, cfg)
	if err != nil {
		return nil, err
	}
	c, err := client.Connect(t.Context(), s, client.Options{})
	if err == nil {
		t.Cleanup(func() {
			if err := c.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	return c, err
}

type message struct {
	ID     json.RawMessage
	Method string
	Params json.RawMessage
}

// server answers initialize, and all else by f.
func server(t *testing.T, f func(w http.ResponseWriter, r *http.Request, m message)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var m message
		if r.Method == http.MethodPost {
			b, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			if err := json.Unmarshal(b, &m); err != nil {
				t.Errorf("%s: %v", b, err)
			}
		}
		switch {
		case r.Method == http.MethodPost && m.Method == "initialize":
			w.Header().Set(sessionHeader, "s-1")
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-06-18","capabilities":{}}}`, m.ID)
		case r.Method == http.MethodPost && strings.HasPrefix(m.Method, "notifications/"):
			w.WriteHeader(http.StatusAccepted)
		default:
			f(w, r, m)
		}
	}
}

func TestHeaders(t *testing.T) {
	deleted := make(chan struct{}, 1)
	url := serve(t, server(t, func(w http.ResponseWriter, r *http.Request, m message) {
		switch r.Method {
		case http.MethodGet:
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		case http.MethodDelete:
			deleted <- struct{}{}
			return
		}
		for k, want := range map[string]string{sessionHeader: "s-1", versionHeader: "2025-06-18", "Authorization": "Bearer x", "Content-Type": "application/json"} {
			if got := r.Header.Get(k); got != want {
				t.Errorf("%s is %q, want %q", k, got, want)
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, "{\"jsonrpc\":\"2.0\",\r\n\"id\":%s,\"result\":{\"n\":9007199254740993,\"f\":1.50}}", m.ID)
	}))
	c, err := connect(t, Config{URL: url, Header: http.Header{"authorization": {"Bearer x"}}})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := c.Call(t.Context(), "any", []byte(`{}`), nil); err != nil || string(res) != `{"n":9007199254740993,"f":1.50}` {
		t.Errorf("%s, %v", res, err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	<-deleted
}

func TestStatelessHeaders(t *testing.T) {
	got := make(chan http.Header, 1)
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header
		w.WriteHeader(http.StatusAccepted)
	})
	s, err := start(t, Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, s.Stdio().Out)
	go io.Copy(io.Discard, s.Stdio().Err)
	line := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"né\nX: y","_meta":{"` + metaVersion + `":"2026-07-28"}}}` + "\n"
	if _, err := io.WriteString(s.Stdio().In, line); err != nil {
		t.Fatal(err)
	}
	h := <-got
	if h.Get(versionHeader) != "2026-07-28" || h.Get("Mcp-Method") != "tools/call" || h.Get("Mcp-Name") != "=?base64?bsOpClg6IHk=?=" {
		t.Errorf("%v", h)
	}
}

func TestResume(t *testing.T) {
	var resumed atomic.Int32
	url := serve(t, server(t, func(w http.ResponseWriter, r *http.Request, m message) {
		if r.Method == http.MethodDelete {
			return
		}
		id := r.Header.Get("Last-Event-ID")
		if r.Method == http.MethodGet && id == "" {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		if id == "" {
			_, _ = fmt.Fprintf(w, "retry: 1\nid: e-%s\ndata:\n\n", m.ID)
			return // cut off
		}
		switch resumed.Add(1) {
		case 1: // asked to come again
			_, _ = fmt.Fprintf(w, "retry: 1\nid: %s\n\n", id)
			return
		case 2: // a bad moment
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		_, _ = fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\ndata: {\"jsonrpc\":\"2.0\",\ndata: \"id\":%s,\"result\":{}}\n\n", strings.TrimPrefix(id, "e-"))
	}))
	c, err := connect(t, Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := c.Call(t.Context(), "any", nil, nil); err != nil || string(res) != `{}` || resumed.Load() != 3 {
		t.Errorf("%s, %v after %d", res, err, resumed.Load())
	}
}

func TestHostileAnswers(t *testing.T) {
	long := strings.Repeat("x", 20000)
	for _, tt := range []struct{ name, kind, body, want string }{
		{"other id", "application/json", `{"jsonrpc":"2.0","id":"other","result":{}}`, "something else than an answer"},
		{"null id", "application/json", `{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"x"}}`, "something else"},
		{"no JSON", "application/json", `<html>`, "something else"},
		{"a page", "text/html", `<html>`, "no answer to a request"},
		{"no type", "", ``, "no answer to a request"},
		{"large", "application/json", `{"a":"` + long + `"}`, "over 10000 bytes"},
		{"large event", "text/event-stream", "data: " + long + "\n\n", "over the limit"},
		{"endless lines", "text/event-stream", strings.Repeat("data: x\n", 9000), "over the limit"},
		{"stream without answer", "text/event-stream", "data: {\"jsonrpc\":\"2.0\",\"id\":99,\"result\":{}}\n\n", "without an answer"},
		{"half an event", "text/event-stream", "data: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}\n", "without an answer"},
		{"odd fields", "text/event-stream", "\xff\x00: x\nid: a\x00b\nretry: 99999999999999999999\nretry: -1\n:\n\n", "without an answer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			url := serve(t, server(t, func(w http.ResponseWriter, r *http.Request, _ message) {
				if r.Method != http.MethodPost {
					w.WriteHeader(http.StatusMethodNotAllowed)
					return
				}
				w.Header().Set("Content-Type", tt.kind)
				_, _ = io.WriteString(w, tt.body)
			}))
			c, err := connect(t, Config{URL: url, MaxMessage: 10000})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			var rpc *client.RPCError
			if _, err := c.Call(ctx, "any", nil, nil); !errors.As(err, &rpc) || !strings.Contains(rpc.Message, tt.want) {
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
		})
	}
}

func TestLostSessionEndsTheServer(t *testing.T) {
	url := serve(t, server(t, func(w http.ResponseWriter, _ *http.Request, _ message) { w.WriteHeader(http.StatusNotFound) }))
	c, err := connect(t, Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Call(t.Context(), "any", nil, nil); err == nil {
		t.Error("no error")
	}
	if exit := c.Exit(); !strings.Contains(exit.Detail, "ended the session") {
		t.Errorf("%+v", exit)
	}
}

func TestErrorsHoldNoSecrets(t *testing.T) {
	url := serve(t, http.NotFound)
	cut := httptest.NewServer(nil)
	cut.Close()
	for _, cfg := range []Config{{URL: cut.URL + "/?token=hunter2"}, {URL: cut.URL + "/?token=hunter2", Transport: SSE}, {URL: url + "/?token=hunter2", Transport: SSE}} {
		cfg.Header = http.Header{"Authorization": {"hunter2"}}
		_, err := connect(t, cfg)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("got %v", err)
		}
	}
}

// A cancelled call ends its HTTP request, and so does the session's end.
func TestCancelEndsTheRequest(t *testing.T) {
	arrived, ended := make(chan struct{}, 2), make(chan struct{}, 2)
	url := serve(t, server(t, func(w http.ResponseWriter, r *http.Request, _ message) {
		if r.Method != http.MethodPost {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		arrived <- struct{}{}
		<-r.Context().Done()
		ended <- struct{}{}
	}))
	c, err := connect(t, Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	if _, err := c.Call(ctx, "any", nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	<-ended
	go func() { <-arrived; _ = c.Close(context.Background()) }()
	var exit *relay.ExitError
	if _, err := c.Call(t.Context(), "any", nil, nil); !errors.As(err, &exit) {
		t.Errorf("got %v", err)
	}
	<-ended
}

func TestSSEEndpoint(t *testing.T) {
	for _, tt := range []struct{ events, want string }{
		{"event: endpoint\ndata: https://evil.example/x\n\n", "another origin"},
		{"event: endpoint\ndata: //evil.example/x\n\n", "another origin"},
		{"event: endpoint\ndata: http://user@HOST/x\n\n", "another origin"},
		{"event: endpoint\ndata: file:///etc/passwd\n\n", "another origin"},
		{"event: endpoint\ndata: %zz\n\n", "cannot be read"},
		{"data: {}\n\n", "no endpoint"},
		{"", "no endpoint"},
	} {
		url := serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, strings.ReplaceAll(tt.events, "HOST", r.Host))
		})
		if _, err := start(t, Config{URL: url, Transport: SSE}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, want %s", tt.events, err, tt.want)
		}
	}
}

func FuzzEvents(f *testing.F) {
	f.Add("event: x\nid: 1\nretry: 5\ndata: a\ndata: b\r\n\n: c\n\n")
	f.Fuzz(func(t *testing.T, s string) {
		ev := newEvents(strings.NewReader(s), 100)
		total := 0
		for {
			data, err := ev.next()
			if err != nil {
				break
			}
			if total += len(data); len(data) == 0 || total > len(s) {
				t.Fatalf("%q gave %q", s, data)
			}
		}
		if ev.retry < 0 || ev.retry > maxRetry || !headerSafe(ev.lastID) {
			t.Fatalf("%q left %v %q", s, ev.retry, ev.lastID)
		}
	})
}
