package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/config"
	"github.com/sandboxd/sandboxd/mcpbridge"
	"github.com/sandboxd/sandboxd/sandbox"
)

// startTimeout bounds a start up to the list of tools. It leaves room for what
// the first start of a module or an image does once for all: compiling the
// one, handing the other to the engine. A build has a bound of its own.
const startTimeout = 3 * time.Minute

// bridgeServers turns a config's servers into the bridge's.
func bridgeServers(l *launcher, registry *mcpbridge.Registry, cfg *config.Config) ([]mcpbridge.Server, map[string]*starter, error) {
	var out []mcpbridge.Server
	starters := map[string]*starter{}
	for _, s := range cfg.Servers {
		switch s.Transport {
		case config.Stdio:
		default:
			remote, err := remoteServer(l, registry, cfg.Tenant, s)
			if err != nil {
				return nil, nil, err
			}
			out = append(out, remote)
			continue
		}
		srv := stdioServer(cfg.Tenant, s)
		srv.inFlight = func() []string { return registry.InFlight(s.ID) }
		start := &starter{l: l, srv: srv}
		starters[s.ID] = start
		b := bridgeServer(s)
		b.Prepare, b.Start, b.CacheKey = start.prepareOnly, start.start, start.cacheKey
		b.ToolsAllowlist = both(s.ToolsAllowlist, s.Policy.Tools.Allow)
		b.Include = both(s.Include, s.Policy.Tools.Include)
		out = append(out, b)
	}
	return out, starters, nil
}

// bridgeServer is what servers of all transports have in common.
func bridgeServer(s config.Server) mcpbridge.Server {
	return mcpbridge.Server{
		Name: s.ID, Label: s.Label, Required: s.Required, StartTimeout: startTimeout,
		Autostart: s.Autostart, IdleStop: s.IdleStop, Warm: s.Warm,
		Renames: s.Renames, Descriptions: s.Descriptions,
		Pin: mcpbridge.PinMode(s.Pin), Sharing: mcpbridge.Sharing(s.Sharing),
		CallTimeout: s.CallTimeout, Limits: mcpbridge.Limits{InFlight: s.InFlight, Queue: s.Waiting},
	}
}

func stdioServer(tenant string, s config.Server) server {
	srv := server{
		tenant: tenant, name: s.ID, command: append([]string{s.Command}, s.Args...),
		policy: s.Policy, isolation: s.Isolation, dir: s.Dir,
	}
	for _, v := range s.Env {
		srv.env = append(srv.env, v.Name+"="+v.Value.Reveal())
	}
	for _, m := range s.Mounts {
		srv.mounts = append(srv.mounts, mountSpec{source: m.Source, target: m.Target, readWrite: m.ReadWrite})
	}
	return srv
}

// both narrows one list by another; nil stands for everything.
func both(a, b []string) []string {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	out := []string{}
	for _, x := range a {
		if slices.Contains(b, x) {
			out = append(out, x)
		}
	}
	return out
}

// starter starts one server again and again, and seals its image the first
// time.
type starter struct {
	l   *launcher
	srv server

	mu    sync.Mutex
	ready *launchable
}

// prepareOnly seals the image, if that was not done yet.
func (s *starter) prepareOnly(ctx context.Context) error {
	_, err := s.prepare(ctx)
	return err
}

// cacheKey names what decides which tools the server has.
func (s *starter) cacheKey(ctx context.Context) (string, error) {
	p, err := s.prepare(ctx)
	if err != nil {
		return "", err
	}
	return p.cacheKey()
}

func (s *starter) start(ctx context.Context) (sandbox.Sandbox, error) {
	p, err := s.prepare(ctx)
	if err != nil {
		return nil, err
	}
	return p.start(ctx)
}

func (s *starter) prepare(ctx context.Context) (*launchable, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready != nil {
		return s.ready, nil
	}
	p, err := s.l.prepare(ctx, s.srv)
	if err != nil {
		return nil, err
	}
	s.ready = p
	return p, nil
}
