package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/config"
	"github.com/sandboxd/sandboxd/mcpbridge"
)

// configured finds the server that --config and --server name.
func (f *runFlags) configured(ctx context.Context) (server, error) {
	cfg, err := config.Load(config.Options{Policies: f.policies(ctx)}, f.files...)
	if err != nil {
		return server{}, usageError{err}
	}
	i := slices.IndexFunc(cfg.Servers, func(s config.Server) bool { return s.ID == f.server })
	if i < 0 {
		var ids []string
		for _, s := range cfg.Servers {
			ids = append(ids, s.ID)
		}
		return server{}, usagef("the config serves no server %q: it has %s", f.server, strings.Join(ids, ", "))
	}
	if err := runnable(cfg.Servers[i]); err != nil {
		return server{}, usageError{err}
	}
	return stdioServer(cfg.Tenant, cfg.Servers[i]), nil
}

// runnable says why a server of a config cannot be run alone: run passes every
// byte on, so it cannot keep what the config promises about tools.
func runnable(s config.Server) error {
	switch {
	case s.Transport != config.Stdio:
		return fmt.Errorf("server %s is on the network: have sandboxd serve run it, and use its url", s.ID)
	case s.ToolsAllowlist != nil || s.Include != nil || len(s.Renames)+len(s.Descriptions) > 0 || s.Pin == string(mcpbridge.PinStrict) || s.Policy.Tools.Allow != nil || s.Policy.Tools.Include != nil:
		return fmt.Errorf("server %s has its tools narrowed, renamed or pinned, which takes sandboxd serve: use its url", s.ID)
	}
	return nil
}

// slug is how the endpoint of a server names it.
func slug(id string) string { return mcpbridge.Slug(id) }
