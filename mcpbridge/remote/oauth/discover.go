package oauth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

// challenge is what a server said when it refused a request (RFC 6750, 3; RFC
// 9728, 5.1).
type challenge struct {
	status   int
	metadata string // URL of its metadata
	err      string
	scopes   []string
}

const maxChallenge = 8 << 10 // bytes of WWW-Authenticate that are looked at

// readChallenge reads the Bearer challenge; what cannot be read says nothing.
func readChallenge(fields []string) challenge {
	var out challenge
	n := 0
	for _, f := range fields {
		if n += len(f); n > maxChallenge {
			break
		}
		cs, err := oauthex.ParseWWWAuthenticate([]string{f})
		if err != nil {
			continue
		}
		for _, c := range cs {
			if c.Scheme != "bearer" {
				continue
			}
			out.metadata, out.err = c.Params["resource_metadata"], c.Params["error"]
			out.scopes = cleanScopes(strings.Fields(c.Params["scope"]))
			return out
		}
	}
	return out
}

// cleanScopes keeps what can be a scope (RFC 6749, 3.3), once each, within
// bounds.
func cleanScopes(in []string) []string {
	var out []string
	for _, s := range in {
		bad := strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '"' || r == '\\' })
		if s != "" && !bad && len(s) <= 256 && len(out) < 64 && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// place is where to log in.
type place struct {
	resource string // audience
	scopes   []string
	issuer   *url.URL
	meta     *oauthex.AuthServerMeta
}

// discover finds the server's authorization server, as far as it is trusted.
func (c *Client) discover(ctx context.Context, hc *http.Client) (*place, error) {
	ch, err := c.probe(ctx, hc)
	if err != nil {
		return nil, err
	}
	prm, err := c.resourceMetadata(ctx, hc, ch)
	if err != nil {
		return nil, err
	}
	p := &place{resource: prm.Resource, scopes: ch.scopes}
	if len(p.scopes) == 0 {
		p.scopes = cleanScopes(prm.ScopesSupported)
	}
	issuer, err := c.trusted(prm.AuthorizationServers)
	if err != nil {
		return nil, err
	}
	if p.issuer, err = c.endpoint(issuer); err != nil {
		return nil, fmt.Errorf("the authorization server: %w", err)
	}
	if p.meta, err = c.serverMetadata(ctx, hc, issuer, p.issuer); err != nil {
		return nil, err
	}
	return p, nil
}

