package catalog

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"aead.dev/minisign"
)

func keys(t testing.TB) (Key, []byte) {
	t.Helper()
	pub, priv, err := minisign.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := priv.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	k, err := ParseKey(pub.String())
	if err != nil {
		t.Fatal(err)
	}
	return k, text
}

// edited is the shipped index with a change.
func edited(t testing.TB, change func(*Index)) []byte {
	t.Helper()
	x, _, err := Shipped()
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(x)
	}
	b, err := json.Marshal(x)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestShippedIndex(t *testing.T) {
	x, data, err := Shipped()
	if err != nil {
		t.Fatal(err)
	}
	if len(x.Servers) < 10 || x.Meta.Catalog.Name != "sandboxd" {
		t.Fatalf("%d servers of %q", len(x.Servers), x.Meta.Catalog.Name)
	}
	for _, e := range x.Servers {
		if len(e.Server.Description) == 0 || len([]rune(e.Server.Description)) > 100 {
			t.Errorf("%s: the registry allows 1 to 100 characters of description", e.Server.Name)
		}
		for _, v := range e.Package().Variables {
			if v.Secret && v.Placeholder == "" {
				t.Errorf("%s: no placeholder for %s: its tools could not be listed", e.Server.Name, v.Name)
			}
		}
	}
	if bytes.Contains(data, []byte("://registry")) || bytes.Contains(data, []byte("resolved")) {
		t.Error("the index names a registry's host")
	}
	if e, ok := x.Find("github"); !ok || strings.Join(e.Command(), " ") != "npx -y @modelcontextprotocol/server-github@"+e.Server.Version {
		t.Errorf("github: %v", e.Command())
	}
	if got := x.Search("GITHUB", "list_commits"); len(got) != 1 || got[0].Meta.Catalog.Short != "github" {
		t.Errorf("search: %v", got)
	}
	if got := x.Search("github", "no such word"); len(got) != 0 {
		t.Errorf("search: %v", got)
	}
}

func TestUnsoundIndexes(t *testing.T) {
	first := func(change func(*Entry)) func(*Index) { return func(x *Index) { change(&x.Servers[0]) } }
	for word, change := range map[string]func(*Index){
		"format 2":           func(x *Index) { x.Meta.Catalog.Format = 2 },
		"no version":         func(x *Index) { x.Meta.Catalog.Version = 0 },
		"ends before":        func(x *Index) { x.Meta.Catalog.Expires = x.Meta.Catalog.Created },
		"sound name":         func(x *Index) { x.Meta.Catalog.Name = "../x" },
		"and has":            func(x *Index) { x.Metadata.Count++ },
		"two servers":        func(x *Index) { x.Servers[1] = x.Servers[0] },
		"short name":         first(func(e *Entry) { e.Meta.Catalog.Short = "a/b" }),
		"registry's form":    first(func(e *Entry) { e.Server.Name = "x" }),
		"one package":        first(func(e *Entry) { e.Server.Packages = nil }),
		"integrity hash":     first(func(e *Entry) { e.Meta.Catalog.Integrity = "sha1-x" }),
		"hash of its tools":  first(func(e *Entry) { e.Meta.Catalog.ToolsHash = "" }),
		"not pinned":         first(func(e *Entry) { e.Server.Packages[0].Version = "latest" }),
		"not known":          first(func(e *Entry) { e.Server.Packages[0].RegistryType = "mcpb" }),
		"speak stdio":        first(func(e *Entry) { e.Server.Packages[0].Transport.Type = "sse" }),
		"absolute path":      first(func(e *Entry) { e.Meta.Catalog.Mount = "/a/../b" }),
		"variable":           first(func(e *Entry) { e.Server.Packages[0].Variables = []Variable{{Name: "A-B"}} }),
		"variable \"S":       first(func(e *Entry) { e.Server.Packages[0].Variables = []Variable{{Name: "S", Secret: true, Value: "x"}} }),
		"argument of a type": first(func(e *Entry) { e.Server.Packages[0].Arguments = []Argument{{Type: "named"}} }),
	} {
		if _, err := Parse(edited(t, change)); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", word, err)
		}
	}
	good := edited(t, nil)
	for word, data := range map[string][]byte{
		"more than":  bytes.Repeat([]byte(" "), MaxBytes+1),
		"follows":    append(good, '{'),
		"cannot be":  bytes.Replace(good, []byte(`"servers"`), []byte(`"unknown":1,"servers"`), 1),
		"be read":    good[:len(good)/2],
		"be read: E": nil,
	} {
		if _, err := Parse(data); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", word, err)
		}
	}
}

