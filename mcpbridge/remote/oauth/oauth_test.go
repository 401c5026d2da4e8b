package oauth

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/sandboxd/sandboxd/mcpbridge/remote/oauth/oauthtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a TokenStore of several users.
type memory struct {
	mu   sync.Mutex
	all  map[Key]Grant
	lock chan struct{}
}

func newMemory() *memory { return &memory{all: map[Key]Grant{}, lock: make(chan struct{}, 1)} }

func (m *memory) Load(_ context.Context, k Key) (*Grant, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g, ok := m.all[k]
	if !ok {
		return nil, ErrNoGrant
	}
	return &g, nil
}

func (m *memory) Save(_ context.Context, k Key, g *Grant) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all[k] = *g
	return nil
}

func (m *memory) Delete(_ context.Context, k Key) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.all, k)
	return nil
}

func (m *memory) Lock(ctx context.Context, _ Key) (func(), error) {
	select {
	case m.lock <- struct{}{}:
		return func() { <-m.lock }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// world is an authorization server and a resource of it, on TLS.
type world struct {
	as       *oauthtest.Server
	resource *http.ServeMux // behind the tokens, below /mcp
	url      string
	hc       *http.Client
	store    *memory
	logs     bytes.Buffer
	mcp      func(w http.ResponseWriter, r *http.Request) bool // sees requests of the resource first
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{as: &oauthtest.Server{}, store: newMemory(), resource: http.NewServeMux()}
	as := httptest.NewTLSServer(w.as)
	var guarded http.Handler
	mcp := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if w.mcp == nil || !w.mcp(rw, r) {
			guarded.ServeHTTP(rw, r)
		}
	}))
	t.Cleanup(func() { as.Close(); mcp.Close() })
	w.as.Issuer, w.url = as.URL, mcp.URL+"/mcp"
	w.resource.HandleFunc("/mcp", func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "ok") })
	guarded = w.as.Protect(w.resource, w.url)
	tr := as.Client().Transport.(*http.Transport).Clone()
	tr.TLSClientConfig.RootCAs.AddCert(mcp.Certificate())
	tr.DisableKeepAlives = true
	w.hc = &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return w
}

func (w *world) config() Config {
	return Config{
		Key: Key{Tenant: "t", Server: "far"}, URL: w.url, Issuers: []string{w.as.Issuer}, ClientName: "sandboxd",
		Open: func() (*http.Client, func()) { return w.hc, func() {} }, Store: w.store, Login: "sandboxd auth login far",
		Logger: slog.New(slog.NewTextHandler(&w.logs, nil)),
	}
}

func client(t *testing.T, cfg Config) *Client {
	t.Helper()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// login goes the whole way, over a real loopback redirect.
func login(t *testing.T, w *world, c *Client, more ...string) error {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	l, err := c.Begin(t.Context(), "http://"+ln.Addr().String()+RedirectPath, more)
	if err != nil {
		return err
	}
	to, err := oauthtest.Approve(w.hc, l.URL())
	if err != nil {
		t.Fatal(err)
	}
	type result struct {
		q   url.Values
		err error
	}
	got := make(chan result, 1)
	go func() {
		q, err := l.Receive(t.Context(), ln)
		got <- result{q, err}
	}()
	for _, stray := range []string{"/", "/callback", "/callback?code=x&state=y", strings.Replace(to[strings.Index(to, "/callback"):], "state=", "state=x&state=", 1)} {
		res, err := http.Get("http://" + ln.Addr().String() + stray)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode < 400 {
			t.Errorf("%s was answered %s", stray, res.Status)
		}
	}
	res, err := http.Get(to)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	r := <-got
	if r.err != nil {
		return r.err
	}
	return l.Finish(t.Context(), r.q)
}

func (w *world) call(t *testing.T, token string) int {
	t.Helper()
	req, _ := http.NewRequest(http.MethodPost, w.url, nil)
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := w.hc.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	return res.StatusCode
}

// secretless fails where one of the given texts holds a secret.
func (w *world) secretless(t *testing.T, texts ...string) {
	t.Helper()
	for _, s := range append(w.as.Secrets(), "hunter2", "code-") {
		for _, text := range append(texts, w.logs.String()) {
			if strings.Contains(text, s) {
				t.Errorf("%q shows %s", text, s)
			}
		}
	}
}

func TestLogin(t *testing.T) {
	for _, tt := range []struct {
		name string
		edit func(w *world, c *Config)
	}{
		{"registered now", func(*world, *Config) {}},
		{"registered now, with a secret", func(w *world, _ *Config) { w.as.Secret = true }},
		{"registered beforehand", func(w *world, c *Config) {
			w.as.Clients, w.as.Edit = map[string]string{"mine": ""}, func(m map[string]any) { delete(m, "registration_endpoint") }
			c.ClientID = "mine"
		}},
		{"beforehand, with a secret", func(w *world, c *Config) {
			w.as.Clients = map[string]string{"mine": "s%:&"}
			c.ClientID, c.ClientSecret = "mine", NewSecret("s%:&")
		}},
		{"metadata document", func(_ *world, c *Config) { c.ClientMetadataURL = "https://example.com/client.json" }},
		{"iss without saying so", func(w *world, _ *Config) {
			w.as.Edit = func(m map[string]any) { delete(m, "authorization_response_iss_parameter_supported") }
		}},
		{"OpenID places", func(w *world, _ *Config) {
			w.as.Hook = func(rw http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/.well-known/oauth-authorization-server" {
					http.NotFound(rw, r)
					return true
				}
				if r.URL.Path == "/.well-known/openid-configuration" {
					r.URL.Path = "/.well-known/oauth-authorization-server"
				}
				return false
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			cfg := w.config()
			tt.edit(w, &cfg)
			c := client(t, cfg)
			if _, err := c.Token(t.Context()); err == nil || !strings.Contains(err.Error(), "nobody has logged in yet: run sandboxd auth login far") {
				t.Errorf("before: %v", err)
			}
			if err := login(t, w, c); err != nil {
				t.Fatal(err)
			}
			c = client(t, cfg) // another process
			token, err := c.Token(t.Context())
			if err != nil || w.call(t, token) != http.StatusOK {
				t.Fatalf("%v", err)
			}
			st, err := c.Status(t.Context())
			if err != nil || st.State != LoggedIn || !slices.Equal(st.Scopes, []string{"read", "offline_access"}) || !st.Refresh {
				t.Errorf("%+v, %v", st, err)
			}
			w.secretless(t, fmt.Sprintf("%+v", st))
			// It refreshes, with the same client.
			w.as.Forget(false)
			if again, err := c.Refused(t.Context(), token, http.StatusUnauthorized, nil); !again || err != nil {
				t.Fatalf("%v, %v", again, err)
			}
			if next, err := c.Token(t.Context()); err != nil || next == token || w.call(t, next) != http.StatusOK {
				t.Errorf("%v", err)
			}
		})
	}
}
