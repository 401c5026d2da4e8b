package oauth

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/mcpbridge/remote/oauth/oauthtest"
)

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
