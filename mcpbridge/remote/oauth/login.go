package oauth

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"
)

// RedirectPath is the path of the loopback redirect.
const RedirectPath = "/callback"

// Login is one authorization that waits for the user. It is used once.
type Login struct {
	c        *Client
	place    *place
	grant    Grant
	verifier string
	state    string
	scopes   []string
}

// Begin finds the authorization server and makes the client that logs in.
// redirect is http://127.0.0.1:PORT/callback; more are scopes that the user
// wants beside those that the server asks for.
func (c *Client) Begin(ctx context.Context, redirect string, more []string) (*Login, error) {
	if u, err := url.Parse(redirect); err != nil || u.Scheme != "http" || !isLoopback(u.Hostname()) || u.Path != RedirectPath {
		return nil, errors.New("the redirect goes to http://127.0.0.1:PORT" + RedirectPath)
	}
	hc, end := c.open()
	defer end()
	p, err := c.discover(ctx, hc)
	if err != nil {
		return nil, err
	}
	old, err := c.cfg.Store.Load(ctx, c.cfg.Key)
	if err != nil && !errors.Is(err, ErrNoGrant) {
		return nil, err
	}
	l := &Login{c: c, place: p, verifier: oauth2.GenerateVerifier(), state: rand.Text()}
	l.grant = Grant{
		Issuer: p.meta.Issuer, Resource: p.resource, RedirectURI: redirect,
		TokenURL: p.meta.TokenEndpoint, RevokeURL: p.meta.RevocationEndpoint,
	}
	if err := c.client(ctx, hc, p.meta, old, &l.grant); err != nil {
		return nil, err
	}
	l.scopes, err = c.scopes(p, old, more)
	return l, err
}

// client chooses the OAuth client (MCP 2025-11-25, Client Registration
// Approaches): one that was registered beforehand, a metadata document, the
// one of the last login, or a new one.
func (c *Client) client(ctx context.Context, hc *http.Client, m *oauthex.AuthServerMeta, old, g *Grant) error {
	switch {
	case c.cfg.ClientID != "":
		g.ClientID, g.ClientSecret, g.AuthMethod = c.cfg.ClientID, c.cfg.ClientSecret, "none"
		if g.ClientSecret.value == "" {
			return nil
		}
		return pickMethod(m.TokenEndpointAuthMethodsSupported, g)
	case c.cfg.ClientMetadataURL != "" && m.ClientIDMetadataDocumentSupported:
		g.ClientID, g.AuthMethod = c.cfg.ClientMetadataURL, "none"
		return nil
	case old != nil && old.Registered && sameIssuer(old.Issuer, g.Issuer) && old.RedirectURI == g.RedirectURI && old.TokenURL == g.TokenURL:
		g.ClientID, g.ClientSecret, g.AuthMethod, g.Registered = old.ClientID, old.ClientSecret, old.AuthMethod, true
		return nil
	case m.RegistrationEndpoint != "":
		return c.register(ctx, hc, m, g)
	}
	return fmt.Errorf("the authorization server registers no clients by itself: register one there, with the redirect %s, and give its id as oauth.client_id of server %s (a fixed port is oauth.redirect_port)",
		g.RedirectURI, c.cfg.Key.Server)
}

func pickMethod(supported []string, g *Grant) error {
	if len(supported) == 0 {
		supported = []string{"client_secret_basic"} // RFC 8414, 2
	}
	for _, method := range []string{"client_secret_basic", "client_secret_post"} {
		if slices.Contains(supported, method) {
			g.AuthMethod = method
			return nil
		}
	}
	return errors.New("the authorization server takes client secrets in no way that is known here (client_secret_basic, client_secret_post)")
}

// register makes a client (RFC 7591).
func (c *Client) register(ctx context.Context, hc *http.Client, m *oauthex.AuthServerMeta, g *Grant) error {
	u, err := c.endpoint(m.RegistrationEndpoint)
	if err != nil {
		return err
	}
	var res oauthex.ClientRegistrationResponse
	err = postJSON(ctx, hc, u, &oauthex.ClientRegistrationMetadata{
		RedirectURIs: []string{g.RedirectURI}, TokenEndpointAuthMethod: "none",
		GrantTypes: []string{"authorization_code", "refresh_token"}, ResponseTypes: []string{"code"},
		ClientName: c.cfg.ClientName, ApplicationType: "native",
	}, &res)
	if err != nil {
		return fmt.Errorf("registration of a client at the authorization server %s: %w", HostPort(u), err)
	}
	if !tokenText(res.ClientID) || res.ClientSecret != "" && !tokenText(res.ClientSecret) {
		return errors.New("registration of a client: the answer has no usable client_id")
	}
	g.ClientID, g.ClientSecret, g.AuthMethod, g.Registered = res.ClientID, Secret{res.ClientSecret}, "none", true
	if res.ClientSecret == "" {
		return nil
	}
	methods := []string{res.TokenEndpointAuthMethod}
	if res.TokenEndpointAuthMethod == "" || res.TokenEndpointAuthMethod == "none" {
		methods = nil
	}
	return pickMethod(methods, g)
}

