package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/config"
	"github.com/sandboxd/sandboxd/mcpbridge"
	"github.com/sandboxd/sandboxd/mcpbridge/remote"
	"github.com/sandboxd/sandboxd/netguard"
	"github.com/sandboxd/sandboxd/sandbox"
)

var remoteTransports = map[config.Transport]remote.Transport{
	config.HTTP: remote.StreamableHTTP, config.SSE: remote.SSE, config.WebSocket: remote.WebSocket,
}

// remoteServer makes a server on the network one of the bridge's. Its policy
// is the authored host and port, and nothing else: not where it redirects to.
func remoteServer(l *launcher, registry *mcpbridge.Registry, tenant string, s config.Server) (mcpbridge.Server, error) {
	policy, err := remotePolicy(s)
	if err != nil {
		return mcpbridge.Server{}, usageError{fmt.Errorf("server %s: %w", s.ID, err)}
	}
	var creds remote.Credentials
	if s.OAuth != nil {
		if creds, err = l.logins.client(s); err != nil {
			return mcpbridge.Server{}, usageError{fmt.Errorf("server %s: %w", s.ID, err)}
		}
	}
	header := http.Header{}
	for _, h := range s.Headers {
		header.Set(h.Name, h.Value.Reveal())
	}
	subject := netguard.Subject{Tenant: tenant, Sandbox: s.ID, InFlight: func() []string { return registry.InFlight(s.ID) }}
	out := bridgeServer(s)
	out.ToolsAllowlist, out.Include = s.ToolsAllowlist, s.Include
	out.Start = func(ctx context.Context) (sandbox.Sandbox, error) {
		egress := l.guard.For(subject, policy)
		r, err := remote.Start(ctx, remote.Config{
			URL: s.URL, Transport: remoteTransports[s.Transport], Header: header, Credentials: creds,
			Client: egress.HTTPClient(netguard.HTTPOptions{KeepMethod: true, TLS: l.tls}),
		})
		if err != nil {
			return nil, errors.Join(err, egress.Close())
		}
		return remoteSession{r, egress}, nil
	}
	return out, nil
}

// remoteSession ends the way out with the session that used it.
type remoteSession struct {
	*remote.Server
	egress *netguard.Egress
}

// Close ends both.
func (s remoteSession) Close(ctx context.Context) error {
	return errors.Join(s.Server.Close(ctx), s.egress.Close())
}

// remotePolicy opens exactly the host and port of a server's URL.
func remotePolicy(s config.Server) (*netguard.Policy, error) {
	u, err := url.Parse(s.URL)
	if err != nil {
		return nil, errors.New("the url cannot be read")
	}
	cfg := netguard.Config{Mode: netguard.ModeAllowlist, Schemes: []string{u.Scheme}}
	if local := s.LocalEndpoint(); local != "" {
		cfg.AllowLocalEndpoint = []string{local}
		return netguard.Compile(cfg)
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443", "http": "80", "wss": "443", "ws": "80"}[u.Scheme]
	}
	cfg.Allow = []netguard.Rule{config.HostRule(u.Hostname(), port)}
	p, err := netguard.Compile(cfg)
	if err != nil {
		return nil, fmt.Errorf("the url's host %s cannot be opened: %w", net.JoinHostPort(u.Hostname(), port), err)
	}
	return p, nil
}