// probe asks the server for its challenge by a message without a token.
func (c *Client) probe(ctx context.Context, hc *http.Client) (challenge, error) {
	ctx, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	body := `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base.String(), strings.NewReader(body))
	if err != nil {
		return challenge{}, errors.New("the server's url cannot be used")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	res, err := hc.Do(req)
	if err != nil {
		return challenge{}, fmt.Errorf("the server could not be reached: %w", plain(err))
	}
	defer res.Body.Close() //nolint:errcheck // nothing of it is read
	if res.StatusCode/100 == 3 {
		return challenge{}, errors.New("the server answered with a redirect: use the url that it leads to")
	}
	ch := readChallenge(res.Header.Values("WWW-Authenticate"))
	ch.status = res.StatusCode
	return ch, nil
}

// resourceMetadata gets the server's metadata (RFC 9728): from where the
// challenge says, or from the well-known places (MCP 2025-11-25, Protected
// Resource Metadata Discovery). A server that has none may be its own
// authorization server, as in 2025-03-26.
func (c *Client) resourceMetadata(ctx context.Context, hc *http.Client, ch challenge) (*oauthex.ProtectedResourceMetadata, error) {
	const what = "the server's metadata (RFC 9728)"
	var places []*url.URL
	if ch.metadata != "" {
		u, err := c.endpoint(ch.metadata)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		places = append(places, u)
	} else {
		const known = "/.well-known/oauth-protected-resource"
		if path := strings.TrimSuffix(c.base.Path, "/"); path != "" {
			places = append(places, &url.URL{Scheme: c.base.Scheme, Host: c.base.Host, Path: known + path})
		}
		places = append(places, &url.URL{Scheme: c.base.Scheme, Host: c.base.Host, Path: known})
	}
	for _, u := range places {
		if err := c.allowed(what, u, c.base); err != nil {
			return nil, err
		}
		var prm oauthex.ProtectedResourceMetadata
		err := getJSON(ctx, hc, u, &prm)
		if errors.Is(err, errAbsent) && ch.metadata == "" {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s on %s: %w", what, HostPort(u), err)
		}
		return &prm, c.audience(prm.Resource)
	}
	if ch.status != http.StatusUnauthorized {
		return nil, fmt.Errorf("server %s asks for no login: it answered %d %s without one, and has no metadata (RFC 9728)", c.cfg.Key.Server, ch.status, http.StatusText(ch.status))
	}
	origin := (&url.URL{Scheme: c.base.Scheme, Host: c.base.Host}).String()
	return &oauthex.ProtectedResourceMetadata{Resource: c.base.String(), AuthorizationServers: []string{origin}}, nil
}

// audience refuses a resource that is not the server itself, or a part of its
// origin that holds it: a token for another must not be brought here.
func (c *Client) audience(resource string) error {
	u, err := plainURL(resource)
	if err == nil && u.RawQuery == "" && strings.Replace(u.Scheme, "ws", "http", 1) == c.base.Scheme && HostPort(u) == HostPort(c.base) {
		own, their := strings.TrimSuffix(c.base.EscapedPath(), "/")+"/", strings.TrimSuffix(u.EscapedPath(), "/")+"/"
		if strings.HasPrefix(own, their) {
			return nil
		}
	}
	return errors.New("the server's metadata is about another resource than its url: nobody can log in to it")
}

// trusted is the first of the issuers that a server names which is trusted.
func (c *Client) trusted(offered []string) (string, error) {
	var names []string
	for _, iss := range offered[:min(len(offered), 16)] {
		if slices.ContainsFunc(c.cfg.Issuers, func(t string) bool { return sameIssuer(t, iss) }) {
			return iss, nil
		}
		if _, err := plainURL(iss); err == nil {
			names = append(names, iss)
		}
	}
	return "", &IssuerError{Server: c.cfg.Key.Server, Offered: names}
}

// sameIssuer compares identifiers; an empty path and / are one (RFC 3986,
// 6.2.3).
func sameIssuer(a, b string) bool {
	return a != "" && strings.TrimSuffix(a, "/") == strings.TrimSuffix(b, "/")
}

// serverMetadata gets an authorization server's metadata, from the places that
// MCP 2025-11-25 names in their order.
func (c *Client) serverMetadata(ctx context.Context, hc *http.Client, issuer string, u *url.URL) (*oauthex.AuthServerMeta, error) {
	path := strings.TrimSuffix(u.Path, "/")
	places := []string{"/.well-known/oauth-authorization-server" + path, "/.well-known/openid-configuration" + path}
	if path != "" {
		places = append(places, path+"/.well-known/openid-configuration")
	}
	for _, p := range places {
		var meta oauthex.AuthServerMeta
		err := getJSON(ctx, hc, &url.URL{Scheme: u.Scheme, Host: u.Host, Path: p}, &meta)
		if errors.Is(err, errAbsent) {
			continue
		}
		if err == nil {
			err = c.checkMetadata(&meta, issuer, u)
		}
		if err != nil {
			return nil, fmt.Errorf("the metadata of the authorization server %s: %w", HostPort(u), err)
		}
		return &meta, nil
	}
	return nil, fmt.Errorf("the authorization server %s has no metadata (RFC 8414): nobody can log in by it", HostPort(u))
}

// checkMetadata holds an authorization server to what its metadata must say.
func (c *Client) checkMetadata(m *oauthex.AuthServerMeta, issuer string, own *url.URL) error {
	switch {
	case !sameIssuer(m.Issuer, issuer):
		return errors.New("its issuer is another than the one that was asked")
	case !slices.Contains(m.CodeChallengeMethodsSupported, "S256"):
		return errors.New("it does not support PKCE with S256, without which nobody should log in by it")
	case len(m.ResponseTypesSupported) > 0 && !slices.Contains(m.ResponseTypesSupported, "code"):
		return errors.New("it does not support the authorization code flow")
	}
	for _, e := range []struct {
		name, url string
		need      bool
	}{
		{"authorization_endpoint", m.AuthorizationEndpoint, true},
		{"token_endpoint", m.TokenEndpoint, true},
		{"registration_endpoint", m.RegistrationEndpoint, false},
		{"revocation_endpoint", m.RevocationEndpoint, false},
	} {
		if e.url == "" && !e.need {
			continue
		}
		u, err := c.endpoint(e.url)
		if err != nil {
			return fmt.Errorf("its %s: %w", e.name, err)
		}
		if err := c.allowed("its "+e.name, u, own); err != nil {
			return err
		}
	}
	return nil
}
