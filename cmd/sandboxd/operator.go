package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"

	"github.com/spf13/pflag"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/config"
	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/registries"
	"github.com/sandboxd/sandboxd/netguard"
	"github.com/sandboxd/sandboxd/policies"
)

// operator is what the person who runs the guard decides, from a file and from
// flags, which come first. A policy can change none of it.
type operator struct {
	file     string
	resolver string

	set    *config.Operator
	finder *registries.Finder
}

func (o *operator) flags(f *pflag.FlagSet) {
	o.fileFlag(f)
	f.StringVar(&o.resolver, "resolver", os.Getenv("SANDBOXD_RESOLVER"), "upstream DNS server `ADDRESS:PORT` (default: the operator's, else the host's)")
}

func (o *operator) fileFlag(f *pflag.FlagSet) {
	f.StringVar(&o.file, "operator", os.Getenv("SANDBOXD_OPERATOR"), "operator's settings `FILE` (default: "+config.DefaultOperator+" if it exists)")
}

// load reads the file. It comes before everything else here.
func (o *operator) load(log *slog.Logger) error {
	set, err := config.LoadOperator(o.file)
	if err != nil {
		return usageError{err}
	}
	o.set = set
	o.finder = registries.New(registries.Config{URLs: set.URLs(), Mirrors: set.Mirrors(), Logger: log})
	if o.resolver == "" {
		o.resolver = set.Resolver
	}
	return nil
}

// policies reads policies, and asks the clients for the registries that one of
// them names.
func (o *operator) policies(ctx context.Context) policies.Loader {
	return policies.Loader{Registries: func(names []string) map[string][]string { return o.finder.Origins(ctx, names) }}
}

// guard makes a guard. Only one that will look up names has a use for the
// hosts of trusted registries, which takes asking the clients for them.
func (o *operator) guard(ctx context.Context, lookups bool, opts netguard.Options) (*netguard.Guard, error) {
	var names []string
	if lookups {
		names = policies.RegistryNames()
	}
	return o.guardFor(ctx, names, opts)
}

// guardFor makes a guard that knows the hosts of some trusted registries.
func (o *operator) guardFor(ctx context.Context, registries []string, opts netguard.Options) (*netguard.Guard, error) {
	opts.Upstream, opts.Refused = o.resolver, o.set.Refused
	opts.TrustedHosts = o.trusted(ctx, registries)
	g, err := netguard.New(opts)
	switch {
	case errors.Is(err, netguard.ErrUpstream) && o.resolver != "":
		return nil, usageError{fmt.Errorf("--resolver: %w", err)}
	case errors.Is(err, netguard.ErrUpstream):
		return nil, fmt.Errorf("%w: name one with --resolver ADDRESS:PORT", err)
	}
	return g, err
}

// trusted maps each host of those registries that the operator trusts on private
// ranges to those ranges.
func (o *operator) trusted(ctx context.Context, registries []string) map[string][]netip.Prefix {
	var names []string
	for _, name := range registries {
		if len(o.set.Registries[name].Trusted) > 0 {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	out := map[string][]netip.Prefix{}
	for name, origins := range o.finder.Origins(ctx, names) {
		for _, origin := range origins {
			// What is no name (an address) needs a rule of its own.
			u, reason := netguard.ParseURL(origin)
			if host := u.Target.Name; reason == "" && host != "" {
				for _, p := range o.set.Registries[name].Trusted {
					if !slices.Contains(out[host], p) {
						out[host] = append(out[host], p)
					}
				}
			}
		}
	}
	return out
}

// looksUp reports whether a policy lets any name be looked up.
func looksUp(p *policies.Policy) bool {
	if p == nil || p.Egress == nil {
		return false
	}
	for _, r := range p.Egress.Allow {
		if r.Host != "" {
			return true
		}
	}
	return p.Egress.Mode == netguard.ModePublic || len(p.Egress.AllowLocalEndpoint) > 0
}
