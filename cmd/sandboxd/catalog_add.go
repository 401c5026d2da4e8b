package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/config"
	"github.com/sandboxd/sandboxd/images/catalog"
	"github.com/sandboxd/sandboxd/mcpbridge"
	"github.com/sandboxd/sandboxd/policies"
	"github.com/sandboxd/sandboxd/policies/strict"
	"github.com/sandboxd/sandboxd/sandbox"
)

type addFlags struct {
	common
	indexFlags
	config, id, isolation string
	mounts                []string
	dry, run, asJSON      bool
}

func newCatalogAdd() *cobra.Command {
	var f addFlags
	cmd := &cobra.Command{
		Use:   "add NAME",
		Short: "Add a server of the catalogue to a config, after a trial run",
		Long: `Build the server's image, start it once without any network, and compare its
package and its tools with what the catalogue says. Where both are the same, it
is written into the config with its policy, pinned to these tools:

  sandboxd catalog add github --config sandboxd.yaml --run

Needed secrets are named, to be written into the config's secrets_dir. With
--run the config is served at once.`,
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.add(cmd, args[0]) },
	}
	f.common.flags(cmd)
	f.indexFlags.flags(cmd)
	fl := cmd.Flags()
	fl.StringVarP(&f.config, "config", "c", "sandboxd.yaml", "config `FILE` to write into (YAML; made if it is missing)")
	cmd.ValidArgsFunction = completeCatalog
	fl.StringVar(&f.id, "id", "", "the server's id there (default: its name)")
	fl.StringVar(&f.isolation, "isolation", "", "container or gvisor (default: by its policy)")
	fl.StringArrayVar(&f.mounts, "mount", nil, "`SRC:DST[:rw]` shows a file or folder to the server (repeatable)")
	fl.BoolVar(&f.dry, "dry-run", false, "print what would be written; build and start nothing")
	fl.BoolVar(&f.run, "run", false, "serve the config afterwards")
	fl.BoolVar(&f.asJSON, "json", false, "print what was done as JSON")
	return cmd
}

// added is what --json prints.
type added struct {
	ID        string   `json:"id"`
	Config    string   `json:"config"`
	Package   string   `json:"package"`
	Digest    string   `json:"digest,omitempty"`
	ToolsHash string   `json:"tools_hash"`
	Secrets   []string `json:"secrets"`
	DryRun    bool     `json:"dry_run"`
}

func (f *addFlags) add(cmd *cobra.Command, name string) error {
	if err := f.load(); err != nil {
		return err
	}
	x, err := f.indexFlags.open(&f.operator)
	if err != nil {
		return err
	}
	e, err := entryOf(x, name)
	if err != nil {
		return err
	}
	if ext := strings.ToLower(filepath.Ext(f.config)); ext != ".yaml" && ext != ".yml" {
		return usagef("--config %s: only YAML is written: name a .yaml file", f.config)
	}
	if f.id == "" {
		f.id = e.Meta.Catalog.Short
	}
	if m := e.Meta.Catalog.Mount; m != "" && !mountsAt(f.mounts, m) {
		return usagef("%s works on a folder at %s: show it one with --mount FOLDER:%s:rw", name, m, m)
	}
	edit, err := f.entry(e)
	if err != nil {
		return err
	}
	p := e.Package()
	did := added{ID: f.id, Config: f.config, Package: p.RegistryType + ":" + p.Identifier + "@" + p.Version, ToolsHash: e.Meta.Catalog.ToolsHash, Secrets: edit.secrets, DryRun: f.dry}
	text, err := edit.apply(f.config)
	if err != nil {
		return err
	}
	tenant, err := checkConfig(f.config, text)
	if err != nil {
		return err
	}
	if f.dry {
		if f.asJSON {
			return writeJSON(cmd.OutOrStdout(), did)
		}
		_, err := cmd.OutOrStdout().Write(text)
		return err
	}
	var defs []json.RawMessage
	if did.Digest, defs, err = f.trial(cmd.Context(), e, tenant); err != nil {
		return err
	}
	if err := f.save(tenant, text, edit.secrets, defs); err != nil {
		return err
	}
	if f.asJSON {
		err = writeJSON(cmd.OutOrStdout(), did)
	} else {
		err = printAdded(cmd.OutOrStdout(), did, len(defs), f.run)
	}
	if err != nil || !f.run {
		return err
	}
	serve := serveFlags{common: f.common, files: []string{f.config}}
	return serve.serve(cmd.Context())
}

