package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/config"
	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/tokens"
	"github.com/sandboxd/sandboxd/mcpbridge/remote/oauth"
	"github.com/sandboxd/sandboxd/netguard"
)

// loginPoll is how soon a login is taken up.
const loginPoll = 2 * time.Second

// logins are those to the remote servers of one config.
type logins struct {
	guard  *netguard.Guard
	tls    *tls.Config // nil means the system's roots
	store  *tokens.Store
	tenant string
	files  []string // of the config, for the command that logs in
	log    *slog.Logger
	all    map[string]*oauth.Client
}

func newLogins(guard *netguard.Guard, tenant string, files []string, log *slog.Logger) (*logins, error) {
	dir, err := stateDir(tenant)
	if err != nil {
		return nil, err
	}
	store, err := tokens.New(filepath.Join(dir, "oauth"))
	if err != nil {
		return nil, err
	}
	return &logins{guard: guard, store: store, tenant: tenant, files: files, log: log, all: map[string]*oauth.Client{}}, nil
}

// client makes the one that logs in to a server. Without the key oauth it
// trusts nobody, and says whom it would have to.
func (l *logins) client(s config.Server) (*oauth.Client, error) {
	if s.OAuth == nil {
		s.OAuth = &config.OAuth{}
	}
	policy, err := loginPolicy(s)
	if err != nil {
		return nil, fmt.Errorf("oauth: %w", err)
	}
	subject := netguard.Subject{Tenant: l.tenant, Sandbox: s.ID}
	c, err := oauth.New(oauth.Config{
		Key: oauth.Key{Tenant: l.tenant, Server: s.ID}, URL: s.URL,
		Issuers: s.OAuth.Issuers, Hosts: s.OAuth.Hosts, Scopes: s.OAuth.Scopes,
		ClientID: s.OAuth.ClientID, ClientSecret: oauth.NewSecret(s.OAuth.ClientSecret.Reveal()), ClientMetadataURL: s.OAuth.ClientMetadataURL,
		ClientName: "sandboxd", Loopback: s.AllowLocalEndpoint, Store: l.store, Logger: l.log, Login: l.command(s.ID),
		Open: func() (*http.Client, func()) {
			egress := l.guard.For(subject, policy)
			return egress.HTTPClient(netguard.HTTPOptions{KeepMethod: true, TLS: l.tls}), func() { _ = egress.Close() }
		},
	})
	if err != nil {
		return nil, fmt.Errorf("oauth: %w", err)
	}
	l.all[s.ID] = c
	return c, nil
}

// command is the one that logs in.
func (l *logins) command(server string) string {
	words := []string{"sandboxd", "auth", "login", server}
	for _, f := range l.files {
		words = append(words, "--config", f)
	}
	for i, w := range words {
		if strings.ContainsFunc(w, func(r rune) bool { return r <= ' ' || strings.ContainsRune(`'"\$&|;<>()*?[]{}~#!`+"`", r) }) {
			words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// watch has servers started whose login has come, until ctx ends.
func (l *logins) watch(ctx context.Context, start func(server string) error) {
	if len(l.all) == 0 {
		return
	}
	for _, c := range l.all {
		c.Arrived(ctx) // a login that was there has been used
	}
	t := time.NewTicker(loginPoll)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		for id, c := range l.all {
			if !c.Arrived(ctx) {
				continue
			}
			l.log.Info("a login has come", "server", id)
			if err := start(id); err != nil {
				l.log.Error("a server whose login has come cannot be started", "server", id, "error", err)
			}
		}
	}
}

// loginPolicy opens what a login to a server may reach: the server's metadata
// and the authorization servers that the config names. No redirect is
// followed.
func loginPolicy(s config.Server) (*netguard.Policy, error) {
	public, local := s.LoginEndpoints()
	none := 0
	cfg := netguard.Config{Mode: netguard.ModeAllowlist, Schemes: []string{"https"}, MaxRedirects: &none, AllowLocalEndpoint: slices.Compact(slices.Sorted(slices.Values(local)))}
	if len(local) > 0 {
		cfg.Schemes = append(cfg.Schemes, "http")
	}
	for _, hp := range slices.Compact(slices.Sorted(slices.Values(public))) {
		host, port, err := net.SplitHostPort(hp)
		if err != nil {
			return nil, err
		}
		cfg.Allow = append(cfg.Allow, config.HostRule(host, port))
	}
	return netguard.Compile(cfg)
}