// scopes are those to ask for: what the configuration says, or else what the
// server wants (MCP 2025-11-25, Scope Selection Strategy), was granted before,
// and the user adds.
func (c *Client) scopes(p *place, old *Grant, more []string) ([]string, error) {
	more = cleanScopes(more)
	if len(c.cfg.Scopes) > 0 {
		for _, s := range more {
			if !slices.Contains(c.cfg.Scopes, s) {
				return nil, fmt.Errorf("scope %s is not among oauth.scopes of server %s", s, c.cfg.Key.Server)
			}
		}
		return c.cfg.Scopes, nil
	}
	all := slices.Clone(p.scopes)
	if old != nil && sameIssuer(old.Issuer, p.meta.Issuer) {
		all = append(append(all, old.Scopes...), old.Wanted...)
	}
	all = append(all, more...)
	if slices.Contains(p.meta.ScopesSupported, "offline_access") {
		all = append(all, "offline_access") // else some give no refresh token
	}
	return cleanScopes(all), nil
}

// URL is where the user logs in.
func (l *Login) URL() string {
	return l.config().AuthCodeURL(l.state, oauth2.S256ChallengeOption(l.verifier), oauth2.SetAuthURLParam("resource", l.place.resource))
}

// Issuer is the authorization server's.
func (l *Login) Issuer() string { return l.grant.Issuer }

// Scopes are what is asked for.
func (l *Login) Scopes() []string { return slices.Clone(l.scopes) }

func (l *Login) config() *oauth2.Config {
	return &oauth2.Config{
		ClientID: l.grant.ClientID, ClientSecret: l.grant.ClientSecret.value, RedirectURL: l.grant.RedirectURI, Scopes: l.scopes,
		Endpoint: oauth2.Endpoint{AuthURL: l.place.meta.AuthorizationEndpoint, TokenURL: l.grant.TokenURL, AuthStyle: authStyle(l.grant.AuthMethod)},
	}
}

func authStyle(method string) oauth2.AuthStyle {
	if method == "client_secret_basic" {
		return oauth2.AuthStyleInHeader
	}
	return oauth2.AuthStyleInParams
}

// errStray marks a redirect that is not this login's.
var errStray = errors.New("the redirect does not belong to this login")

// code checks a redirect's parameters and returns the authorization code.
func (l *Login) code(q url.Values) (string, error) {
	for _, k := range []string{"state", "code", "iss", "error"} {
		if len(q[k]) > 1 {
			return "", fmt.Errorf("%w: it has %s twice", errStray, k)
		}
	}
	if subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(l.state)) != 1 {
		return "", fmt.Errorf("%w: its state is another", errStray)
	}
	// Before anything else is believed: who says it (RFC 9207, 2.4), compared
	// character by character.
	iss, has := q.Get("iss"), q.Has("iss")
	if has && iss != l.grant.Issuer || !has && l.place.meta.AuthorizationResponseIssParameterSupported {
		return "", errors.New("the redirect is not from the authorization server that was asked (RFC 9207): nothing was sent to it")
	}
	if q.Has("error") {
		if e := q.Get("error"); code.MatchString(e) {
			return "", fmt.Errorf("the authorization server refused: %s", e)
		}
		return "", errors.New("the authorization server refused")
	}
	if c := q.Get("code"); c != "" && len(c) <= 8<<10 {
		return c, nil
	}
	return "", errors.New("the redirect has no authorization code")
}

// Finish takes the redirect's parameters, gets the tokens and keeps them.
func (l *Login) Finish(ctx context.Context, q url.Values) error {
	code, err := l.code(q)
	if err != nil {
		return err
	}
	hc, end := l.c.open()
	defer end()
	// What was granted is kept though the caller goes away.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askWait)
	defer cancel()
	t, err := l.config().Exchange(context.WithValue(ctx, oauth2.HTTPClient, hc), code,
		oauth2.VerifierOption(l.verifier), oauth2.SetAuthURLParam("resource", l.place.resource))
	if err == nil {
		err = checkToken(t)
	} else {
		err = tokenError(err)
	}
	if err != nil {
		return fmt.Errorf("the authorization server %s gave no token: %w", HostPort(l.place.issuer), err)
	}
	l.grant.take(t, l.scopes)
	unlock, err := l.c.cfg.Store.Lock(ctx, l.c.cfg.Key)
	if err != nil {
		return err
	}
	defer unlock()
	return l.c.cfg.Store.Save(ctx, l.c.cfg.Key, &l.grant)
}

// take puts a token into the grant. scopes are what was asked for.
func (g *Grant) take(t *oauth2.Token, scopes []string) {
	g.Access, g.Expiry = Secret{t.AccessToken}, t.Expiry
	if t.RefreshToken != "" {
		g.Refresh = Secret{t.RefreshToken}
	}
	if s, ok := t.Extra("scope").(string); ok && s != "" {
		scopes = cleanScopes(splitScopes(s))
	}
	g.Scopes = scopes
}
