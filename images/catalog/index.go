package catalog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Meta is the name under which an index and its entries keep what is not the
// registry's, in their _meta.
const Meta = "io.github.sandboxd/catalog"

// MaxBytes bounds an index.
const MaxBytes = 8 << 20

// format is the one version of the form that is known.
const format = 1

// Index is a list of servers in the form of the registry's API.
type Index struct {
	Servers  []Entry   `json:"servers"`
	Metadata Metadata  `json:"metadata"`
	Meta     IndexMeta `json:"_meta"`
}

// Metadata is the registry's own.
type Metadata struct {
	Count int `json:"count"`
}

// IndexMeta holds what an index says about itself.
type IndexMeta struct {
	Catalog Release `json:"io.github.sandboxd/catalog"`
}

// Release says which index this is.
type Release struct {
	Format int `json:"format"`
	// Name is the catalogue's; versions count for each name apart.
	Name string `json:"name"`
	// Version grows with each release: an older one is refused after a newer.
	Version int64     `json:"version"`
	Created time.Time `json:"created"`
	// Expires is when nobody should trust it any more.
	Expires time.Time `json:"expires"`
}

// Entry is one server.
type Entry struct {
	Server Server    `json:"server"`
	Meta   EntryMeta `json:"_meta"`
}

// EntryMeta holds what an entry adds to the registry's server.
type EntryMeta struct {
	Catalog Facts `json:"io.github.sandboxd/catalog"`
}

// Server is the registry's server.json, as far as it is used here.
type Server struct {
	Schema      string      `json:"$schema,omitempty"`
	Name        string      `json:"name"`
	Title       string      `json:"title,omitempty"`
	Description string      `json:"description"`
	Version     string      `json:"version"`
	Repository  *Repository `json:"repository,omitempty"`
	Packages    []Package   `json:"packages"`
}

// Repository is where a server's source is.
type Repository struct {
	URL    string `json:"url"`
	Source string `json:"source"`
}

// Package is one way to run a server.
type Package struct {
	RegistryType string     `json:"registryType"`
	Identifier   string     `json:"identifier"`
	Version      string     `json:"version"`
	Transport    Transport  `json:"transport"`
	Arguments    []Argument `json:"packageArguments,omitempty"`
	Variables    []Variable `json:"environmentVariables,omitempty"`
}

// Transport is how a package is spoken to.
type Transport struct {
	Type string `json:"type"`
}

// Argument is one argument of a package.
type Argument struct {
	Type  string `json:"type"` // positional
	Value string `json:"value"`
}

// Variable is one that a server wants. Value is written into the config; a
// secret has none. Placeholder is what its tools were listed with.
type Variable struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Required    bool   `json:"isRequired,omitempty"`
	Secret      bool   `json:"isSecret,omitempty"`
	Value       string `json:"value,omitempty"`
	Placeholder string `json:"placeholder,omitempty"`
}

// Facts are what a sandbox wants to know, as seen in a real run.
type Facts struct {
	// Short is the name that people use.
	Short string `json:"short"`
	// Integrity is the package's own hash, as its registry has it.
	Integrity string `json:"integrity"`
	// Tools and ToolsHash are what it listed without any network.
	Tools     []string `json:"tools"`
	ToolsHash string   `json:"toolsHash"`
	// Policy is a policy in sandboxd's form; absent opens nothing.
	Policy json.RawMessage `json:"policy,omitempty"`
	// Mount is the target of a folder that the server needs; empty is none.
	Mount string `json:"mount,omitempty"`
	// Tiers are those in which it listed these tools.
	Tiers []string `json:"tiers"`
	// Platform is where that was.
	Platform string `json:"platform"`
}

