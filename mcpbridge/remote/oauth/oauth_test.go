package oauth

import (
	"bytes"
	"context"
	"errors"
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

// Hostile or broken authorization servers, and what a login says of them.
func TestHostileAuthorizationServers(t *testing.T) {
	redirect := func(to string, paths ...string) func(*world, *Config) {
		return func(w *world, _ *Config) {
			w.as.Hook = func(rw http.ResponseWriter, r *http.Request) bool {
				if slices.Contains(paths, r.URL.Path) {
					http.Redirect(rw, r, to, http.StatusTemporaryRedirect)
					return true
				}
				return false
			}
		}
	}
	set := func(key string, v any) func(*world, *Config) {
		return func(w *world, _ *Config) { w.as.Edit = func(m map[string]any) { m[key] = v } }
	}
	prm := func(f func(w *world) map[string]any) func(*world, *Config) {
		return func(w *world, _ *Config) {
			w.mcp = func(rw http.ResponseWriter, r *http.Request) bool {
				if strings.HasPrefix(r.URL.Path, "/.well-known") {
					oauthtest.WriteJSON(rw, http.StatusOK, f(w))
					return true
				}
				return false
			}
		}
	}
	const meta = "/.well-known/oauth-authorization-server"
	for _, tt := range []struct {
		name, want string
		edit       func(w *world, c *Config)
	}{
		{"no issuer is trusted", "which is not trusted: if you trust it, give the server oauth: {issuers: [", func(_ *world, c *Config) { c.Issuers = nil }},
		{"another issuer is trusted", "which is not trusted", func(_ *world, c *Config) { c.Issuers = []string{"https://other.example.com"} }},
		{"issuer mismatch", "its issuer is another", set("issuer", "https://other.example.com")},
		{"no PKCE", "PKCE with S256", set("code_challenge_methods_supported", nil)},
		{"plain PKCE", "PKCE with S256", set("code_challenge_methods_supported", []string{"plain"})},
		{"token endpoint elsewhere", "its token_endpoint is on evil.example.com, which is not allowed: if you trust it, add it to oauth.hosts of server far", set("token_endpoint", "https://evil.example.com/token")},
		{"authorization endpoint elsewhere", "its authorization_endpoint is on evil.example.com", set("authorization_endpoint", "https://evil.example.com/x")},
		{"registration at a private address", "its registration_endpoint is on 10.0.0.1", set("registration_endpoint", "https://10.0.0.1/")},
		{"plaintext", "want https://", set("token_endpoint", "http://127.0.0.1/token")},
		{"script", "no plain URL", set("authorization_endpoint", "javascript:alert(1)")},
		{"credentials in the URL", "no plain URL", func(w *world, _ *Config) {
			w.as.Edit = func(m map[string]any) {
				m["token_endpoint"] = strings.Replace(w.as.Issuer, "://", "://u:hunter2@", 1) + "/token"
			}
		}},
		{"metadata redirects", "redirect", redirect("https://evil.example.com/?hunter2", meta)},
		{"metadata redirects at home", "redirect", redirect("/elsewhere", meta)},
		{"token endpoint redirects", "redirect", redirect("https://evil.example.com/?hunter2", "/token")},
		{"registration redirects", "redirect", redirect("https://evil.example.com/?hunter2", "/register")},
		{"endless metadata", "more than 262144 bytes", func(w *world, _ *Config) {
			w.as.Hook = func(rw http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path != meta {
					return false
				}
				for {
					if _, err := rw.Write(bytes.Repeat([]byte(" "), 4096)); err != nil {
						return true
					}
				}
			}
		}},
		{"no JSON", "not the JSON", func(w *world, _ *Config) {
			w.as.Hook = func(rw http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == meta {
					_, _ = io.WriteString(rw, "<html>hunter2")
				}
				return r.URL.Path == meta
			}
		}},
		{"none at all", "has no metadata (RFC 8414)", func(w *world, _ *Config) {
			w.as.Hook = func(rw http.ResponseWriter, r *http.Request) bool { http.NotFound(rw, r); return true }
		}},
		{"another's resource", "about another resource", prm(func(w *world) map[string]any {
			return map[string]any{"resource": "https://victim.example.com/mcp", "authorization_servers": []string{w.as.Issuer}}
		})},
		{"a resource below", "about another resource", prm(func(w *world) map[string]any {
			return map[string]any{"resource": w.url + "/other", "authorization_servers": []string{w.as.Issuer}}
		})},
		{"a resource beside", "about another resource", prm(func(w *world) map[string]any {
			return map[string]any{"resource": w.url[:len(w.url)-1], "authorization_servers": []string{w.as.Issuer}}
		})},
		{"no authorization server", "names no authorization server", prm(func(w *world) map[string]any { return map[string]any{"resource": w.url} })},
		{"an attacker's first", "", prm(func(w *world) map[string]any {
			return map[string]any{"resource": w.url, "authorization_servers": []string{"https://evil.example.com", w.as.Issuer}}
		})},
		{"server metadata elsewhere", "the server's metadata (RFC 9728) is on evil.example.com, which is not allowed", func(w *world, _ *Config) {
			w.mcp = func(rw http.ResponseWriter, r *http.Request) bool {
				rw.Header().Set("WWW-Authenticate", `Bearer resource_metadata="https://evil.example.com/x"`)
				rw.WriteHeader(http.StatusUnauthorized)
				return true
			}
		}},
		{"server redirects", "the server answered with a redirect", func(w *world, _ *Config) {
			w.mcp = func(rw http.ResponseWriter, r *http.Request) bool {
				http.Redirect(rw, r, w.as.Issuer+"/open?to=https://evil.example.com", http.StatusTemporaryRedirect)
				return true
			}
		}},
		{"no registration", "registers no clients by itself: register one there", set("registration_endpoint", nil)},
		{"registration refused", "400 Bad Request (invalid_client_metadata)", func(w *world, _ *Config) {
			w.as.Hook = func(rw http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/register" {
					oauthtest.WriteJSON(rw, 400, map[string]string{"error": "invalid_client_metadata", "error_description": "hunter2"})
				}
				return r.URL.Path == "/register"
			}
		}},
		{"token error", "gave no token: the authorization server refused: invalid_grant", func(w *world, _ *Config) {
			w.as.Hook = func(rw http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/token" {
					oauthtest.WriteJSON(rw, 400, map[string]string{"error": "invalid_grant", "error_description": "hunter2"})
				}
				return r.URL.Path == "/token"
			}
		}},
		{"error that is text", "it answered 400 Bad Request", func(w *world, _ *Config) {
			w.as.Hook = func(rw http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/token" {
					oauthtest.WriteJSON(rw, 400, map[string]string{"error": "the token hunter2 is bad"})
				}
				return r.URL.Path == "/token"
			}
		}},
		{"no bearer", "no bearer token", func(w *world, _ *Config) {
			w.as.Hook = func(rw http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/token" {
					oauthtest.WriteJSON(rw, 200, map[string]string{"access_token": "hunter2", "token_type": "DPoP"})
				}
				return r.URL.Path == "/token"
			}
		}},
		{"token with a line break", "holds what no token may", func(w *world, _ *Config) {
			w.as.Hook = func(rw http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/token" {
					oauthtest.WriteJSON(rw, 200, map[string]string{"access_token": "hunter2\r\nX: y", "token_type": "Bearer"})
				}
				return r.URL.Path == "/token"
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			cfg := w.config()
			tt.edit(w, &cfg)
			err := login(t, w, client(t, cfg))
			if tt.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %v, want %q", err, tt.want)
			}
			w.secretless(t, err.Error())
			if _, err := w.store.Load(t.Context(), Key{}); !errors.Is(err, ErrNoGrant) || len(w.store.all) > 0 {
				t.Errorf("something was kept: %v", w.store.all)
			}
		})
	}
}

