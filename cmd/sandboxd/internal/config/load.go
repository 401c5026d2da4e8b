package config

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sandboxd/sandboxd/policies"
	"github.com/sandboxd/sandboxd/policies/strict"
)

// Load reads and merges files, the earlier ones being the more general: a
// later file's server takes the place of an earlier one's with the same name.
// The names end in .yaml, .yml or .toml. The error is a strict.Faults with all
// faults of all files, or says why a file cannot be read.
func Load(opts Options, paths ...string) (*Config, error) {
	if len(paths) == 0 {
		return nil, errors.New("config: no file was named: use --config FILE")
	}
	var docs []document
	for _, path := range paths {
		data, err := policies.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("config: %w", err)
		}
		abs, err := filepath.Abs(path)
		if err != nil {
			return nil, fmt.Errorf("config: %w", err)
		}
		docs = append(docs, document{name: path, dir: filepath.Dir(abs), data: data})
	}
	return read(opts, docs)
}

type document struct {
	name, dir string
	data      []byte
}

// read parses documents, then decides what of them is served.
func read(opts Options, docs []document) (*Config, error) {
	if opts.LookupEnv == nil {
		opts.LookupEnv = os.LookupEnv
	}
	cfg := &Config{Listen: DefaultListen, Tenant: DefaultTenant}
	var files []*file
	found := map[string]bool{}
	for _, d := range docs {
		f := &file{r: strict.NewReporter(d.name), dir: d.dir, policies: opts.Policies, secrets: secrets{env: opts.LookupEnv, found: found}}
		files = append(files, f)
		f.decode(cfg, d)
	}
	cfg.Servers = merge(files)
	cfg.Outbound.Workflows = publish(files)
	cfg.Clients = mergeClients(files, cfg.Servers)
	var faults strict.Faults
	for _, f := range files {
		var own strict.Faults
		if errors.As(f.r.Err(), &own) {
			faults = append(faults, own...)
		}
		faults = append(faults, f.policyFaults...)
		cfg.Warnings = append(cfg.Warnings, f.r.Warnings()...)
		cfg.Warnings = append(cfg.Warnings, f.policyWarnings...)
	}
	if len(faults) > 0 {
		return nil, faults
	}
	for _, v := range slices.Sorted(maps.Keys(found)) {
		cfg.Secrets = append(cfg.Secrets, Secret{v})
	}
	return cfg, nil
}

// file is one document on its way to a Config.
type file struct {
	r        *strict.Reporter
	dir      string
	policies policies.Loader
	secrets  secrets
	regs     []*registration
	refs     []reference
	callers  []clientEntry

	published []published
	// of policy files that it names
	policyFaults   strict.Faults
	policyWarnings []strict.Fault
}

var tenantName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

func (f *file) decode(cfg *Config, d document) {
	var root *strict.Node
	switch ext := strings.ToLower(filepath.Ext(d.name)); ext {
	case ".yaml", ".yml":
		root = strict.ParseYAML(f.r, d.data)
	case ".toml":
		root = ParseTOML(f.r, d.data)
	default:
		f.r.Errorf(nil, "", "the name must end in .yaml, .yml or .toml")
	}
	if root == nil {
		return
	}
	m := f.r.Map(root, "", "listen", "tenant", "max_in_flight", "event_results", "secrets_dir", "clients", "servers", "mcp_servers", "outbound")
	if s := m.String("listen"); s != "" {
		cfg.Listen = s
		f.listen(m, s)
	}
	if s := m.String("tenant"); s != "" {
		cfg.Tenant = s
		if !tenantName.MatchString(s) {
			m.Errorf("tenant", "want lower-case letters, digits and dashes, 63 at most")
		}
	}
	if m.Has("max_in_flight") {
		cfg.InFlight = int(m.Int("max_in_flight", 1, maxInFlight))
	}
	if m.Has("event_results") {
		cfg.EventResults = m.Bool("event_results")
	}
	f.secretsDir(m)
	f.clients(m)
	f.named(m)
	f.listed(m)
	f.outbound(cfg, m)
}

func (f *file) listen(m strict.Map, s string) {
	host, port, err := net.SplitHostPort(s)
	n, numErr := strconv.ParseUint(port, 10, 16)
	if err != nil || numErr != nil || strconv.FormatUint(n, 10) != port {
		m.Errorf("listen", "want HOST:PORT such as %s", DefaultListen)
		return
	}
	addr, err := netip.ParseAddr(host)
	switch {
	case host == "localhost" || err == nil && addr.IsLoopback():
	case host != "" && err != nil:
		m.Errorf("listen", "the host must be an address or localhost")
	default:
		f.r.Warnf(m.Get("listen"), m.Path("listen"), "is not a loopback address: whoever reaches it can call every tool")
	}
}

func (f *file) secretsDir(m strict.Map) {
	dir := m.String("secrets_dir")
	if dir == "" {
		return
	}
	dir = f.path(dir)
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		m.Errorf("secrets_dir", "%s: %v", dir, pathless(err))
	case !info.IsDir():
		m.Errorf("secrets_dir", "%s is not a folder", dir)
	default:
		// Whoever may write the folder may put another file in a secret's place.
		if err := ownersOnly(info, 0o022); err != nil {
			m.Errorf("secrets_dir", "%s %v: chmod 700 it", dir, err)
			return
		}
		f.secrets.dir = dir
	}
}

// path makes a path of the document absolute.
func (f *file) path(p string) string {
	if filepath.IsAbs(p) {
		return filepath.Clean(p)
	}
	return filepath.Join(f.dir, p)
}
