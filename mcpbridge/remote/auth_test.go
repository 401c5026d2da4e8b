package remote

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// creds give one token after another.
type creds struct {
	mu     sync.Mutex
	tokens []string
	err    error
}

func (c *creds) Token(context.Context) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.tokens) == 0 {
		return "", c.err
	}
	return c.tokens[0], nil
}

func (c *creds) Refused(_ context.Context, token string, _ int, challenges []string) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.tokens) > 0 && token == c.tokens[0] && len(challenges) == 1 {
		c.tokens = c.tokens[1:]
	}
	if len(c.tokens) == 0 {
		return false, c.err
	}
	return true, nil
}

var errNeed = errors.New("run sandboxd auth login far")

func TestCredentials(t *testing.T) {
	good := "token-number-two"
	var mu sync.Mutex
	url := serve(t, server(t, func(w http.ResponseWriter, r *http.Request, m message) {
		mu.Lock()
		want := good
		mu.Unlock()
		got := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if got != want {
			w.Header().Set("WWW-Authenticate", "Bearer")
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":1,"message":"bad %s"}}`, m.ID, got)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"you sent":%q}}`, m.ID, got)
	}))
	c, err := connect(t, Config{URL: url, Credentials: &creds{tokens: []string{"token-number-one", good, "token-number-three"}, err: errNeed}})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if res, err := c.Call(t.Context(), "any", []byte(`{"a":1}`), nil); err != nil || string(res) != `{"you sent":"[secret]"}` {
			t.Errorf("%s, %v", res, err)
		}
	}
	mu.Lock()
	good = "none"
	mu.Unlock()
	// One is tried after the next, but only one a request.
	if _, err := c.Call(t.Context(), "any", nil, nil); err == nil || !strings.Contains(err.Error(), "bad [secret]") {
		t.Errorf("got %v", err)
	}
	if _, err := c.Call(t.Context(), "any", nil, nil); err == nil || !strings.Contains(err.Error(), errNeed.Error()) || strings.Contains(err.Error(), "token-number") {
		t.Errorf("got %v", err)
	}
}

func TestWithoutALoginNothingIsSent(t *testing.T) {
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s was asked", r.URL) })
	for _, transport := range []Transport{StreamableHTTP, SSE, WebSocket} {
		u := url
		if transport == WebSocket {
			u = "ws" + strings.TrimPrefix(url, "http")
		}
		if _, err := start(t, Config{URL: u, Transport: transport, Credentials: &creds{err: errNeed}}); err == nil || err.Error() != errNeed.Error() {
			t.Errorf("%q: %v", transport, err)
		}
	}
}

// What another origin answers after a redirect says nothing about the token.
func TestAnotherOriginRefusesNothing(t *testing.T) {
	other := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Errorf("the token came along: %v", r.Header)
		}
		w.Header().Set("WWW-Authenticate", "Bearer")
		w.WriteHeader(http.StatusUnauthorized)
	})
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, strings.Replace(other, "127.0.0.1", "localhost", 1), http.StatusTemporaryRedirect)
	})
	c := &creds{tokens: []string{"token-number-one"}, err: errNeed}
	if _, err := connect(t, Config{URL: url, Credentials: c}); err == nil {
		t.Error("no error")
	}
	if len(c.tokens) != 1 {
		t.Error("the token was taken for refused")
	}
}
