package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
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

// remoteRegistry serves one remote server through a real guard.
func remoteRegistry(t *testing.T, s config.Server) (*mcpbridge.Registry, func() []netguard.Record, error) {
	t.Helper()
	var mu sync.Mutex
	var records []netguard.Record
	guard, err := netguard.New(netguard.Options{Upstream: "127.0.0.1:9", Record: func(r netguard.Record) {
		mu.Lock()
		records = append(records, r)
		mu.Unlock()
	}})
	if err != nil {
		t.Fatal(err)
	}
	l := &launcher{guard: guard, log: slog.New(slog.DiscardHandler)}
	registry, err := mcpbridge.New(mcpbridge.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := registry.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	servers, _, err := bridgeServers(l, registry, &config.Config{Tenant: "t", Servers: []config.Server{s}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return registry, func() []netguard.Record {
		mu.Lock()
		defer mu.Unlock()
		return records
	}, registry.Add(ctx, servers...)
}

func TestRemoteServer(t *testing.T) {
	server := mcp.NewServer(&mcp.Implementation{Name: "far", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "hello"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "from afar"}}}, nil, nil
	})
	get := func(*http.Request) *mcp.Server { return server }
	for transport, h := range map[config.Transport]http.Handler{
		config.HTTP: mcp.NewStreamableHTTPHandler(get, nil), config.SSE: mcp.NewSSEHandler(get, nil),
		config.WebSocket: socketHandler(t, server),
	} {
		t.Run(string(transport), func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("X-Key") != "hunter2" {
					t.Errorf("X-Key is %q", r.Header.Get("X-Key"))
				}
				h.ServeHTTP(w, r)
			}))
			t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
			registry, records, err := remoteRegistry(t, config.Server{
				ID: "far", Transport: transport, URL: urlFor(transport, srv.URL), AllowLocalEndpoint: true, Required: true,
				Headers: []config.Var{{Name: "X-Key", Value: config.NewSecret("hunter2")}},
			})
			if err != nil {
				t.Fatal(err)
			}
			res, err := registry.Call(t.Context(), "far", "hello", nil)
			if err != nil || !strings.Contains(string(res.Content), "from afar") {
				t.Errorf("%s, %v", res.Content, err)
			}
			if r := records(); len(r) == 0 || r[0].Sandbox != "far" || strings.Contains(fmt.Sprintf("%+v", r), "hunter2") {
				t.Errorf("records %+v", r)
			}
		})
	}
}

func urlFor(transport config.Transport, url string) string {
	if transport == config.WebSocket {
		return strings.Replace(url, "http", "ws", 1)
	}
	return url
}

// wss through the guard, under a policy of one host and port: what another
// certificate answers is no server.
func TestRemoteWebSocketOverTLS(t *testing.T) {
	server := mcp.NewServer(&mcp.Implementation{Name: "far", Version: "1"}, nil)
	srv := httptest.NewTLSServer(socketHandler(t, server))
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	guard, err := netguard.New(netguard.Options{Upstream: "127.0.0.1:9"})
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	for _, trusted := range []bool{false, true} {
		if trusted {
			pool.AddCert(srv.Certificate())
		}
		registry, err := mcpbridge.New(mcpbridge.Config{})
		if err != nil {
			t.Fatal(err)
		}
		l := &launcher{guard: guard, log: slog.New(slog.DiscardHandler), tls: &tls.Config{RootCAs: pool}}
		servers, _, err := bridgeServers(l, registry, &config.Config{Tenant: "t", Servers: []config.Server{{
			ID: "far", Transport: config.WebSocket, URL: "wss" + strings.TrimPrefix(srv.URL, "https"), AllowLocalEndpoint: true, Required: true,
		}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := registry.Add(t.Context(), servers...); (err == nil) != trusted {
			t.Errorf("trusted %v: %v", trusted, err)
		}
		if err := registry.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// socketHandler serves go-sdk's server over WebSocket, one message a frame.
func socketHandler(t *testing.T, server *mcp.Server) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"mcp"}})
		if err != nil {
			t.Error(err)
			return
		}
		conn := websocket.NetConn(r.Context(), c, websocket.MessageText)
		_ = server.Run(r.Context(), &mcp.IOTransport{Reader: conn, Writer: conn})
	})
}

// A server cannot send the bridge elsewhere, nor get at the credentials that
// way.
func TestRemoteServerCannotRedirect(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("another port was reached with %v", r.Header)
	}))
	t.Cleanup(other.Close)
	for i, status := range []int{301, 302, 303, 307, 308, 301, 307} {
		transport := config.HTTP
		if i > 4 {
			transport = config.WebSocket
		}
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, status) }))
		t.Cleanup(srv.Close)
		_, _, err := remoteRegistry(t, config.Server{
			ID: "far", Transport: transport, URL: urlFor(transport, srv.URL), AllowLocalEndpoint: true, Required: true,
			Headers: []config.Var{{Name: "Authorization", Value: config.NewSecret("hunter2")}},
		})
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%d: %v", status, err)
		}
	}
}

func TestRemotePolicyIsOneHostAndPort(t *testing.T) {
	guard, err := netguard.New(netguard.Options{Upstream: "127.0.0.1:9"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := remotePolicy(config.Server{URL: "https://127.0.0.1/mcp"}); err == nil {
		t.Error("a local address was opened without allow_local_endpoint")
	}
	for _, tt := range []struct {
		server config.Server
		target string
		allow  bool
	}{
		{config.Server{URL: "https://a.example.com/mcp"}, "https://a.example.com/", true},
		{config.Server{URL: "https://a.example.com/mcp"}, "https://a.example.com:8443/", false},
		{config.Server{URL: "https://a.example.com/mcp"}, "http://a.example.com/", false},
		{config.Server{URL: "https://a.example.com/mcp"}, "https://b.a.example.com/", false},
		{config.Server{URL: "https://a.example.com:8443/mcp"}, "https://a.example.com:8443/", true},
		{config.Server{URL: "https://9.9.9.7/mcp"}, "https://9.9.9.8/", false},
		{config.Server{URL: "wss://a.example.com/mcp"}, "wss://a.example.com/", true},
		{config.Server{URL: "wss://a.example.com/mcp"}, "https://a.example.com/", false},
		{config.Server{URL: "wss://a.example.com/mcp"}, "wss://b.example.com/", false},
		{config.Server{URL: "http://127.0.0.1:81/mcp", AllowLocalEndpoint: true}, "http://127.0.0.1:81/", true},
		{config.Server{URL: "http://127.0.0.1:81/mcp", AllowLocalEndpoint: true}, "http://127.0.0.1:82/", false},
	} {
		p, err := remotePolicy(tt.server)
		if err != nil {
			t.Errorf("%s: %v", tt.server.URL, err)
			continue
		}
		if e := guard.Explain(t.Context(), p, tt.target, false); e.Allow != tt.allow {
			t.Errorf("%s lets through %s: %v (%+v)", tt.server.URL, tt.target, e.Allow, e)
		}
	}
}
