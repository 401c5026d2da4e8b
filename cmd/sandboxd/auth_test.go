package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
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

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/config"
	"github.com/sandboxd/sandboxd/mcpbridge"
	"github.com/sandboxd/sandboxd/mcpbridge/remote/oauth"
	"github.com/sandboxd/sandboxd/mcpbridge/remote/oauth/oauthtest"
	"github.com/sandboxd/sandboxd/netguard"
)

// heard is everything that is written anywhere.
type heard struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (h *heard) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.b.Write(p)
}

func (h *heard) add(v any) { _, _ = fmt.Fprintf(h, "%+v\n", v) }

func (h *heard) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.b.String()
}

// farServer is go-sdk's server behind a login, for one transport, and its
// config file.
func farServer(t *testing.T, transport config.Transport, scopes ...string) (as *oauthtest.Server, configFile string) {
	t.Helper()
	as = &oauthtest.Server{}
	asrv := httptest.NewServer(as)
	t.Cleanup(asrv.Close)
	as.Issuer = asrv.URL
	server := mcp.NewServer(&mcp.Implementation{Name: "far", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "hello"}, func(_ context.Context, req *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		text := "from afar"
		if h := req.Extra; h != nil && h.Header != nil {
			text += " with " + h.Header.Get("Authorization") // a server that tells tales
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, nil
	})
	var h http.Handler = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	if transport == config.WebSocket {
		h = socketHandler(t, server)
	}
	var guarded http.Handler
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { guarded.ServeHTTP(w, r) }))
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	guarded = as.Protect(h, srv.URL+"/mcp", scopes...)
	configFile = file(t, t.TempDir(), "c.yaml", fmt.Sprintf(`tenant: acme
mcp_servers:
- {id: far, transport: %s, url: "%s/mcp", allow_local_endpoint: true, oauth: {issuers: [%q]}}
`, transport, urlFor(transport, srv.URL), as.Issuer), 0o600)
	return as, configFile
}

// authLogin runs the command, and is the user at the browser.
func authLogin(t *testing.T, all io.Writer, args ...string) error {
	t.Helper()
	r, w := io.Pipe()
	root := newRoot()
	root.SetArgs(append([]string{"auth", "login"}, args...))
	root.SetOut(w)
	root.SetErr(all)
	done := make(chan error, 1)
	go func() {
		err := root.ExecuteContext(t.Context())
		_ = w.CloseWithError(io.EOF)
		done <- err
	}()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		return <-done
	}
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	to, err := oauthtest.Approve(hc, strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	res, err := hc.Get(to)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	return <-done
}

// served starts what serve starts of a config file, with its watch.
func served(t *testing.T, all *heard, file string) *mcpbridge.Registry {
	t.Helper()
	cfg, err := config.Load(config.Options{}, file)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(all, &slog.HandlerOptions{Level: slog.LevelDebug}))
	guard, err := netguard.New(netguard.Options{Upstream: "127.0.0.1:9", Logger: log, Record: func(r netguard.Record) { all.add(r) }})
	if err != nil {
		t.Fatal(err)
	}
	l := &launcher{guard: guard, log: log}
	if l.logins, err = newLogins(guard, cfg.Tenant, []string{file}, log); err != nil {
		t.Fatal(err)
	}
	registry, err := mcpbridge.New(mcpbridge.Config{Logger: log, OnEvent: func(e mcpbridge.Event) { all.add(e) }})
	if err != nil {
		t.Fatal(err)
	}
	servers, _, err := bridgeServers(l, registry, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { l.logins.watch(ctx, registry.Retry) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := registry.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	if err := registry.Add(ctx, servers...); err != nil {
		t.Fatal(err)
	}
	return registry
}

// eventually calls f until it is true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not come about", what)
		}
	}
}

