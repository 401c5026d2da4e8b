package oauth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

// Token returns the access token to send now. It gets a new one where the old
// one ends soon. Its error is a *LoginError where the user has to act.
func (c *Client) Token(ctx context.Context) (string, error) {
	if err := c.enter(ctx); err != nil {
		return "", err
	}
	defer c.leave()
	if err := c.look(ctx, false); err != nil {
		return "", err
	}
	return c.token(ctx, "")
}

func (c *Client) enter(ctx context.Context) error {
	select {
	case c.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Client) leave() { <-c.busy }

// look reads the store, unless it did so just now.
func (c *Client) look(ctx context.Context, now bool) error {
	if !now && time.Since(c.state.looked) < fresh {
		return nil
	}
	g, err := c.cfg.Store.Load(ctx, c.cfg.Key)
	if err != nil && !errors.Is(err, ErrNoGrant) {
		return err
	}
	if g != nil && c.audience(g.Resource) != nil {
		g = nil // not for this server
	}
	if was := c.state.grant; was == nil || g == nil || was.Access != g.Access || was.Refresh != g.Refresh {
		c.state.refreshed, c.state.failure = time.Time{}, nil
	}
	c.state.grant, c.state.looked = g, time.Now()
	return nil
}

// token returns a token other than refused, which may be empty.
func (c *Client) token(ctx context.Context, refused string) (string, error) {
	g := c.state.grant
	if g == nil || g.Access.value == "" && g.Refresh.value == "" {
		return "", c.needsLogin("nobody has logged in yet")
	}
	now := time.Now()
	// In its last seconds a token serves on where it cannot be replaced.
	last := g.Access.value != "" && g.Access.value != refused && (g.Expiry.IsZero() || now.Before(g.Expiry))
	switch {
	case last && (g.usable(now) || now.Sub(c.state.refreshed) < refreshPause):
		return g.Access.value, nil
	case g.Refresh.value == "" && !last:
		return "", c.needsLogin("the login has ended")
	case g.Refresh.value == "":
		return g.Access.value, nil
	}
	err := c.refresh(ctx)
	var login *LoginError
	switch {
	case err != nil && last && !errors.As(err, &login):
		c.log.Warn("a token is still used though it could not be renewed", "server", c.cfg.Key.Server, "error", err)
		return g.Access.value, nil
	case err != nil:
		return "", err
	case c.state.grant.Access.value == refused:
		return "", c.needsLogin("it does not take the token that it was given")
	}
	return c.state.grant.Access.value, nil
}

// refresh gets a new access token. It goes on though the caller gives up: a
// refresh token that rotates is lost with the answer.
func (c *Client) refresh(ctx context.Context) error {
	if time.Since(c.state.refreshed) < refreshPause {
		if c.state.failure != nil {
			return c.state.failure
		}
		return c.needsLogin("it does not take the token that was just renewed")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*askWait)
	defer cancel()
	unlock, err := c.cfg.Store.Lock(ctx, c.cfg.Key)
	if err != nil {
		return err
	}
	defer unlock()
	old := c.state.grant
	if err := c.look(ctx, true); err != nil {
		return err
	}
	g := c.state.grant
	switch {
	case g == nil || g.Refresh.value == "":
		return c.needsLogin("the login has ended")
	case g.Access != old.Access && g.usable(time.Now()):
		return nil // another process has seen to it
	}
	c.state.refreshed = time.Now()
	next := *g
	t, err := c.askRefresh(ctx, g)
	switch {
	case errors.Is(err, errEnded):
		// The registration stays, and so does what the next login asks for.
		next.Access, next.Refresh, next.Expiry = Secret{}, Secret{}, time.Time{}
		c.state.failure = c.needsLogin("the login has ended")
		c.keep(ctx, &next)
		return c.state.failure
	case err != nil:
		c.state.failure = fmt.Errorf("the token of server %s could not be renewed: %w", c.cfg.Key.Server, err)
		return c.state.failure
	}
	next.take(t, g.Scopes)
	c.state.failure = nil
	c.keep(ctx, &next)
	return nil
}

// askRefresh asks the token endpoint. The library's client-credentials request
// is the one that lets every parameter be given; resource is among them (RFC
// 8707, 2.2).
func (c *Client) askRefresh(ctx context.Context, g *Grant) (*oauth2.Token, error) {
	issuer, err := c.issuerOf(g)
	if err != nil {
		return nil, err
	}
	hc, end := c.open()
	defer end()
	cc := clientcredentials.Config{
		ClientID: g.ClientID, ClientSecret: g.ClientSecret.value, TokenURL: g.TokenURL, AuthStyle: authStyle(g.AuthMethod),
		EndpointParams: url.Values{"grant_type": {"refresh_token"}, "refresh_token": {g.Refresh.value}, "resource": {g.Resource}},
	}
	t, err := cc.Token(context.WithValue(ctx, oauth2.HTTPClient, hc))
	if err == nil {
		err = checkToken(t)
	} else {
		err = tokenError(err)
	}
	if err != nil {
		return nil, fmt.Errorf("the authorization server %s: %w", HostPort(issuer), err)
	}
	return t, nil
}

// issuerOf checks that what a grant says is still allowed by the configuration.
func (c *Client) issuerOf(g *Grant) (*url.URL, error) {
	if !slices.ContainsFunc(c.cfg.Issuers, func(t string) bool { return sameIssuer(t, g.Issuer) }) {
		return nil, &IssuerError{Server: c.cfg.Key.Server, Offered: []string{g.Issuer}}
	}
	issuer, err := c.endpoint(g.Issuer)
	if err != nil {
		return nil, err
	}
	u, err := c.endpoint(g.TokenURL)
	if err != nil {
		return nil, fmt.Errorf("the token endpoint: %w", err)
	}
	return issuer, c.allowed("the token endpoint", u, issuer)
}

// keep saves a grant. What cannot be saved serves on, for as long as this
// process lives.
func (c *Client) keep(ctx context.Context, g *Grant) {
	if err := c.cfg.Store.Save(ctx, c.cfg.Key, g); err != nil {
		c.log.Error("a renewed login could not be kept", "server", c.cfg.Key.Server, "error", err)
	}
	c.state.grant, c.state.looked = g, time.Now()
}

// Refused takes a server's refusal of a token: true says that there is another.
func (c *Client) Refused(ctx context.Context, token string, status int, challenges []string) (bool, error) {
	ch := readChallenge(challenges)
	if status == http.StatusForbidden && ch.err != "insufficient_scope" {
		return false, nil
	}
	if err := c.enter(ctx); err != nil {
		return false, err
	}
	defer c.leave()
	if err := c.look(ctx, true); err != nil {
		return false, err
	}
	if status == http.StatusForbidden {
		return false, c.wantMore(ctx, ch.scopes)
	}
	next, err := c.token(ctx, token)
	return err == nil && next != token, err
}

// wantMore remembers scopes for the next login (MCP 2025-11-25, Step-Up
// Authorization Flow): only the user can grant them.
func (c *Client) wantMore(ctx context.Context, scopes []string) error {
	for _, s := range scopes {
		if len(c.cfg.Scopes) > 0 && !slices.Contains(c.cfg.Scopes, s) {
			return fmt.Errorf("server %s wants the scope %s for this, which is not among its oauth.scopes", c.cfg.Key.Server, s)
		}
	}
	if g := c.state.grant; g != nil {
		if all := cleanScopes(append(slices.Clone(g.Wanted), scopes...)); len(all) > len(g.Wanted) {
			unlock, err := c.cfg.Store.Lock(ctx, c.cfg.Key)
			if err != nil {
				return err
			}
			defer unlock()
			if err := c.look(ctx, true); err != nil {
				return err
			}
			if c.state.grant != nil {
				next := *c.state.grant
				next.Wanted = all
				c.keep(ctx, &next)
			}
		}
	}
	why := "it wants more scopes for this"
	if len(scopes) > 0 {
		why += ": " + strings.Join(scopes, " ")
	}
	return c.needsLogin(why)
}

func splitScopes(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ' ' || r == ',' }) // some servers write commas
}
