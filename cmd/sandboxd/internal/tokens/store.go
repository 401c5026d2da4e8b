package tokens

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/remote/oauth"
)

const (
	version = 1
	maxFile = 256 << 10 // bytes
)

// Store is an oauth.TokenStore in a folder. It is safe for concurrent use, by
// several processes too.
type Store struct{ dir string }

// New makes a store; the folder is made with the first login. dir is absolute.
func New(dir string) (*Store, error) {
	if !filepath.IsAbs(dir) {
		return nil, errors.New("logins are kept in a folder with an absolute path")
	}
	return &Store{dir}, nil
}

// record is a file.
type record struct {
	Version   int       `json:"version"`
	Tenant    string    `json:"tenant"`
	Server    string    `json:"server"`
	URL       string    `json:"url"`
	Issuer    string    `json:"issuer"`
	Resource  string    `json:"resource"`
	TokenURL  string    `json:"token_endpoint"`
	RevokeURL string    `json:"revocation_endpoint,omitempty"`
	Client    client    `json:"client"`
	Access    string    `json:"access_token,omitempty"`
	Refresh   string    `json:"refresh_token,omitempty"`
	Expiry    time.Time `json:"access_expires,omitzero"`
	Scopes    []string  `json:"scopes,omitempty"`
	Wanted    []string  `json:"wanted_scopes,omitempty"`
}

type client struct {
	ID          string `json:"id"`
	Secret      string `json:"secret,omitempty"`
	Method      string `json:"auth_method"`
	Registered  bool   `json:"registered,omitempty"`
	RedirectURI string `json:"redirect_uri,omitempty"`
}

func encode(k oauth.Key, g *oauth.Grant) record {
	return record{
		Version: version, Tenant: k.Tenant, Server: k.Server, URL: k.Resource,
		Issuer: g.Issuer, Resource: g.Resource, TokenURL: g.TokenURL, RevokeURL: g.RevokeURL,
		Client: client{g.ClientID, g.ClientSecret.Reveal(), g.AuthMethod, g.Registered, g.RedirectURI},
		Access: g.Access.Reveal(), Refresh: g.Refresh.Reveal(), Expiry: g.Expiry, Scopes: g.Scopes, Wanted: g.Wanted,
	}
}

func (r *record) grant() *oauth.Grant {
	return &oauth.Grant{
		Issuer: r.Issuer, Resource: r.Resource, TokenURL: r.TokenURL, RevokeURL: r.RevokeURL,
		ClientID: r.Client.ID, ClientSecret: oauth.NewSecret(r.Client.Secret), AuthMethod: r.Client.Method,
		Registered: r.Client.Registered, RedirectURI: r.Client.RedirectURI,
		Access: oauth.NewSecret(r.Access), Refresh: oauth.NewSecret(r.Refresh), Expiry: r.Expiry, Scopes: r.Scopes, Wanted: r.Wanted,
	}
}

// path is a login's file; its name gives nothing away and cannot lead out.
func (s *Store) path(k oauth.Key) string {
	sum := sha256.Sum256([]byte(k.Tenant + "\x00" + k.Server + "\x00" + k.Resource))
	return filepath.Join(s.dir, hex.EncodeToString(sum[:])+".json")
}

// Path is where a login is kept, for messages.
func (s *Store) Path(k oauth.Key) string { return s.path(k) }

// Load reads a login. A file or folder that another could read or write is
// refused.
func (s *Store) Load(_ context.Context, k oauth.Key) (*oauth.Grant, error) {
	dir, err := os.Lstat(s.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, oauth.ErrNoGrant
	case err != nil:
		return nil, fmt.Errorf("logins: %w", err)
	}
	if err := private(s.dir, dir, 0o700); err != nil {
		return nil, err
	}
	f, err := openFile(s.path(k), os.O_RDONLY)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, oauth.ErrNoGrant
	case err != nil:
		return nil, fmt.Errorf("logins: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read from
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("logins: %w", err)
	}
	if err := private(s.path(k), info, 0o600); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("logins: %w", err)
	}
	var r record
	if len(b) > maxFile || json.Unmarshal(b, &r) != nil || r.Version != version || r.Tenant != k.Tenant || r.Server != k.Server || r.URL != k.Resource {
		return nil, fmt.Errorf("logins: %s cannot be read: remove it and log in again", s.path(k))
	}
	return r.grant(), nil
}

// private refuses what is not this user's alone. mode is the widest one.
func private(path string, info fs.FileInfo, mode fs.FileMode) error {
	what := "file"
	if mode&0o100 != 0 {
		what = "folder"
	}
	switch {
	case info.IsDir() != (what == "folder") || what == "file" && !info.Mode().IsRegular():
		return fmt.Errorf("logins: %s is no %s: remove it and log in again", path, what)
	case !ours(info):
		return fmt.Errorf("logins: the %s %s belongs to another user: remove it and log in again", what, path)
	case info.Mode().Perm()&^mode != 0:
		return fmt.Errorf("logins: the %s %s has mode %04o, which lets others in: chmod %o it, and log in again if somebody may have read it", what, path, info.Mode().Perm(), mode)
	}
	return nil
}

// folder makes the folder, or checks it.
func (s *Store) folder() error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("logins: %w", err)
	}
	info, err := os.Lstat(s.dir)
	if err != nil {
		return fmt.Errorf("logins: %w", err)
	}
	return private(s.dir, info, 0o700)
}

// Save writes a login whole or not at all.
func (s *Store) Save(_ context.Context, k oauth.Key, g *oauth.Grant) error {
	if err := s.folder(); err != nil {
		return err
	}
	b, err := json.Marshal(encode(k, g)) //nolint:gosec // the tokens are what is to be written
	if err != nil {
		return fmt.Errorf("logins: %w", err)
	}
	f, err := os.CreateTemp(s.dir, ".new-*") // mode 0600
	if err != nil {
		return fmt.Errorf("logins: %w", err)
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), s.path(k))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("logins: %w", err), os.Remove(f.Name()))
	}
	return nil
}

// Delete removes a login.
func (s *Store) Delete(_ context.Context, k oauth.Key) error {
	if err := os.Remove(s.path(k)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("logins: %w", err)
	}
	return nil
}

// Lock waits for the key's lock until ctx ends. A process that dies gives it
// back.
func (s *Store) Lock(ctx context.Context, k oauth.Key) (func(), error) {
	if err := s.folder(); err != nil {
		return nil, err
	}
	f, err := openFile(s.path(k)+".lock", os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, fmt.Errorf("logins: %w", err)
	}
	for {
		held, err := tryLock(f)
		switch {
		case err != nil:
			_ = f.Close()
			return nil, fmt.Errorf("logins: %w", err)
		case held:
			return func() { _ = f.Close() }, nil // which unlocks it
		}
		t := time.NewTimer(20 * time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			_ = f.Close()
			return nil, fmt.Errorf("logins: another process holds the login's lock: %w", ctx.Err())
		}
	}
}
