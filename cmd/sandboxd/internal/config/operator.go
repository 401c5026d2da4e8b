package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/registries"
	"github.com/sandboxd/sandboxd/images/catalog"
	"github.com/sandboxd/sandboxd/netguard"
	"github.com/sandboxd/sandboxd/policies"
	"github.com/sandboxd/sandboxd/policies/strict"
)

// DefaultOperator is the operator's settings that are read where nothing else
// is named.
const DefaultOperator = "/etc/sandboxd/operator.yaml"

// Operator is what whoever runs the guard decides, and no policy can: the zero
// value leaves all of it to the host's defaults.
type Operator struct {
	// File is where it was read; empty where there is no file.
	File string
	// Resolver is the upstream DNS server, ADDRESS or ADDRESS:PORT.
	Resolver string
	// Records is the file to which decision records are appended.
	Records string
	// Refused are ranges that nothing may reach, whatever a policy says.
	Refused []netip.Prefix
	// SecretsDir is a folder with one file a secret; empty means variables only.
	SecretsDir string
	// Registries are facts about package registries, by name.
	Registries map[string]Registry
	// CatalogKeys are those whose catalogues are trusted.
	CatalogKeys []catalog.Key
}

// Registry is what an operator knows of one package registry.
type Registry struct {
	// Trusted are ranges outside the public space on which its hosts may sit.
	Trusted []netip.Prefix
	// URLs are its places beside those that the clients name.
	URLs []string
	// Mirror takes the place of what the clients name, where builds fetch.
	Mirror string
	// User and the secret that TokenFrom refers to are what Mirror is asked with.
	User, TokenFrom string
}

// Mirrors are those of every registry that has one, by its name.
func (o *Operator) Mirrors() map[string]string {
	out := map[string]string{}
	for name, reg := range o.Registries {
		if reg.Mirror != "" {
			out[name] = reg.Mirror
		}
	}
	return out
}

// Token looks up the secret that a registry's mirror is asked with; empty where
// it wants none.
func (o *Operator) Token(registry string) (Secret, error) {
	text := o.Registries[registry].TokenFrom
	if text == "" {
		return Secret{}, nil
	}
	s, err := secrets{env: os.LookupEnv, dir: o.SecretsDir}.expand(text)
	if err != nil {
		return s, fmt.Errorf("operator's settings: registries.%s.token: %w", registry, err)
	}
	return s, nil
}

// URLs are those of every registry, by its name.
func (o *Operator) URLs() map[string][]string {
	out := map[string][]string{}
	for name, reg := range o.Registries {
		out[name] = reg.URLs
	}
	return out
}

// LoadOperator reads the operator's settings. Without a path it reads
// DefaultOperator, where that exists. A file that somebody other than root or
// this user could have written is refused.
func LoadOperator(path string) (*Operator, error) {
	if path == "" {
		return loadOperator(DefaultOperator, true)
	}
	return loadOperator(path, false)
}

func loadOperator(path string, optional bool) (*Operator, error) {
	info, err := os.Stat(path)
	switch {
	case optional && errors.Is(err, fs.ErrNotExist):
		return &Operator{}, nil
	case err != nil:
		return nil, fmt.Errorf("operator's settings %s: %w", path, pathless(err))
	}
	if err := unforgeable(path, info); err != nil {
		return nil, fmt.Errorf("operator's settings %w", err)
	}
	data, err := policies.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("operator's settings: %w", err)
	}
	return parseOperator(path, data)
}

// unforgeable refuses a file that others could change, or put another in the
// place of.
func unforgeable(path string, info fs.FileInfo) error {
	if err := ownersOnly(info, 0o022); err != nil {
		return fmt.Errorf("%s %w: chown it to root and chmod 644 it", path, err)
	}
	dir := filepath.Dir(path)
	parent, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("%s: %w", dir, pathless(err))
	}
	if parent.Mode()&fs.ModeSticky != 0 {
		return nil // only its owner can move the file away
	}
	if err := ownersOnly(parent, 0o022); err != nil {
		return fmt.Errorf("%s: its folder %w: chmod 755 it", path, err)
	}
	return nil
}