func printAdded(w io.Writer, did added, tools int, run bool) error {
	fmt.Fprintf(w, "added %s to %s: %s, %d tools as in the catalogue, pinned\n", did.ID, did.Config, did.Package, tools)
	for _, s := range did.Secrets {
		fmt.Fprintf(w, "  secret needed: write it to %s (mode 0600), or set %s\n", filepath.Join(filepath.Dir(did.Config), "secrets", s), config.EnvPrefix+strings.ToUpper(s))
	}
	if !run {
		fmt.Fprintf(w, "  next: sandboxd serve --config %s\n", did.Config)
	}
	return nil
}

func mountsAt(mounts []string, target string) bool {
	for _, m := range mounts {
		if spec, err := parseMount(m); err == nil && spec.target == target {
			return true
		}
	}
	return false
}

// trial builds the image and starts it once without a network: the package has
// to be the one that the catalogue names, and its tools the same.
func (f *addFlags) trial(ctx context.Context, e catalog.Entry, tenant string) (string, []json.RawMessage, error) {
	facts := e.Meta.Catalog
	l, closeAll, err := f.common.open(ctx, false)
	if err != nil {
		return "", nil, err
	}
	defer closeAll()
	s := server{tenant: tenant, name: f.id, command: e.Command(), policy: &policies.Policy{Name: "of the trial"}}
	if f.isolation != "" {
		if s.isolation, err = sandbox.ParseIsolation(f.isolation); err != nil {
			return "", nil, usageError{err}
		}
	}
	for _, v := range e.Package().Variables {
		value := v.Value
		if v.Secret || value == "" {
			value = v.Placeholder
		}
		s.env = append(s.env, v.Name+"="+value)
	}
	if facts.Mount != "" { // an empty one: a trial is shown nothing
		dir, err := os.MkdirTemp("", "sandboxd-trial-")
		if err != nil {
			return "", nil, err
		}
		defer os.RemoveAll(dir) //nolint:errcheck // it is empty
		s.mounts = []mountSpec{{source: dir, target: facts.Mount}}
	}
	p, err := l.prepare(ctx, s)
	if err != nil {
		return "", nil, err
	}
	if p.image.Lock == nil || p.image.Lock.Integrity != facts.Integrity {
		return "", nil, fmt.Errorf("the registry has another package as %s@%s than the one in the catalogue: do not run it", e.Package().Identifier, e.Package().Version)
	}
	defs, err := p.listTools(ctx)
	if err != nil {
		return "", nil, fmt.Errorf("the trial run: %w", err)
	}
	got, err := mcpbridge.ToolsHash(defs)
	if err != nil {
		return "", nil, fmt.Errorf("the trial run: %w", err)
	}
	if got != facts.ToolsHash {
		return "", nil, fmt.Errorf("%s lists other tools than the catalogue says (%s, not %s): what it depends on has changed, or it has; look at it with sandboxd run before you write it into a config by hand", e.Server.Name, got, facts.ToolsHash)
	}
	return p.image.Digest, defs, nil
}

