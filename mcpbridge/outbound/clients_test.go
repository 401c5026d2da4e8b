package outbound_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandboxd/sandboxd/mcpbridge/outbound"
)

func newPublisher(t testing.TB, cfg outbound.Config, workflows ...outbound.Workflow) *outbound.Publisher {
	t.Helper()
	p, err := outbound.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	if out := p.Publish(workflows...); len(out) > 0 {
		t.Fatalf("left out: %v", out)
	}
	return p
}

func serve(t testing.TB, p *outbound.Publisher) string {
	t.Helper()
	srv := httptest.NewServer(p.Handler())
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	return srv.URL
}

// transports are the ways in, each ready to connect one client.
func transports(t testing.TB, p *outbound.Publisher) map[string]mcp.Transport {
	t.Helper()
	url := serve(t, p)
	hc := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(hc.CloseIdleConnections)
	return map[string]mcp.Transport{
		"stdio":     stdioTransport(t, p),
		"http":      &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: hc, MaxRetries: -1},
		"websocket": &socketTransport{url: url},
	}
}

// stdioTransport is a client of ServeStdio over two real pipes.
func stdioTransport(t testing.TB, p *outbound.Publisher) mcp.Transport {
	t.Helper()
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		err := p.ServeStdio(context.Background(), inR, outW)
		_ = outW.Close()
		served <- err
	}()
	t.Cleanup(func() {
		_ = inW.Close()
		if err := <-served; err != nil {
			t.Errorf("stdio: %v", err)
		}
		_, _ = inR.Close(), outR.Close()
	})
	return &mcp.IOTransport{Reader: outR, Writer: inW}
}

// socketTransport is go-sdk's client over a WebSocket.
type socketTransport struct{ url string }

func (s *socketTransport) Connect(ctx context.Context) (mcp.Connection, error) {
	conn, res, err := websocket.Dial(ctx, strings.Replace(s.url, "http", "ws", 1), &websocket.DialOptions{Subprotocols: []string{"mcp"}})
	if res != nil && res.Body != nil {
		_ = res.Body.Close()
	}
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(16 << 20)
	return &socketConn{conn}, nil
}

type socketConn struct{ *websocket.Conn }

func (c *socketConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	_, raw, err := c.Conn.Read(ctx)
	if err != nil {
		return nil, io.EOF
	}
	return jsonrpc.DecodeMessage(raw)
}

func (c *socketConn) Write(ctx context.Context, m jsonrpc.Message) error {
	raw, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	return c.Conn.Write(ctx, websocket.MessageText, raw)
}

func (c *socketConn) Close() error {
	_ = c.CloseNow() // twice is no fault
	return nil
}
func (c *socketConn) SessionID() string { return "" }

func connect(t testing.TB, over mcp.Transport, version string, opts *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, opts)
	cs, err := c.Connect(ctx, over, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cs.Close() }) // some tests have cut the connection
	if got := cs.InitializeResult().ProtocolVersion; got != version {
		t.Fatalf("negotiated %s, want %s", got, version)
	}
	return cs
}

// eachClient runs a test with go-sdk's client over every transport, in every
// revision that asks people.
func eachClient(t *testing.T, cfg outbound.Config, workflows []outbound.Workflow, opts func() *mcp.ClientOptions, f func(t *testing.T, cs *mcp.ClientSession, p *outbound.Publisher)) {
	for _, version := range []string{"2025-06-18", "2025-11-25", "2026-07-28"} {
		for _, name := range []string{"stdio", "http", "websocket"} {
			t.Run(name+" "+version, func(t *testing.T) {
				p := newPublisher(t, cfg, workflows...)
				f(t, connect(t, transports(t, p)[name], version, opts()), p)
			})
		}
	}
}

func text(t testing.TB, res *mcp.CallToolResult) string {
	t.Helper()
	if res == nil || len(res.Content) != 1 {
		t.Fatalf("no text: %+v", res)
	}
	c, ok := res.Content[0].(*mcp.TextContent)
	if !ok {
		t.Fatalf("no text: %+v", res.Content[0])
	}
	return c.Text
}

// raw is a client that says what a test wants.
type raw struct {
	t    testing.TB
	conn *websocket.Conn
}

func dial(t testing.TB, url string) *raw {
	t.Helper()
	conn, res, err := websocket.Dial(t.Context(), strings.Replace(url, "http", "ws", 1), &websocket.DialOptions{Subprotocols: []string{"mcp"}})
	if res != nil && res.Body != nil {
		_ = res.Body.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(16 << 20)
	t.Cleanup(func() { _ = conn.CloseNow() })
	return &raw{t, conn}
}

func (r *raw) send(text string) {
	r.t.Helper()
	if err := r.conn.Write(r.t.Context(), websocket.MessageText, []byte(text)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *raw) next() string {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 30*time.Second)
	defer cancel()
	_, b, err := r.conn.Read(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(b)
}

func post(t testing.TB, method, url, body string, header ...string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, url, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0, "", nil
	}
	req.Close = true
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return 0, "", nil
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Error(err)
	}
	return res.StatusCode, string(b), res.Header
}
