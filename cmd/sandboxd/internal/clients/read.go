package clients

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/config"
	"github.com/sandboxd/sandboxd/policies/strict"
)

// pair is one variable or header, in the order of the file.
type pair struct{ name, value string }

// entry is one server as a client's file has it.
type entry struct {
	name      string
	transport string // as it was written
	command   string
	args      []string
	env       []pair
	envFile   string
	cwd       string
	url       string
	headers   []pair
	disabled  bool
	tools     []string // tools_allowlist
	include   []string
	required  bool
	autostart bool
	local     bool // allow_local_endpoint
	remarks   []string
}

// input is one of VS Code's questions.
type input struct {
	id, def  string
	password bool
}

// document is a client's file.
type document struct {
	entries []entry
	inputs  []input
	remarks []string
	// ours says that values may hold {{secrets.NAME}} already.
	ours bool
}

// read takes the file of any client that is known, by what is in it. The error
// is a strict.Faults.
func read(name string, data []byte) (*document, error) {
	r := strict.NewReporter(name)
	var root *strict.Node
	switch strings.ToLower(filepath.Ext(name)) {
	case ".yaml", ".yml":
		root = strict.ParseYAML(r, data)
	case ".toml":
		root = config.ParseTOML(r, data)
	default:
		root = parseJSON(r, data)
	}
	if root == nil {
		return nil, r.Err()
	}
	d := &document{}
	d.root(r, root)
	if err := r.Err(); err != nil {
		return nil, err
	}
	return d, nil
}

// root finds the servers, wherever the clients keep them.
func (d *document) root(r *strict.Reporter, root *strict.Node) {
	if root.Kind != strict.Mapping {
		r.Errorf(root, "", "want a mapping with mcpServers, servers, context_servers or mcp_servers, got %s", root.Kind)
		return
	}
	if inner := root.Get("server"); inner != nil && inner.Kind == strict.Mapping && (inner.Get("packages") != nil || inner.Get("remotes") != nil) {
		root = inner // the registry's envelope
	}
	if root.Get("name") != nil && (root.Get("packages") != nil || root.Get("remotes") != nil) {
		d.registry(r, root)
		return
	}
	if mcp := root.Get("mcp"); mcp != nil && mcp.Kind == strict.Mapping && mcp.Get("servers") != nil {
		root = mcp // VS Code's settings
	}
	found := false
	for _, key := range []string{"mcpServers", "mcp_servers", "servers", "context_servers"} {
		n := root.Get(key)
		if n == nil {
			continue
		}
		found = true
		d.ours = d.ours || key == "mcp_servers"
		switch n.Kind {
		case strict.Mapping:
			for _, f := range n.Fields {
				d.add(r, f.Name, f.Value, strict.Child(key, f.Name))
			}
		case strict.List:
			for i, item := range n.Items {
				d.add(r, "", item, strict.Index(key, i))
			}
		default:
			r.Errorf(n, key, "want servers, got %s", n.Kind)
		}
	}
	if !found {
		r.Errorf(root, "", "no servers are here: none of mcpServers, servers, context_servers, mcp_servers and packages")
		return
	}
	d.questions(root.Get("inputs"))
	if projects := root.Get("projects"); projects != nil && projects.Kind == strict.Mapping {
		for _, f := range projects.Fields {
			if servers := f.Value.Get("mcpServers"); servers != nil && len(servers.Fields) > 0 {
				d.remarks = append(d.remarks, "the servers of project "+shown(f.Name)+" were left: import them from a file of their own")
			}
		}
	}
}

func (d *document) questions(n *strict.Node) {
	if n == nil {
		return
	}
	for _, item := range n.Items {
		in := input{id: scalar(item.Get("id")), def: scalar(item.Get("default")), password: scalar(item.Get("password")) == "true"}
		if in.id != "" {
			d.inputs = append(d.inputs, in)
		}
	}
}