// save writes the config, makes the secrets' folder and approves the tools.
func (f *addFlags) save(tenant string, text []byte, secrets []string, defs []json.RawMessage) error {
	dir, err := stateDir(tenant)
	if err != nil {
		return err
	}
	if len(secrets) > 0 {
		err := os.Mkdir(filepath.Join(filepath.Dir(f.config), "secrets"), 0o700)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if err := mcpbridge.OpenPins(mcpbridge.PinsDir(dir)).ApproveAll(f.id, defs); err != nil {
		return err
	}
	return writeConfig(f.config, text)
}

// configEdit adds one server to a config.
type configEdit struct {
	id      string
	server  yaml.Node
	secrets []string
}

// entry is the server as the config has it.
func (f *addFlags) entry(e catalog.Entry) (*configEdit, error) {
	edit := &configEdit{id: f.id, secrets: []string{}}
	argv := e.Command()
	entry := struct {
		ID        string            `yaml:"id"`
		Label     string            `yaml:"label,omitempty"`
		Transport string            `yaml:"transport"`
		Command   string            `yaml:"command"`
		Args      []string          `yaml:"args"`
		Env       map[string]string `yaml:"env,omitempty"`
		Mounts    []string          `yaml:"mounts,omitempty"`
		Isolation string            `yaml:"isolation,omitempty"`
		Policy    any               `yaml:"policy,omitempty"`
		Pin       string            `yaml:"pin"`
	}{ID: f.id, Label: e.Server.Title, Transport: "stdio", Command: argv[0], Args: argv[1:], Env: map[string]string{}, Isolation: f.isolation, Pin: "strict"}
	for _, v := range e.Package().Variables {
		entry.Env[v.Name] = v.Value
		if v.Secret {
			name := strings.ToLower(v.Name)
			entry.Env[v.Name] = "{{secrets." + name + "}}"
			edit.secrets = append(edit.secrets, name)
		}
	}
	for _, m := range f.mounts {
		spec, err := parseMount(m)
		if err != nil {
			return nil, err
		}
		m = spec.source + ":" + spec.target
		if spec.readWrite {
			m += ":rw"
		}
		entry.Mounts = append(entry.Mounts, m)
	}
	if len(e.Meta.Catalog.Policy) > 0 {
		if err := json.Unmarshal(e.Meta.Catalog.Policy, &entry.Policy); err != nil {
			return nil, fmt.Errorf("the catalogue's policy for %s cannot be read: %w", e.Server.Name, err)
		}
	}
	return edit, edit.server.Encode(entry)
}

const newConfig = "# What `sandboxd serve --config` runs; docs/config.md has the format.\nmcp_servers: []\n"

// apply returns the config's text with the server in it. Comments stay.
func (c *configEdit) apply(path string) ([]byte, error) {
	data, err := policies.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		data, err = []byte(newConfig), nil
	}
	if err != nil {
		return nil, usageError{err}
	}
	r := strict.NewReporter(path)
	if strict.ParseYAML(r, data); r.Err() != nil {
		return nil, usageError{r.Err()}
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil || len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, usagef("%s is no config: want a mapping", path)
	}
	root := doc.Content[0]
	list := child(root, "mcp_servers")
	switch {
	case list == nil:
		list = &yaml.Node{Kind: yaml.SequenceNode}
		root.Content = append(root.Content, scalarNode("mcp_servers"), list)
	case list.Kind != yaml.SequenceNode:
		return nil, usagef("%s: mcp_servers is no list", path)
	}
	list.Style = 0
	list.Content = append(list.Content, &c.server)
	if len(c.secrets) > 0 && child(root, "secrets_dir") == nil {
		comment := root.Content[0].HeadComment
		root.Content[0].HeadComment = ""
		key := scalarNode("secrets_dir")
		key.HeadComment = comment
		root.Content = append([]*yaml.Node{key, scalarNode("secrets")}, root.Content...)
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	err = enc.Encode(&doc)
	return b.Bytes(), err
}

func child(m *yaml.Node, name string) *yaml.Node {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == name {
			return m.Content[i+1]
		}
	}
	return nil
}

func scalarNode(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: s} }
