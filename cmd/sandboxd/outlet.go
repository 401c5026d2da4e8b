package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/config"
	"github.com/sandboxd/sandboxd/images"
	"github.com/sandboxd/sandboxd/netguard"
	"github.com/sandboxd/sandboxd/policies"
	"github.com/sandboxd/sandboxd/sandbox"
)

// outlet is a build's way to its registry: the container tier, under a policy
// that opens the hosts of one ecosystem's registry and nothing else. Nothing
// is asked of anybody before the first build.
type outlet struct {
	op       *operator
	runtimes *runtimes
	opts     netguard.Options

	mu   sync.Mutex
	ways map[images.Kind]*way
}

// way is what one ecosystem's builds share.
type way struct {
	guard  *netguard.Guard
	policy *netguard.Policy
}

// egress is a new way out for one sandbox or request.
func (o *outlet) egress(ctx context.Context, kind images.Kind) (*netguard.Egress, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := o.ways[kind]
	if w == nil {
		var err error
		if w, err = o.find(ctx, string(kind)); err != nil {
			return nil, err
		}
		if o.ways == nil {
			o.ways = map[images.Kind]*way{}
		}
		o.ways[kind] = w
	}
	return w.guard.For(netguard.Subject{Tenant: "builder", Sandbox: string(kind)}, w.policy), nil
}

func (o *outlet) find(ctx context.Context, name string) (*way, error) {
	origins := o.op.finder.Origins(ctx, []string{name})[name]
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if len(origins) == 0 {
		return nil, noClient(name)
	}
	cfg, err := policies.RegistryEgress(origins)
	if err != nil {
		return nil, err
	}
	policy, err := netguard.Compile(cfg)
	if err != nil {
		return nil, fmt.Errorf("the %s registry's address cannot be opened: %w", name, err)
	}
	guard, err := o.op.guardFor(ctx, []string{name}, o.opts)
	if err != nil {
		return nil, err
	}
	return &way{guard, policy}, nil
}

func noClient(name string) error {
	return &images.Error{
		Kind: images.ErrTool, What: "no client here names a " + name + " registry",
		Next: "install and configure the client, or list the registry's urls under registries." + name + " in the operator's settings",
	}
}

// Start starts a build's sandbox.
func (o *outlet) Start(ctx context.Context, kind images.Kind, spec sandbox.Spec) (sandbox.Sandbox, error) {
	rt, err := o.runtimes.forTier(ctx, spec.Isolation)
	if err != nil {
		return nil, err
	}
	egress, err := o.egress(ctx, kind)
	if err != nil {
		return nil, err
	}
	return rt.Start(ctx, spec, egress)
}

// Get fetches one document of the npm registry.
func (o *outlet) Get(ctx context.Context, kind images.Kind, address string) (io.ReadCloser, error) {
	if kind != images.KindNPM {
		return nil, noClient(string(kind))
	}
	npm, err := o.npmConfig(ctx)
	if err != nil {
		return nil, err
	}
	if !strings.Contains(address, "://") {
		address = strings.TrimSuffix(npm.Registry, "/") + "/" + address
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, &images.Error{Kind: images.ErrRefused, What: "the npm registry names an address that cannot be read"}
	}
	roots, err := certificates(npm.CAFile, "NODE_EXTRA_CA_CERTS")
	if err != nil {
		return nil, err
	}
	egress, err := o.egress(ctx, kind)
	if err != nil {
		return nil, err
	}
	body, err := get(ctx, egress, u, npm.Authorization(u.Host, u.EscapedPath()), roots)
	if err != nil {
		return nil, errors.Join(err, egress.Close())
	}
	return fetched{body, egress}, nil
}

// fetched ends the way out with the document.
type fetched struct {
	io.ReadCloser
	egress *netguard.Egress
}

// Close ends both.
func (f fetched) Close() error { return errors.Join(f.ReadCloser.Close(), f.egress.Close()) }

func get(ctx context.Context, egress *netguard.Egress, u *url.URL, authorization string, roots []byte) (io.ReadCloser, error) {
	opts := netguard.HTTPOptions{}
	if roots != nil {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(roots)
		opts.TLS = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	if authorization != "" {
		req.Header.Set("Authorization", authorization)
	}
	resp, err := egress.HTTPClient(opts).Do(req)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		var denied *netguard.DeniedError
		if errors.As(err, &denied) {
			return nil, &images.Error{
				Kind: images.ErrNetwork, What: "the registry at " + u.Host + " is out of a build's reach: " + string(denied.Reason),
				Next: "if it sits on a private address, name its range as registries.npm.trusted_cidrs, or pypi or go, in the operator's settings: " + config.DefaultOperator + " or --operator FILE; docs/policy.md has their form",
			}
		}
		return nil, &images.Error{Kind: images.ErrNetwork, What: "the registry at " + u.Host + " could not be reached", Next: "check the registry and certificates of your client's configuration"}
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	_ = resp.Body.Close()
	kind, next := images.ErrNetwork, "try again later"
	switch resp.StatusCode {
	case http.StatusNotFound:
		kind, next = images.ErrNotFound, "check the registry of your client's configuration"
	case http.StatusUnauthorized, http.StatusForbidden:
		kind, next = images.ErrDenied, "log in, or fix the token in your client's configuration"
	}
	return nil, &images.Error{Kind: kind, What: fmt.Sprintf("the registry at %s answered with status %d", u.Host, resp.StatusCode), Next: next}
}
