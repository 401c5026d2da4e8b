package tokens

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/mcpbridge/remote/oauth"
)

var key = oauth.Key{Tenant: "t", Server: "far", Resource: "https://mcp.example.com/mcp"}

func grant(token string) *oauth.Grant {
	return &oauth.Grant{
		Issuer: "https://as.example.com", Resource: "https://mcp.example.com/mcp", TokenURL: "https://as.example.com/token",
		ClientID: "c", ClientSecret: oauth.NewSecret("hunter1"), AuthMethod: "client_secret_basic", Registered: true, RedirectURI: "http://127.0.0.1:1/callback",
		Access: oauth.NewSecret(token), Refresh: oauth.NewSecret("hunter3"), Expiry: time.Unix(2000000000, 0).UTC(), Scopes: []string{"a"}, Wanted: []string{"b"},
	}
}

func store(t *testing.T) *Store {
	t.Helper()
	s, err := New(filepath.Join(t.TempDir(), "oauth"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStore(t *testing.T) {
	s, ctx := store(t), t.Context()
	if _, err := s.Load(ctx, key); !errors.Is(err, oauth.ErrNoGrant) {
		t.Errorf("empty: %v", err)
	}
	if err := s.Save(ctx, key, grant("hunter2")); err != nil {
		t.Fatal(err)
	}
	got, err := s.Load(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(encode(key, grant("hunter2")), encode(key, got)); diff != "" {
		t.Error(diff)
	}
	for _, other := range []oauth.Key{{Tenant: "u", Server: "far", Resource: key.Resource}, {Tenant: "t", Server: "f", Resource: key.Resource}, {Tenant: "t", Server: "far", Resource: "https://mcp.example.com/"}} {
		if _, err := s.Load(ctx, other); !errors.Is(err, oauth.ErrNoGrant) {
			t.Errorf("%v: %v", other, err)
		}
	}
	for path, mode := range map[string]os.FileMode{s.dir: 0o700, s.Path(key): 0o600} {
		if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, fi.Mode(), err)
		}
	}
	if err := errors.Join(s.Delete(ctx, key), s.Delete(ctx, key)); err != nil {
		t.Error(err)
	}
	if _, err := s.Load(ctx, key); !errors.Is(err, oauth.ErrNoGrant) {
		t.Errorf("afterwards: %v", err)
	}
}

// Whatever others could have read or written is refused.
func TestOpenFilesAreRefused(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, s *Store) error{
		"readable":        func(_ *testing.T, s *Store) error { return os.Chmod(s.Path(key), 0o640) },
		"writable folder": func(_ *testing.T, s *Store) error { return os.Chmod(s.dir, 0o770) },
		"link": func(_ *testing.T, s *Store) error {
			return errors.Join(os.Rename(s.Path(key), s.dir+"/x"), os.Symlink(s.dir+"/x", s.Path(key)))
		},
		"folder": func(_ *testing.T, s *Store) error {
			return errors.Join(os.Remove(s.Path(key)), os.Mkdir(s.Path(key), 0o700))
		},
		"folder is a link": func(_ *testing.T, s *Store) error {
			return errors.Join(os.Rename(s.dir, s.dir+"x"), os.Symlink(s.dir+"x", s.dir))
		},
		"another's file": func(t *testing.T, s *Store) error {
			if os.Geteuid() != 0 {
				t.Skip("only root gives files away")
			}
			return os.Chown(s.Path(key), 12345, -1)
		},
		"another's folder": func(t *testing.T, s *Store) error {
			if os.Geteuid() != 0 {
				t.Skip("only root gives folders away")
			}
			return os.Chown(s.dir, 12345, -1)
		},
		"another's login": func(_ *testing.T, s *Store) error {
			other := oauth.Key{Tenant: "t", Server: "other", Resource: key.Resource}
			return os.Rename(s.Path(key), s.Path(other))
		},
		"damaged": func(_ *testing.T, s *Store) error { return os.WriteFile(s.Path(key), []byte(`{"hunter2`), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			s := store(t)
			if err := s.Save(t.Context(), key, grant("hunter2")); err != nil {
				t.Fatal(err)
			}
			if err := spoil(t, s); err != nil {
				t.Fatal(err)
			}
			k := key
			if name == "another's login" {
				k.Server = "other"
			}
			g, err := s.Load(t.Context(), k)
			if err == nil || errors.Is(err, oauth.ErrNoGrant) || g != nil || strings.Contains(err.Error(), "hunter") {
				t.Errorf("%v, %v", g, err)
			}
		})
	}
}

func TestLockIsExclusive(t *testing.T) {
	s := store(t)
	unlock, err := s.Lock(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Lock(ctx, key); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a lock was taken twice: %v", err)
	}
	unlock()
	var wg sync.WaitGroup
	var inside, n atomic.Int32
	for range 8 {
		wg.Go(func() {
			unlock, err := s.Lock(t.Context(), key)
			if err != nil {
				t.Error(err)
				return
			}
			if inside.Add(1) != 1 {
				t.Error("two hold the lock")
			}
			n.Add(1)
			inside.Add(-1)
			unlock()
		})
	}
	wg.Wait()
	if n.Load() != 8 {
		t.Error(n.Load())
	}
}

func TestAGrantShowsNoSecret(t *testing.T) {
	g := grant("hunter2")
	if s := fmt.Sprintf("%v %+v %#v %s", g, *g, *g, g.Access); strings.Contains(s, "hunter") {
		t.Error(s)
	}
}