var (
	shortRE     = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,40}$`)
	nameRE      = regexp.MustCompile(`^[A-Za-z0-9.-]{1,100}/[A-Za-z0-9._-]{1,100}$`)
	hashRE      = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	integrityRE = regexp.MustCompile(`^sha512-[A-Za-z0-9+/]{86}==$`)
	exactRE     = regexp.MustCompile(`^\d{1,9}\.\d{1,9}\.\d{1,9}(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)
	envRE       = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,255}$`)
	mountRE     = regexp.MustCompile(`^(/[A-Za-z0-9._-]+)+$`)
	packageRE   = regexp.MustCompile(`^[A-Za-z0-9@/._~-]{1,214}$`)
)

// Parse reads an index and checks all of it. Members that are not known are
// errors: an older sandboxd must not pass over what a newer one relies on.
func Parse(data []byte) (*Index, error) {
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("catalogue: the index has %d bytes, more than the %d that are read", len(data), MaxBytes)
	}
	var x Index
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&x); err != nil {
		return nil, fmt.Errorf("catalogue: the index cannot be read: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("catalogue: something follows the index")
	}
	r := x.Meta.Catalog
	switch {
	case r.Format != format:
		return nil, fmt.Errorf("catalogue: format %d is not known: use a newer sandboxd", r.Format)
	case !shortRE.MatchString(r.Name):
		return nil, errors.New("catalogue: the index has no sound name")
	case r.Version < 1:
		return nil, errors.New("catalogue: the index has no version")
	case !r.Expires.After(r.Created):
		return nil, errors.New("catalogue: the index ends before it begins")
	case x.Metadata.Count != len(x.Servers):
		return nil, fmt.Errorf("catalogue: the index says that it has %d servers, and has %d", x.Metadata.Count, len(x.Servers))
	}
	seen := map[string]bool{}
	for i := range x.Servers {
		e := &x.Servers[i]
		if err := e.check(); err != nil {
			return nil, fmt.Errorf("catalogue: server %d (%.100q): %w", i, e.Server.Name, err)
		}
		for _, n := range []string{e.Meta.Catalog.Short, e.Server.Name} {
			if seen[n] {
				return nil, fmt.Errorf("catalogue: two servers have the name %.100q", n)
			}
			seen[n] = true
		}
	}
	return &x, nil
}

func (e *Entry) check() error {
	s, f := &e.Server, &e.Meta.Catalog
	switch {
	case !nameRE.MatchString(s.Name):
		return errors.New("its name is not of the registry's form")
	case !shortRE.MatchString(f.Short):
		return errors.New("it has no sound short name")
	case len(s.Packages) != 1:
		return errors.New("it has not one package")
	case !hashRE.MatchString(f.ToolsHash) || len(f.Tools) == 0:
		return errors.New("it has no hash of its tools")
	case f.Mount != "" && (!mountRE.MatchString(f.Mount) || path.Clean(f.Mount) != f.Mount):
		return errors.New("its mount is no absolute path")
	case len(s.Description) > 1000 || len(s.Title) > 200:
		return errors.New("its words are too many")
	}
	p := s.Packages[0]
	switch {
	case p.RegistryType != "npm":
		return fmt.Errorf("packages of type %.40q are not known", p.RegistryType)
	case !packageRE.MatchString(p.Identifier) || !exactRE.MatchString(p.Version):
		return errors.New("its package is not pinned to one version")
	case !integrityRE.MatchString(f.Integrity):
		return errors.New("its package has no integrity hash")
	case p.Transport.Type != "stdio":
		return errors.New("it does not speak stdio")
	}
	for _, v := range p.Variables {
		if !envRE.MatchString(v.Name) || v.Secret && v.Value != "" || strings.ContainsRune(v.Value+v.Placeholder, 0) {
			return fmt.Errorf("the variable %.80q is not sound", v.Name)
		}
	}
	for _, a := range p.Arguments {
		if a.Type != "positional" || strings.ContainsRune(a.Value, 0) {
			return errors.New("it has an argument of a type that is not known")
		}
	}
	return nil
}

// Find returns the server with a short or a full name.
func (x *Index) Find(name string) (Entry, bool) {
	i := slices.IndexFunc(x.Servers, func(e Entry) bool { return e.Meta.Catalog.Short == name || e.Server.Name == name })
	if i < 0 {
		return Entry{}, false
	}
	return x.Servers[i], true
}

// Search returns the servers in whose names, package, description or tools
// every word occurs, whatever its case.
func (x *Index) Search(words ...string) []Entry {
	var out []Entry
	for _, e := range x.Servers {
		text := strings.ToLower(strings.Join(append([]string{
			e.Meta.Catalog.Short, e.Server.Name, e.Server.Title, e.Server.Description, e.Server.Packages[0].Identifier,
		}, e.Meta.Catalog.Tools...), "\n"))
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, strings.ToLower(w)) }) {
			out = append(out, e)
		}
	}
	return out
}

// Package is the one package of the entry.
func (e *Entry) Package() Package { return e.Server.Packages[0] }

// Command starts the server, as a client's configuration has it.
func (e *Entry) Command() []string {
	p := e.Package()
	out := []string{"npx", "-y", p.Identifier + "@" + p.Version}
	for _, a := range p.Arguments {
		out = append(out, a.Value)
	}
	return out
}
