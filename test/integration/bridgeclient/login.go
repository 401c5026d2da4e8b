package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"

	"github.com/sandboxd/sandboxd/mcpbridge"
	"github.com/sandboxd/sandboxd/mcpbridge/remote/oauth"
)

// maxLogins is how often a user would log in before giving up: the first time,
// and when the server wants more scopes.
const maxLogins = 3

// memory keeps a login as long as the program runs.
type memory struct {
	mu    sync.Mutex
	lock  sync.Mutex
	grant *oauth.Grant
}

func (m *memory) Load(context.Context, oauth.Key) (*oauth.Grant, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.grant == nil {
		return nil, oauth.ErrNoGrant
	}
	g := *m.grant
	return &g, nil
}

func (m *memory) Save(_ context.Context, _ oauth.Key, g *oauth.Grant) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	own := *g
	m.grant = &own
	return nil
}

func (m *memory) Delete(context.Context, oauth.Key) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.grant = nil
	return nil
}

func (m *memory) Lock(context.Context, oauth.Key) (func(), error) {
	m.lock.Lock()
	return m.lock.Unlock, nil
}

// logins does what a user does: names the issuer that the server offers, and
// agrees in the browser.
type logins struct {
	cfg    oauth.Config
	client *oauth.Client
}

func newLogins(given string) (*logins, error) {
	var known struct {
		ClientID     string `json:"client_id"`
		ClientSecret string `json:"client_secret"`
	}
	if given != "" {
		if err := json.Unmarshal([]byte(given), &known); err != nil {
			return nil, err
		}
	}
	l := &logins{cfg: oauth.Config{
		Key: oauth.Key{Tenant: "conformance", Server: "x"}, URL: os.Args[1], Loopback: true, Store: &memory{},
		ClientID: known.ClientID, ClientSecret: oauth.NewSecret(known.ClientSecret), ClientName: "bridgeclient",
		ClientMetadataURL: "https://conformance-test.local/client-metadata.json",
		Open:              func() (*http.Client, func()) { return &http.Client{}, func() {} },
	}}
	var err error
	l.client, err = oauth.New(l.cfg)
	return l, err
}

func (l *logins) login(ctx context.Context) error {
	const redirect = "http://127.0.0.1:3000" + oauth.RedirectPath
	begun, err := l.client.Begin(ctx, redirect, nil)
	var offered *oauth.IssuerError
	if errors.As(err, &offered) && len(offered.Offered) > 0 {
		l.cfg.Issuers = offered.Offered[:1]
		if l.client, err = oauth.New(l.cfg); err != nil {
			return err
		}
		begun, err = l.client.Begin(ctx, redirect, nil)
	}
	if err != nil {
		return err
	}
	browser := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, begun.URL(), nil) //nolint:gosec // the suite names it
	if err != nil {
		return err
	}
	res, err := browser.Do(req) //nolint:gosec // the suite names it
	if err != nil {
		return err
	}
	_ = res.Body.Close()
	query, err := oauth.ParseRedirect(res.Header.Get("Location"))
	if err != nil {
		return err
	}
	return begun.Finish(ctx, query)
}

// authorized lists the tools and calls one, and logs in whenever that fails.
func authorized(ctx context.Context) error {
	l, err := newLogins(os.Getenv("MCP_CONFORMANCE_CONTEXT"))
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		registry, err := mcpbridge.New(mcpbridge.Config{})
		if err != nil {
			return err
		}
		err = registry.Add(ctx, mcpbridge.Server{Name: "x", Required: true, Start: starter(l.client)})
		if err == nil {
			err = call(ctx, registry, toolCall{"test-tool", nil})
		}
		err = errors.Join(err, registry.Close(context.WithoutCancel(ctx)))
		if err == nil || n == maxLogins {
			return err
		}
		fmt.Fprintln(os.Stderr, err)
		if err := l.login(ctx); err != nil {
			return err
		}
	}
}
