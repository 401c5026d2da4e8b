package catalog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"aead.dev/minisign"
)

// Sentinels for errors.Is.
var (
	// ErrUntrusted marks an index whose signature is missing, wrong, or by a key
	// that the operator did not name.
	ErrUntrusted = errors.New("catalogue: not trusted")
	// ErrExpired marks an index past its end.
	ErrExpired = errors.New("catalogue: expired")
	// ErrRollback marks an index older than one that was seen before, or another
	// one of the same version.
	ErrRollback = errors.New("catalogue: older than what was seen")
)

// Key is a public key in minisign's form.
type Key struct{ key minisign.PublicKey }

// ParseKey reads a public key: the one line of minisign's .pub file that begins
// with RW, or the whole file.
func ParseKey(s string) (Key, error) {
	var k Key
	if err := k.key.UnmarshalText([]byte(strings.TrimSpace(s))); err != nil {
		return Key{}, errors.New("not a minisign public key: want the line that begins with RW")
	}
	return k, nil
}

// String is the key's one line.
func (k Key) String() string { return k.key.String() }

// Verify checks an index from outside against trusted keys, and reads it. sig
// is the text of its .minisig file.
func Verify(data, sig []byte, keys []Key, now time.Time) (*Index, error) {
	if len(keys) == 0 {
		return nil, fmt.Errorf("%w: the operator names no key: write catalog: {keys: [RW…]} into the operator's settings", ErrUntrusted)
	}
	var s minisign.Signature
	if err := s.UnmarshalText(sig); err != nil {
		return nil, fmt.Errorf("%w: its signature cannot be read", ErrUntrusted)
	}
	ok := false
	for _, k := range keys {
		ok = ok || k.key.ID() == s.KeyID && minisign.Verify(k.key, data, sig)
	}
	if !ok {
		return nil, fmt.Errorf("%w: no trusted key has signed just this (it says key %X)", ErrUntrusted, s.KeyID)
	}
	x, err := Parse(data)
	if err != nil {
		return nil, err
	}
	if r := x.Meta.Catalog; !now.Before(r.Expires) {
		return nil, fmt.Errorf("%w: %s version %d ended on %s: get a newer one", ErrExpired, r.Name, r.Version, r.Expires.Format(time.DateOnly))
	}
	return x, nil
}

// Sign signs an index that is sound. key is the text of a minisign secret key
// file, password opens it where it is encrypted.
func Sign(data, key []byte, password string) ([]byte, error) {
	x, err := Parse(data)
	if err != nil {
		return nil, err
	}
	var private minisign.PrivateKey
	if minisign.IsEncrypted(key) {
		private, err = minisign.DecryptKey(password, key)
	} else {
		err = private.UnmarshalText(key)
	}
	if err != nil {
		return nil, errors.New("catalogue: the secret key cannot be read: want minisign's, and its password")
	}
	r := x.Meta.Catalog
	return minisign.SignWithComments(private, data, fmt.Sprintf("%s version %d until %s", r.Name, r.Version, r.Expires.Format(time.DateOnly)), "signature of a sandboxd catalogue"), nil
}

// Seen keeps the newest version of each catalogue in one file.
type Seen struct{ Path string }

type seen struct {
	Version int64  `json:"version"`
	Hash    string `json:"hash"`
}

// Check refuses an index older than one that was seen, or another one of the
// same version, and notes it. hash is that of the index's bytes. What cannot be
// read or noted refuses.
func (s Seen) Check(r Release, hash string) error {
	all := map[string]seen{}
	b, err := os.ReadFile(s.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("catalogue: what was seen before: %w", err)
	default:
		if err := json.Unmarshal(b, &all); err != nil {
			return fmt.Errorf("catalogue: %s cannot be read: remove it to forget what was seen before", s.Path)
		}
	}
	old, known := all[r.Name]
	switch {
	case known && r.Version < old.Version:
		return fmt.Errorf("%w: %s version %d, after version %d was used here: somebody may be holding you back", ErrRollback, r.Name, r.Version, old.Version)
	case known && r.Version == old.Version && hash != old.Hash:
		return fmt.Errorf("%w: another %s version %d than the one that was used here", ErrRollback, r.Name, r.Version)
	case known && r.Version == old.Version:
		return nil
	}
	all[r.Name] = seen{r.Version, hash}
	if b, err = json.Marshal(all); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(s.Path), 0o700); err != nil {
		return fmt.Errorf("catalogue: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(s.Path), ".seen-*")
	if err != nil {
		return fmt.Errorf("catalogue: %w", err)
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), s.Path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("catalogue: %w", err), os.Remove(f.Name()))
	}
	return nil
}
