package oauth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"
)

// ErrNoGrant is TokenStore.Load's error where there is nothing under the key.
var ErrNoGrant = errors.New("no login is kept")

// Key says whose login it is, and for what. A server whose URL changes has
// another key, so that no token goes to a place that it was not given for.
type Key struct {
	Tenant, Server string
	Resource       string // the server's URL without query
}

// Grant is what one login left: the client that it was made for and its
// tokens. Printing or encoding one shows no secret.
type Grant struct {
	// Issuer is the authorization server's; Resource the audience of the tokens
	// (RFC 8707), which is of the server's own origin.
	Issuer, Resource string
	// TokenURL and RevokeURL are the issuer's endpoints; RevokeURL may be empty.
	TokenURL, RevokeURL string
	// ClientID, ClientSecret and AuthMethod (none, client_secret_basic or
	// client_secret_post) are the client's. Registered says that they were got
	// by dynamic registration, for RedirectURI.
	ClientID     string
	ClientSecret Secret
	AuthMethod   string
	Registered   bool
	RedirectURI  string
	// Access and Refresh are the tokens; both are empty after a login has ended.
	Access, Refresh Secret
	// Expiry is when Access ends; zero means that nobody said.
	Expiry time.Time
	// Scopes were granted. Wanted are those that the server asked for since, for
	// the next login.
	Scopes, Wanted []string
}

// TokenStore keeps grants. Whoever can read it can be the user at the servers.
type TokenStore interface {
	// Load returns a copy, or an error that wraps ErrNoGrant.
	Load(ctx context.Context, k Key) (*Grant, error)
	// Save replaces the grant, whole or not at all.
	Save(ctx context.Context, k Key, g *Grant) error
	// Delete removes it; what is not there is no error.
	Delete(ctx context.Context, k Key) error
	// Lock keeps every other user of the store, in other processes too, from
	// locking the key until unlock: a refresh token that rotates is used once.
	Lock(ctx context.Context, k Key) (unlock func(), err error)
}

// usable says whether the access token can be sent at a time.
func (g *Grant) usable(now time.Time) bool {
	return g != nil && g.Access.value != "" && (g.Expiry.IsZero() || now.Add(leeway).Before(g.Expiry))
}

const redacted = "[secret]"

// Secret is a value that must not be seen: every way to print, log or encode
// it shows a placeholder.
type Secret struct{ value string }

// NewSecret wraps a value.
func NewSecret(value string) Secret { return Secret{value} }

// Reveal returns the value, for a TokenStore and the request that needs it.
func (s Secret) Reveal() string { return s.value }

// String returns a placeholder.
func (Secret) String() string { return redacted }

// Format writes the placeholder for every verb.
func (Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// LogValue logs the placeholder.
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText encodes the placeholder.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