// A redirect is believed if it has the state and comes from the issuer that
// was asked: what another authorization server hands out is not sent to it.
func TestMixUp(t *testing.T) {
	w := newWorld(t)
	c := client(t, w.config())
	for _, tt := range []struct{ name, iss, want string }{
		{"another issuer", "https://evil.example.com", "not from the authorization server that was asked"},
		{"no issuer", "", "not from the authorization server that was asked"},
	} {
		l, err := c.Begin(t.Context(), "http://127.0.0.1:1/callback", nil)
		if err != nil {
			t.Fatal(err)
		}
		to, err := oauthtest.Approve(w.hc, l.URL())
		if err != nil {
			t.Fatal(err)
		}
		q, err := ParseRedirect(to)
		if err != nil {
			t.Fatal(err)
		}
		if q.Set("iss", tt.iss); tt.iss == "" {
			q.Del("iss")
		}
		if err := l.Finish(t.Context(), q); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
		q.Set("iss", w.as.Issuer)
		good := q.Get("state")
		for _, state := range []string{"", "x", good + "x"} {
			q.Set("state", state)
			if err := l.Finish(t.Context(), q); err == nil || !strings.Contains(err.Error(), "does not belong to this login") {
				t.Errorf("state %q: %v", state, err)
			}
		}
	}
	if slices.Contains(w.as.Seen(), "POST /token") {
		t.Error("a code was sent")
	}
}