func TestSignedIndexes(t *testing.T) {
	key, secret := keys(t)
	other, otherSecret := keys(t)
	data := edited(t, nil)
	sig, err := Sign(data, secret, "")
	if err != nil {
		t.Fatal(err)
	}
	x, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	now := x.Meta.Catalog.Created
	if _, err := Verify(data, sig, []Key{other, key}, now); err != nil {
		t.Fatal(err)
	}
	tampered := edited(t, func(x *Index) { x.Servers[0].Meta.Catalog.Policy = json.RawMessage(`{"egress":{"mode":"public"}}`) })
	foreign, err := Sign(data, otherSecret, "")
	if err != nil {
		t.Fatal(err)
	}
	// The comment that a signature covers is part of it.
	lines := strings.Split(string(sig), "\n")
	lines[2] = strings.Replace(lines[2], "version 1", "version 9", 1)
	for name, c := range map[string]struct {
		data, sig []byte
		keys      []Key
		want      error
	}{
		"no key":          {data, sig, nil, ErrUntrusted},
		"another key":     {data, sig, []Key{other}, ErrUntrusted},
		"another's":       {data, foreign, []Key{key}, ErrUntrusted},
		"tampered":        {tampered, sig, []Key{key}, ErrUntrusted},
		"no signature":    {data, nil, []Key{key}, ErrUntrusted},
		"another comment": {data, []byte(strings.Join(lines, "\n")), []Key{key}, ErrUntrusted},
		"cut":             {data, sig[:len(sig)-20], []Key{key}, ErrUntrusted},
	} {
		if _, err := Verify(c.data, c.sig, c.keys, now); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Verify(data, sig, []Key{key}, x.Meta.Catalog.Expires); !errors.Is(err, ErrExpired) {
		t.Errorf("at its end: %v", err)
	}
	if _, err := Sign([]byte("{}"), secret, ""); err == nil {
		t.Error("an unsound index was signed")
	}
	if _, err := Sign(data, []byte("RWx"), ""); err == nil {
		t.Error("signed with no key")
	}
	for _, s := range []string{"", "RW", "ssh-ed25519 AAAA", key.String()[1:]} {
		if _, err := ParseKey(s); err == nil {
			t.Errorf("%q is a key", s)
		}
	}
}

func TestNoWayBack(t *testing.T) {
	s := Seen{filepath.Join(t.TempDir(), "state", "seen.json")}
	at := func(name string, v int64) Release { return Release{Name: name, Version: v} }
	for _, ok := range []struct {
		r    Release
		hash string
		want error
	}{
		{at("a", 3), "x", nil},
		{at("a", 3), "x", nil},
		{at("a", 2), "w", ErrRollback},
		{at("a", 3), "y", ErrRollback},
		{at("b", 1), "z", nil},
		{at("a", 4), "v", nil},
		{at("a", 3), "x", ErrRollback},
	} {
		if err := s.Check(ok.r, ok.hash); !errors.Is(err, ok.want) {
			t.Errorf("%+v %s: %v, want %v", ok.r, ok.hash, err, ok.want)
		}
	}
	if err := os.WriteFile(s.Path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Check(at("a", 9), "x"); err == nil {
		t.Error("what was seen cannot be read, and nothing was refused")
	}
	if err := os.Remove(s.Path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(s.Path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Check(at("a", 9), "x"); err == nil {
		t.Error("what was seen cannot be noted, and nothing was refused")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(edited(f, nil))
	f.Add([]byte(`{"servers":[],"metadata":{"count":0},"_meta":{"io.github.sandboxd/catalog":{"format":1,"name":"x","version":1,"created":"2026-01-01T00:00:00Z","expires":"2027-01-01T00:00:00Z"}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		x, err := Parse(data)
		if err != nil {
			return
		}
		for _, e := range x.Servers {
			if c := e.Command(); strings.HasPrefix(c[2], "-") || len(x.Search()) != len(x.Servers) || time.Time.IsZero(x.Meta.Catalog.Expires) {
				t.Fatalf("%q", c)
			}
		}
	})
}