// A server that wants a login says so, with the command; serve takes the login
// up, renews it and drops it again. No secret is written anywhere.
func TestAuth(t *testing.T) {
	for _, transport := range []config.Transport{config.HTTP, config.WebSocket} {
		t.Run(string(transport), func(t *testing.T) {
			t.Setenv("SANDBOXD_STATE", t.TempDir())
			as, file := farServer(t, transport)
			all := &heard{}
			registry := served(t, all, file)
			status := func() mcpbridge.Status { return registry.Status()[0] }
			want := "needs a login: nobody has logged in yet: run sandboxd auth login far --config " + file
			eventually(t, "the reason", func() bool { return strings.Contains(status().Reason, want) })
			out, _, err := command(t, "auth", "status", "--config", file)
			if exitCode(err) != exitFailure || !strings.Contains(out, "needs-login") {
				t.Errorf("status: %q, %v", out, err)
			}
			if err := authLogin(t, all, "far", "--config", file); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the start", func() bool { return status().State == mcpbridge.StateReady })
			call := func() (string, error) {
				res, err := registry.Call(t.Context(), "far", "hello", nil)
				all.add(err)
				return string(res.Content), err
			}
			got, err := call()
			if err != nil || !strings.Contains(got, "from afar") {
				t.Fatalf("%s, %v", got, err)
			}
			all.add(got)
			out, _, err = command(t, "auth", "status", "--json", "--config", file)
			all.add(out)
			var list []oauth.Status
			if jsonErr := json.Unmarshal([]byte(out), &list); err != nil || jsonErr != nil || len(list) != 1 || list[0].State != oauth.LoggedIn || list[0].Issuer != as.Issuer {
				t.Errorf("status: %s, %v", out, err)
			}
			if transport == config.HTTP { // a WebSocket that is open stays so
				as.Forget(false)
				if got, err := call(); err != nil || !strings.Contains(got, "from afar") {
					t.Errorf("renewed: %s, %v", got, err)
				}
			}
			out, _, err = command(t, "auth", "logout", "--dry-run", "far", "--config", file)
			if err != nil || !strings.Contains(out, "would revoke the login to far") || as.Revoked() != 0 {
				t.Errorf("dry run: %q, %v", out, err)
			}
			secrets := as.Secrets()
			out, _, err = command(t, "auth", "logout", "far", "--config", file)
			if err != nil || !strings.Contains(out, "revoked and forgotten") || as.Revoked() != 1 {
				t.Errorf("logout: %q, %v", out, err)
			}
			if transport == config.HTTP {
				eventually(t, "the end of the login", func() bool {
					_, err := call()
					return err != nil && strings.Contains(err.Error(), "run sandboxd auth login far")
				})
			}
			if len(secrets) == 0 {
				t.Fatal("there was no secret")
			}
			for _, s := range secrets {
				if strings.Contains(all.String(), s) {
					t.Errorf("%s was shown in %s", s, all)
				}
			}
		})
	}
}

func TestAuthStepUp(t *testing.T) {
	t.Setenv("SANDBOXD_STATE", t.TempDir())
	_, file := farServer(t, config.HTTP, "write")
	all := &heard{}
	if err := authLogin(t, all, "far", "--config", file); err != nil {
		t.Fatal(err)
	}
	registry := served(t, all, file)
	eventually(t, "the reason", func() bool {
		return strings.Contains(registry.Status()[0].Reason, "wants more scopes for this: write: run sandboxd auth login far")
	})
	if err := authLogin(t, all, "far", "--config", file); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the start", func() bool { return registry.Status()[0].State == mcpbridge.StateReady })
}

// Nothing is asked of a host that the config does not name, nor of one that
// resolves to a private address.
func TestAuthIsDeniedByDefault(t *testing.T) {
	t.Setenv("SANDBOXD_STATE", t.TempDir())
	as, file1 := farServer(t, config.HTTP)
	text := func(oauthKey string) string {
		return fmt.Sprintf("mcp_servers:\n- {id: far, url: %q, allow_local_endpoint: true%s}\n", "http://"+hostOf(t, file1)+"/mcp", oauthKey)
	}
	dir := t.TempDir()
	for i, tt := range []struct{ key, want string }{
		{"", "wants a login at " + as.Issuer + ", which is not trusted: if you trust it, give the server oauth: {issuers: ["},
		{`, oauth: {issuers: ["https://other.example.com"]}`, "which is not trusted"},
	} {
		f := file(t, dir, fmt.Sprint(i, ".yaml"), text(tt.key), 0o600)
		_, _, err := command(t, "auth", "login", "far", "--config", f)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.key, err)
		}
	}
	if len(as.Seen()) != 0 {
		t.Errorf("the authorization server was asked %q", as.Seen())
	}
	resolver := dnsServer(t, "10.20.0.7")
	f := file(t, dir, "private.yaml", "mcp_servers:\n- {id: far, url: \"https://mcp.example.com/mcp\", oauth: {issuers: [\"https://as.example.com\"]}}\n", 0o600)
	_, _, err := command(t, "auth", "login", "far", "--config", f, "--resolver", resolver)
	if err == nil || !strings.Contains(err.Error(), string(netguard.ReasonAddress)) || strings.Contains(err.Error(), "10.20.0.7") {
		t.Errorf("a private address: %v", err)
	}
}

func hostOf(t *testing.T, configFile string) string {
	t.Helper()
	cfg, err := config.Load(config.Options{}, configFile)
	if err != nil {
		t.Fatal(err)
	}
	return cfg.Servers[0].LocalEndpoint()
}