func TestErrorsOfTheRedirect(t *testing.T) {
	w := newWorld(t)
	l, err := client(t, w.config()).Begin(t.Context(), "http://127.0.0.1:1/callback", nil)
	if err != nil {
		t.Fatal(err)
	}
	u, _ := url.Parse(l.URL())
	for code, want := range map[string]string{"access_denied": "refused: access_denied", "hunter2 <script>": "server refused"} {
		err := l.Finish(t.Context(), url.Values{"state": {u.Query().Get("state")}, "iss": {w.as.Issuer}, "error": {code}, "error_description": {"hunter2"}})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", code, err)
		}
	}
}

// Many callers and two processes use one rotating refresh token once.
func TestRefreshRotates(t *testing.T) {
	w := newWorld(t)
	cfg := w.config()
	if err := login(t, w, client(t, cfg)); err != nil {
		t.Fatal(err)
	}
	a, b := client(t, cfg), client(t, cfg)
	token, err := a.Token(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.as.Forget(false)
	var wg sync.WaitGroup
	for i := range 16 {
		c := a
		if i%2 == 1 {
			c = b
		}
		wg.Go(func() {
			if again, err := c.Refused(t.Context(), token, http.StatusUnauthorized, nil); !again || err != nil {
				t.Errorf("%v, %v", again, err)
				return
			}
			next, err := c.Token(t.Context())
			if err != nil || w.call(t, next) != http.StatusOK {
				t.Errorf("%v", err)
			}
		})
	}
	wg.Wait()
	n := 0
	for _, s := range w.as.Seen() {
		if s == "POST /token" {
			n++
		}
	}
	if n != 2 { // the login's and one more
		t.Errorf("the token endpoint was asked %d times", n)
	}
	w.secretless(t)
}

func TestRefreshSurvivesItsCaller(t *testing.T) {
	w := newWorld(t)
	c := client(t, w.config())
	if err := login(t, w, c); err != nil {
		t.Fatal(err)
	}
	token, err := c.Token(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w.as.Hook = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/token" {
			cancel()
		}
		return false
	}
	if _, err := c.Refused(ctx, token, http.StatusUnauthorized, nil); err != nil {
		t.Fatal(err)
	}
	if next, err := client(t, w.config()).Token(t.Context()); err != nil || next == token {
		t.Errorf("the rotated token was lost: %v", err)
	}
}

