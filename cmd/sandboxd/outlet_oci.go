package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/sandboxd/sandboxd/images"
	"github.com/sandboxd/sandboxd/netguard"
)

// Images reads container images through the guard. A registry sends its
// callers on to hosts that no configuration names, for tokens and for layers,
// so every public address is open; nothing but bytes that are checked by their
// digest comes back. Of private ones only a registry that the reference itself
// names, by its address, is.
func (o *outlet) Images(ctx context.Context, registry string) ([]remote.Option, error) {
	cfg := netguard.Config{Mode: netguard.ModePublic}
	if local := localRegistry(registry); local != "" {
		cfg = netguard.Config{Mode: netguard.ModeAllowlist, AllowLocalEndpoint: []string{local}}
	}
	policy, err := netguard.Compile(cfg)
	if err != nil {
		return nil, fmt.Errorf("the image's registry cannot be opened: %w", err)
	}
	guard, err := o.op.guardFor(ctx, nil, o.opts)
	if err != nil {
		return nil, err
	}
	opts := netguard.HTTPOptions{}
	roots, err := certificates("", "SSL_CERT_FILE")
	if err != nil {
		return nil, err
	}
	if roots != nil {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(roots)
		opts.TLS = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	// The way out ends with the program: an image's layers are read later.
	egress := guard.For(netguard.Subject{Tenant: "builder", Sandbox: string(images.KindOCI)}, policy)
	context.AfterFunc(ctx, func() { _ = egress.Close() })
	return []remote.Option{remote.WithTransport(egress.RoundTripper(opts)), remote.WithAuthFromKeychain(authn.DefaultKeychain)}, nil
}

// localRegistry is the endpoint of a registry at an address, or on this host,
// that is not public; empty for any other.
func localRegistry(registry string) string {
	host, port, err := net.SplitHostPort(registry)
	if err != nil {
		host, port = strings.Trim(registry, "[]"), "443"
	}
	addr, err := netip.ParseAddr(host)
	if host != "localhost" && (err != nil || !addr.IsPrivate() && !addr.IsLoopback()) {
		return ""
	}
	return net.JoinHostPort(host, port)
}