// add takes one server. Keys that are not known are remarked upon.
func (d *document) add(r *strict.Reporter, name string, n *strict.Node, path string) {
	if n == nil || n.Kind != strict.Mapping {
		r.Errorf(n, path, "want a server, got another kind of value")
		return
	}
	e := entry{name: name}
	// Zed had the command in a mapping of its own.
	if c := n.Get("command"); c != nil && c.Kind == strict.Mapping {
		e.fields(r, c, strict.Child(path, "command"), "path")
	}
	e.fields(r, n, path, "")
	if e.name == "" {
		r.Errorf(n, path, "the server has no name")
		return
	}
	d.entries = append(d.entries, e)
}

// fields takes the keys of a server; program is the key of the program, where
// it is not command.
func (e *entry) fields(r *strict.Reporter, n *strict.Node, path, program string) {
	for _, f := range n.Fields {
		at := strict.Child(path, f.Name)
		switch v := f.Value; f.Name {
		case "id", "name":
			e.name = or(scalar(v), e.name)
		case "type", "transport":
			if v.Kind == strict.Mapping { // some write {type: …}
				v = v.Get("type")
			}
			e.transport = scalar(v)
		case "command", program:
			if v.Kind == strict.List { // the program with its arguments
				if words := list(r, v, at); len(words) > 0 {
					e.command, e.args = words[0], append(words[1:], e.args...)
				}
			} else if v.Kind != strict.Mapping {
				e.command = scalar(v)
			}
		case "args", "arguments":
			e.args = append(e.args, list(r, v, at)...)
		case "env", "environment":
			e.env = append(e.env, pairs(r, v, at)...)
		case "envFile":
			e.envFile = scalar(v)
		case "cwd", "workingDirectory":
			e.cwd = scalar(v)
		case "url", "serverUrl", "httpUrl":
			e.url = scalar(v)
		case "headers", "requestHeaders":
			e.headers = append(e.headers, pairs(r, v, at)...)
		case "disabled":
			e.disabled = e.disabled || scalar(v) == "true"
		case "enabled":
			e.disabled = e.disabled || scalar(v) == "false"
		case "tools_allowlist", "enabledTools", "includeTools":
			e.tools = list(r, v, at)
		case "include":
			e.include = list(r, v, at)
		case "required":
			e.required = scalar(v) == "true"
		case "autostart":
			e.autostart = scalar(v) == "true"
		case "allow_local_endpoint":
			e.local = scalar(v) == "true"
		case "source":
			if s := scalar(v); s != "custom" {
				e.remarks = append(e.remarks, "source "+shown(s)+" was dropped")
			}
		case "autoApprove", "alwaysAllow", "trust", "always_allow":
			e.remarks = append(e.remarks, f.Name+" was dropped: whether to ask is the client's matter")
		default:
			e.remarks = append(e.remarks, "the key "+shown(f.Name)+" was dropped: it has no counterpart")
		}
	}
}

// scalar is the text of a value that is one.
func scalar(n *strict.Node) string {
	if n == nil || slices.Contains([]strict.Kind{strict.Null, strict.List, strict.Mapping}, n.Kind) {
		return ""
	}
	return n.Text
}

func list(r *strict.Reporter, n *strict.Node, path string) (out []string) {
	if n == nil || n.Kind == strict.Null {
		return nil
	}
	if n.Kind != strict.List {
		r.Errorf(n, path, "want a list, got %s", n.Kind)
		return nil
	}
	for i, item := range n.Items {
		if item.Kind == strict.List || item.Kind == strict.Mapping {
			r.Errorf(item, strict.Index(path, i), "want a string, got %s", item.Kind)
			continue
		}
		out = append(out, item.Text)
	}
	return out
}

func pairs(r *strict.Reporter, n *strict.Node, path string) (out []pair) {
	if n == nil || n.Kind == strict.Null {
		return nil
	}
	if n.Kind != strict.Mapping {
		r.Errorf(n, path, "want a mapping from names to strings, got %s", n.Kind)
		return nil
	}
	for _, f := range n.Fields {
		if f.Value.Kind == strict.List || f.Value.Kind == strict.Mapping {
			r.Errorf(f.Value, strict.Child(path, f.Name), "want a string, got %s", f.Value.Kind)
			continue
		}
		value := f.Value.Text
		if f.Value.Kind == strict.Null {
			value = ""
		}
		out = append(out, pair{f.Name, value})
	}
	return out
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