func parseOperator(name string, data []byte) (*Operator, error) {
	r := strict.NewReporter(name)
	root := strict.ParseYAML(r, data)
	if root == nil {
		return nil, r.Err()
	}
	m := r.Map(root, "", "resolver", "records", "refuse_cidrs", "registries", "catalog", "secrets_dir")
	o := &Operator{
		File:     name,
		Resolver: m.String("resolver"), Records: m.String("records"),
		Refused: prefixes(r, m, "refuse_cidrs", canonical), SecretsDir: m.String("secrets_dir"),
	}
	if o.SecretsDir != "" && !filepath.IsAbs(o.SecretsDir) {
		m.Errorf("secrets_dir", "want an absolute path")
	}
	if o.Resolver != "" {
		if _, err := netguard.NewUpstream(o.Resolver); err != nil {
			m.Errorf("resolver", "want a DNS server's ADDRESS or ADDRESS:PORT")
		}
	}
	if o.Records != "" && o.Records != "-" && !filepath.IsAbs(o.Records) {
		m.Errorf("records", "want an absolute path, or - for stderr")
	}
	for i, n := range r.Map(m.Get("catalog"), "catalog", "keys").List("keys") {
		key, err := catalog.ParseKey(n.Text)
		if n.Kind != strict.String || err != nil {
			r.Errorf(n, strict.Index("catalog.keys", i), "want a minisign public key, the line that begins with RW")
			continue
		}
		o.CatalogKeys = append(o.CatalogKeys, key)
	}
	if m.Get("registries") != nil {
		regs := r.Map(m.Get("registries"), "registries", policies.RegistryNames()...)
		o.Registries = map[string]Registry{}
		for _, reg := range policies.RegistryNames() {
			if regs.Get(reg) != nil {
				o.Registries[reg] = registry(r, regs.Get(reg), regs.Path(reg))
			}
		}
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	return o, nil
}

func registry(r *strict.Reporter, n *strict.Node, path string) Registry {
	m := r.Map(n, path, "trusted_cidrs", "urls", "mirror", "user", "token")
	out := Registry{
		Trusted: prefixes(r, m, "trusted_cidrs", netguard.CheckTrusted),
		Mirror:  m.String("mirror"), User: m.String("user"), TokenFrom: m.String("token"),
	}
	if _, ok := registries.Origin(out.Mirror); out.Mirror != "" && (!ok || strings.Contains(out.Mirror, "@")) {
		m.Errorf("mirror", "want an http or https URL without credentials: those go into token")
	}
	switch {
	case out.TokenFrom == "" && out.User == "":
	case out.Mirror == "":
		m.Errorf("token", "is for a mirror, and none is named")
	case !mentions(out.TokenFrom):
		// Not shown: it may be the very token.
		m.Errorf("token", "want a reference to a secret, written {{secrets.NAME}}")
	}
	for i, item := range m.List("urls") {
		at := strict.Index(m.Path("urls"), i)
		if _, ok := registries.Origin(item.Text); item.Kind != strict.String || !ok || strings.Contains(item.Text, "@") {
			r.Errorf(item, at, "want an http or https URL without credentials")
			continue
		}
		out.URLs = append(out.URLs, item.Text)
	}
	return out
}

// canonical refuses a prefix that netip reads and that is not written as it
// prints.
func canonical(p netip.Prefix) error {
	if p != p.Masked() || p.Addr().Is4In6() {
		return errors.New("want a range in canonical form, without bits below its length")
	}
	return nil
}

func prefixes(r *strict.Reporter, m strict.Map, key string, check func(netip.Prefix) error) []netip.Prefix {
	var out []netip.Prefix
	for i, item := range m.List(key) {
		at := strict.Index(m.Path(key), i)
		p, err := netip.ParsePrefix(item.Text)
		if item.Kind != strict.String || err != nil {
			r.Errorf(item, at, "want an address range such as 10.20.0.0/16")
			continue
		}
		if err := check(p); err != nil {
			r.Errorf(item, at, "%v", err)
			continue
		}
		out = append(out, p)
	}
	return out
}
