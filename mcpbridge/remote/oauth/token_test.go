package oauth

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
)

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