// The guard itself holds a login to its hosts, whatever discovery believes.
func TestLoginPolicy(t *testing.T) {
	p, err := loginPolicy(config.Server{URL: "wss://mcp.example.com/mcp", OAuth: &config.OAuth{Issuers: []string{"https://as.example.com/t"}, Hosts: []string{"tokens.example.com", "keys.example.com:8443"}}})
	if err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]bool{
		"https://mcp.example.com/": true, "https://as.example.com/": true, "https://tokens.example.com/": true, "https://keys.example.com:8443/": true,
		"https://keys.example.com/": false, "https://x.as.example.com/": false, "http://as.example.com/": false, "https://127.0.0.1/": false, "wss://mcp.example.com/": false,
	} {
		if x := netguard.Explain(p, target); x.Allow != want {
			t.Errorf("%s: %+v", target, x)
		}
	}
}

// Over TLS, through the guard, from login to call; and the token goes to no
// other origin that the server redirects to.
func TestAuthOverTLS(t *testing.T) {
	t.Setenv("SANDBOXD_STATE", t.TempDir())
	elsewhere := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("another origin was reached with %v", r.Header)
	}))
	as := &oauthtest.Server{}
	asrv := httptest.NewTLSServer(as)
	var h http.Handler
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(w, r) }))
	t.Cleanup(func() { elsewhere.Close(); asrv.Close(); srv.CloseClientConnections(); srv.Close() })
	as.Issuer = asrv.URL
	h = as.Protect(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect), srv.URL+"/mcp")
	guard, err := netguard.New(netguard.Options{Upstream: "127.0.0.1:9"})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	l := &launcher{guard: guard, log: log, tls: &tls.Config{RootCAs: x509.NewCertPool()}}
	for _, s := range []*httptest.Server{asrv, srv, elsewhere} {
		l.tls.RootCAs.AddCert(s.Certificate())
	}
	if l.logins, err = newLogins(guard, "t", nil, log); err != nil {
		t.Fatal(err)
	}
	l.logins.tls = l.tls
	s := config.Server{ID: "far", Transport: config.HTTP, URL: srv.URL + "/mcp", AllowLocalEndpoint: true, Required: true, OAuth: &config.OAuth{Issuers: []string{as.Issuer}}}
	c, err := l.logins.client(s)
	if err != nil {
		t.Fatal(err)
	}
	login, err := c.Begin(t.Context(), "http://127.0.0.1:1/callback", nil)
	if err != nil {
		t.Fatal(err)
	}
	hc := asrv.Client()
	hc.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	to, err := oauthtest.Approve(hc, login.URL())
	if err != nil {
		t.Fatal(err)
	}
	q, err := oauth.ParseRedirect(to)
	if err == nil {
		err = login.Finish(t.Context(), q)
	}
	if err != nil {
		t.Fatal(err)
	}
	token, err := c.Token(t.Context())
	if err != nil || token == "" {
		t.Fatal(err)
	}
	registry, err := mcpbridge.New(mcpbridge.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = registry.Close(context.Background()) })
	servers, _, err := bridgeServers(l, registry, &config.Config{Tenant: "t", Servers: []config.Server{s}})
	if err != nil {
		t.Fatal(err)
	}
	if err := registry.Add(t.Context(), servers...); err == nil || strings.Contains(err.Error(), token) {
		t.Errorf("a redirect to another origin: %v", err)
	}
}

func TestAuthPaste(t *testing.T) {
	t.Setenv("SANDBOXD_STATE", t.TempDir())
	_, file := farServer(t, config.HTTP)
	root := newRoot()
	outR, outW := io.Pipe()
	inR, inW := io.Pipe()
	root.SetArgs([]string{"auth", "login", "far", "--paste", "--config", file})
	root.SetOut(outW)
	root.SetErr(io.Discard)
	root.SetIn(inR)
	done := make(chan error, 1)
	go func() { done <- root.ExecuteContext(t.Context()) }()
	line, err := bufio.NewReader(outR).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	to, err := oauthtest.Approve(hc, strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintln(inW, to); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestAuthUsage(t *testing.T) {
	_, file := farServer(t, config.HTTP)
	for _, args := range [][]string{
		{"login"}, {"login", "far"}, {"login", "nobody", "--config", file}, {"status", "nobody", "--config", file}, {"logout", "far", "--config", "/nowhere.yaml"},
	} {
		if _, _, err := command(t, append([]string{"auth"}, args...)...); exitCode(err) != exitUsage {
			t.Errorf("%q: %v", args, err)
		}
	}
}
