package oauth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// The states of a login.
const (
	LoggedIn   = "logged-in"
	Renewable  = "renewable" // the access token has ended, and the next use renews it
	NeedsLogin = "needs-login"
)

// Status says how a login stands. It holds no secret.
type Status struct {
	Server   string     `json:"server"`
	Resource string     `json:"resource"`
	State    string     `json:"state"`
	Issuer   string     `json:"issuer,omitempty"`
	Scopes   []string   `json:"scopes,omitempty"`
	Wanted   []string   `json:"wanted_scopes,omitempty"` // asked for since, for the next login
	Expiry   *time.Time `json:"access_expires,omitempty"`
	Refresh  bool       `json:"refreshable"`
}

// Status reads the store and asks nobody.
func (c *Client) Status(ctx context.Context) (Status, error) {
	st := Status{Server: c.cfg.Key.Server, Resource: c.cfg.Key.Resource, State: NeedsLogin}
	g, err := c.cfg.Store.Load(ctx, c.cfg.Key)
	if errors.Is(err, ErrNoGrant) {
		return st, nil
	}
	if err != nil {
		return st, err
	}
	st.Issuer, st.Scopes, st.Wanted, st.Refresh = g.Issuer, g.Scopes, g.Wanted, g.Refresh.value != ""
	if !g.Expiry.IsZero() {
		st.Expiry = &g.Expiry
	}
	switch {
	case g.usable(time.Now()):
		st.State = LoggedIn
	case st.Refresh:
		st.State = Renewable
	}
	return st, nil
}

// Arrived says whether a login has come since it was last asked. A failure to
// read is none; Token says why.
func (c *Client) Arrived(ctx context.Context) bool {
	st, err := c.Status(ctx)
	has := err == nil && st.State != NeedsLogin
	return !c.had.Swap(has) && has
}

// RedirectPort is the port of the last login's redirect, for which its client
// is registered; 0 where there is none.
func (c *Client) RedirectPort(ctx context.Context) (string, error) {
	g, err := c.cfg.Store.Load(ctx, c.cfg.Key)
	if errors.Is(err, ErrNoGrant) {
		return "0", nil
	}
	if err != nil {
		return "", err
	}
	u, err := url.Parse(g.RedirectURI)
	if err != nil || !g.Registered || u.Port() == "" {
		return "0", nil
	}
	return u.Port(), nil
}

// Logout asks the authorization server to revoke the tokens (RFC 7009), where
// it can, and forgets them. A revocation that failed is an error, after which
// they are forgotten all the same.
func (c *Client) Logout(ctx context.Context) (revoked bool, err error) {
	if err := c.enter(ctx); err != nil {
		return false, err
	}
	defer c.leave()
	unlock, err := c.cfg.Store.Lock(ctx, c.cfg.Key)
	if err != nil {
		return false, err
	}
	defer unlock()
	g, err := c.cfg.Store.Load(ctx, c.cfg.Key)
	if err != nil {
		return false, err
	}
	c.state = state{}
	var rerr error
	if g.RevokeURL != "" && (g.Refresh.value != "" || g.Access.value != "") {
		rerr = c.revoke(ctx, g)
		revoked = rerr == nil
	}
	if err := c.cfg.Store.Delete(ctx, c.cfg.Key); err != nil {
		return revoked, errors.Join(rerr, err)
	}
	if rerr != nil {
		return false, fmt.Errorf("the tokens were forgotten here, and could not be revoked there: %w", rerr)
	}
	return revoked, nil
}

func (c *Client) revoke(ctx context.Context, g *Grant) error {
	issuer, err := c.issuerOf(g)
	if err != nil {
		return err
	}
	u, err := c.endpoint(g.RevokeURL)
	if err == nil {
		err = c.allowed("the revocation endpoint", u, issuer)
	}
	if err != nil {
		return err
	}
	form := url.Values{"token": {g.Refresh.value}, "token_type_hint": {"refresh_token"}}
	if g.Refresh.value == "" {
		form = url.Values{"token": {g.Access.value}, "token_type_hint": {"access_token"}}
	}
	if g.AuthMethod != "client_secret_basic" {
		form.Set("client_id", g.ClientID)
	}
	if g.AuthMethod == "client_secret_post" {
		form.Set("client_secret", g.ClientSecret.value)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), strings.NewReader(form.Encode()))
	if err != nil {
		return errors.New("it is no plain URL")
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if g.AuthMethod == "client_secret_basic" {
		req.SetBasicAuth(url.QueryEscape(g.ClientID), url.QueryEscape(g.ClientSecret.value))
	}
	hc, end := c.open()
	defer end()
	if _, err := send(hc, req, nil); err != nil {
		return fmt.Errorf("the authorization server %s: %w", HostPort(issuer), err)
	}
	return nil
}
