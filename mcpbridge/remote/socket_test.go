package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sandboxd/sandboxd/mcpbridge/client"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// socketServer answers initialize, and all else by f, which may end the
// connection by itself. ended gets the code that the client closed with.
func socketServer(t *testing.T, f func(ctx context.Context, c *websocket.Conn, m message)) (url string, ended chan websocket.StatusCode) {
	t.Helper()
	ended = make(chan websocket.StatusCode, 4)
	url = serve(t, func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization"); got != "Bearer hunter2-hunter2" {
			t.Errorf("Authorization is %q", got)
		}
		if r.Header.Get("Origin") != "" || r.Header.Get("Sec-Websocket-Extensions") != "" {
			t.Errorf("unwanted fields in %v", r.Header)
		}
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"mcp"}})
		if err != nil {
			t.Error(err)
			return
		}
		defer c.CloseNow()
		c.SetReadLimit(1 << 20)
		for {
			kind, b, err := c.Read(r.Context())
			if err != nil {
				ended <- websocket.CloseStatus(err)
				return
			}
			var m message
			if err := json.Unmarshal(b, &m); err != nil || kind != websocket.MessageText {
				t.Errorf("%v %s: %v", kind, b, err)
			}
			switch {
			case m.Method == "initialize":
				_ = c.Write(r.Context(), websocket.MessageText, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}`, m.ID))
			case m.ID != nil:
				f(r.Context(), c, m)
			}
		}
	})
	return "ws" + strings.TrimPrefix(url, "http"), ended
}

var socketHeader = http.Header{"authorization": {"Bearer hunter2-hunter2"}}

func TestWebSocket(t *testing.T) {
	url, ended := socketServer(t, func(ctx context.Context, c *websocket.Conn, m message) {
		_ = c.Write(ctx, websocket.MessageText, fmt.Appendf(nil, "{\"jsonrpc\":\"2.0\", \"x\":1,\r\n\"id\":%s,\"result\":{\"n\":9007199254740993,\"f\":1.50,\"b\":\"é\"}}", m.ID))
	})
	c, err := connect(t, Config{URL: url, Transport: WebSocket, Header: socketHeader})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if res, err := c.Call(t.Context(), "any", []byte(`{"big":12345678901234567890}`), nil); err != nil || string(res) != `{"n":9007199254740993,"f":1.50,"b":"é"}` {
			t.Errorf("%s, %v", res, err)
		}
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if code := <-ended; code != websocket.StatusNormalClosure {
		t.Errorf("closed with %d", code)
	}
}

// Whatever a server does to the connection, a call that is under way fails at
// once, with the cause and without what the server wrote.
func TestHostileSockets(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		answer     func(ctx context.Context, c *websocket.Conn, m message)
	}{
		{"binary", "binary frame", func(ctx context.Context, c *websocket.Conn, m message) {
			_ = c.Write(ctx, websocket.MessageBinary, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID))
		}},
		{"huge", "more than 10000 bytes", func(ctx context.Context, c *websocket.Conn, _ message) {
			_ = c.Write(ctx, websocket.MessageText, []byte(strings.Repeat("x", 20000)))
		}},
		{"endless", "more than 10000 bytes", func(ctx context.Context, c *websocket.Conn, _ message) {
			if w, err := c.Writer(ctx, websocket.MessageText); err == nil {
				for err == nil {
					_, err = w.Write([]byte(strings.Repeat("x", 5000)))
				}
			}
		}},
		{"no UTF-8", "not UTF-8", func(ctx context.Context, c *websocket.Conn, _ message) {
			_ = c.Write(ctx, websocket.MessageText, []byte("\"\xff\""))
		}},
		{"closed", "code 1011", func(_ context.Context, c *websocket.Conn, _ message) {
			_ = c.Close(websocket.StatusInternalError, "token hunter2-hunter2 is bad")
		}},
		{"cut", "was lost", func(_ context.Context, c *websocket.Conn, _ message) { _ = c.CloseNow() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			url, _ := socketServer(t, tt.answer)
			c, err := connect(t, Config{URL: url, Transport: WebSocket, Header: socketHeader, MaxMessage: 10000})
			if err != nil {
				t.Fatal(err)
			}
			var exit *relay.ExitError
			if _, err := c.Call(t.Context(), "any", nil, nil); !errors.As(err, &exit) || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %v, want an exit with %q", err, tt.want)
			}
		})
	}
}

func TestSecretsDoNotComeBack(t *testing.T) {
	url, _ := socketServer(t, func(ctx context.Context, c *websocket.Conn, m message) {
		_ = c.Write(ctx, websocket.MessageText, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":{"code":-1,"message":"token hunter2-hunter2 is bad"}}`, m.ID))
	})
	c, err := connect(t, Config{URL: url, Transport: WebSocket, Header: socketHeader})
	if err != nil {
		t.Fatal(err)
	}
	var rpc *client.RPCError
	if _, err := c.Call(t.Context(), "any", nil, nil); !errors.As(err, &rpc) || !strings.Contains(rpc.Message, "token [secret] is bad") {
		t.Errorf("got %v", err)
	}
}

func TestSocketHandshakes(t *testing.T) {
	accept := func(protocols ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: protocols}); err == nil {
				_, _, _ = c.Read(r.Context())
			}
		}
	}
	for _, tt := range []struct {
		name, want string
		h          http.HandlerFunc
	}{
		{"no subprotocol", "does not speak the WebSocket subprotocol mcp", accept()},
		{"another subprotocol", "does not speak", accept("graphql-ws")},
		{"no server", "404 Not Found to the WebSocket handshake", http.NotFound},
		{"login", "401 Unauthorized to the WebSocket handshake: it wants other credentials in headers, or a login", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="hunter2-hunter2"`)
			w.WriteHeader(http.StatusUnauthorized)
		}},
		{"redirect", "redirects of it are not followed", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}},
		{"a lie", "no WebSocket handshake", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "upgrade")
			w.Header().Set("Upgrade", "websocket")
			w.Header().Set("Sec-Websocket-Accept", "hunter2-hunter2")
			w.WriteHeader(http.StatusSwitchingProtocols)
			if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
				c.Close()
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			url := serve(t, tt.h)
			cfg := Config{URL: "ws" + strings.TrimPrefix(url, "http") + "/?token=hunter2", Transport: WebSocket, Header: socketHeader}
			cfg.Client = &http.Client{Transport: &http.Transport{}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
			_, err := Start(t.Context(), cfg)
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// A peer that is there and says nothing any more is given up.
func TestDeadSocket(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"mcp"}})
		if err != nil {
			return
		}
		_, b, err := c.Read(r.Context())
		if err != nil {
			return
		}
		var m message
		_ = json.Unmarshal(b, &m)
		_ = c.Write(r.Context(), websocket.MessageText, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}`, m.ID))
		<-r.Context().Done() // reads nothing, so answers no ping
		c.CloseNow()
	})}
	ctx, cancel := context.WithCancel(context.Background())
	srv.BaseContext = func(net.Listener) context.Context { return ctx }
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	t.Cleanup(func() { cancel(); srv.Close(); <-done })
	c, err := connect(t, Config{URL: "ws://" + ln.Addr().String(), Transport: WebSocket, PingEvery: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Call(t.Context(), "any", nil, nil); err == nil || !strings.Contains(err.Error(), "no sign of life") {
		t.Errorf("got %v", err)
	}
}