func TestALoginEnds(t *testing.T) {
	w := newWorld(t)
	c := client(t, w.config())
	if err := login(t, w, c); err != nil {
		t.Fatal(err)
	}
	token, err := c.Token(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.as.Forget(true)
	var need *LoginError
	if _, err := c.Refused(t.Context(), token, http.StatusUnauthorized, nil); !errors.As(err, &need) {
		t.Errorf("got %v", err)
	}
	asked := len(w.as.Seen())
	for range 3 {
		if _, err := c.Token(t.Context()); !errors.As(err, &need) {
			t.Errorf("got %v", err)
		}
	}
	if len(w.as.Seen()) != asked {
		t.Error("the authorization server was asked again and again")
	}
	if c.Arrived(t.Context()) {
		t.Error("a login that has ended arrived")
	}
	// The next one uses the client of the last, where the port is the same.
	if err := login(t, w, c); err != nil {
		t.Fatal(err)
	}
	if !c.Arrived(t.Context()) || c.Arrived(t.Context()) {
		t.Error("the login did not arrive once")
	}
	w.secretless(t, need.Error())
}

// An authorization server that is down ends no login.
func TestRefreshFailsForNow(t *testing.T) {
	w := newWorld(t)
	c := client(t, w.config())
	if err := login(t, w, c); err != nil {
		t.Fatal(err)
	}
	token, err := c.Token(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.as.Hook = func(rw http.ResponseWriter, r *http.Request) bool {
		http.Error(rw, "hunter2", http.StatusBadGateway)
		return true
	}
	var need *LoginError
	_, err = c.Refused(t.Context(), token, http.StatusUnauthorized, nil)
	if err == nil || errors.As(err, &need) || !strings.Contains(err.Error(), "could not be renewed: the authorization server") {
		t.Errorf("got %v", err)
	}
	w.secretless(t, err.Error())
	if st, err := c.Status(t.Context()); err != nil || !st.Refresh {
		t.Errorf("%+v, %v", st, err)
	}
}

func TestStepUp(t *testing.T) {
	w := newWorld(t)
	cfg := w.config()
	c := client(t, cfg)
	if err := login(t, w, c); err != nil {
		t.Fatal(err)
	}
	token, _ := c.Token(t.Context())
	var need *LoginError
	challenge := []string{`Bearer error="insufficient_scope", scope="write read"`}
	if _, err := c.Refused(t.Context(), token, http.StatusForbidden, challenge); !errors.As(err, &need) || !strings.Contains(err.Error(), "wants more scopes for this: write read: run sandboxd auth login far") {
		t.Errorf("got %v", err)
	}
	if again, err := c.Refused(t.Context(), token, http.StatusForbidden, nil); again || err != nil {
		t.Errorf("a plain 403: %v, %v", again, err)
	}
	if err := login(t, w, c); err != nil {
		t.Fatal(err)
	}
	st, err := c.Status(t.Context())
	if err != nil || !slices.Contains(st.Scopes, "write") || len(st.Wanted) != 0 {
		t.Errorf("%+v, %v", st, err)
	}
	cfg.Scopes = []string{"read"}
	c = client(t, cfg)
	if _, err := c.Refused(t.Context(), token, http.StatusForbidden, challenge); err == nil || !strings.Contains(err.Error(), "not among its oauth.scopes") {
		t.Errorf("over the config's scopes: %v", err)
	}
	if err := login(t, w, c, "write"); err == nil || !strings.Contains(err.Error(), "not among oauth.scopes") {
		t.Errorf("over the config's scopes: %v", err)
	}
}

// A kept login is used for the server and the issuer that it was for.
func TestATokenGoesNowhereElse(t *testing.T) {
	w := newWorld(t)
	cfg := w.config()
	c := client(t, cfg)
	if err := login(t, w, c); err != nil {
		t.Fatal(err)
	}
	token, err := c.Token(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	moved := cfg
	moved.URL = "https://other.example.com/mcp"
	if _, err := client(t, moved).Token(t.Context()); err == nil {
		t.Error("the login was used for another url")
	}
	g, err := w.store.Load(t.Context(), c.Key())
	if err != nil {
		t.Fatal(err)
	}
	g.Resource = "https://other.example.com/mcp"
	_ = w.store.Save(t.Context(), c.Key(), g)
	if _, err := client(t, cfg).Token(t.Context()); err == nil {
		t.Error("another's token was used")
	}
	g.Resource = w.url
	_ = w.store.Save(t.Context(), c.Key(), g)
	cfg.Issuers = []string{"https://other.example.com"}
	seen := len(w.as.Seen())
	if _, err := client(t, cfg).Refused(t.Context(), token, http.StatusUnauthorized, nil); err == nil || len(w.as.Seen()) != seen {
		t.Errorf("an issuer that is trusted no more was asked: %v", err)
	}
}

func TestLogout(t *testing.T) {
	w := newWorld(t)
	c := client(t, w.config())
	if _, err := c.Logout(t.Context()); !errors.Is(err, ErrNoGrant) {
		t.Errorf("without a login: %v", err)
	}
	for _, broken := range []bool{false, true} {
		if err := login(t, w, c); err != nil {
			t.Fatal(err)
		}
		if broken {
			w.as.Hook = func(rw http.ResponseWriter, r *http.Request) bool {
				http.Error(rw, "hunter2", http.StatusInternalServerError)
				return true
			}
		}
		revoked, err := c.Logout(t.Context())
		if revoked == broken || (err != nil) != broken || err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v, %v", revoked, err)
		}
		if len(w.store.all) != 0 {
			t.Error("something was kept")
		}
	}
	if w.as.Revoked() != 1 {
		t.Errorf("revoked %d times", w.as.Revoked())
	}
	if _, err := c.Token(t.Context()); err == nil {
		t.Error("a login that was given up is still used")
	}
}

func FuzzChallenge(f *testing.F) {
	f.Add(`Bearer error="insufficient_scope", scope="a b", resource_metadata="https://x"`)
	f.Add(strings.Repeat(",", 9000))
	f.Add(`Bearer a="\`)
	f.Fuzz(func(t *testing.T, s string) {
		ch := readChallenge([]string{s})
		if len(ch.scopes) > 64 || len(s) > maxChallenge && ch.metadata != "" {
			t.Errorf("%+v", ch)
		}
	})
}
