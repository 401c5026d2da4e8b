package config

import (
	"regexp"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/policies/strict"
)

// registration is a server that was written out, whether it is served or not.
type registration struct {
	server Server
	file   *file
	node   *strict.Node
	path   string
	served bool
}

// reference asks for a registered server, perhaps with fewer tools.
type reference struct {
	name  string
	tools []string
	node  *strict.Node // of the name
	list  *strict.Node // of the tools
	path  string
}

var serverID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// named takes the mapping servers: each entry registers a server under its
// key. It is served where it is referred to, or where it starts by itself.
func (f *file) named(m strict.Map) {
	n := m.Get("servers")
	if n == nil {
		return
	}
	if n.Kind != strict.Mapping {
		m.Errorf("servers", "want a mapping from names to servers, got %s", n.Kind)
		return
	}
	for _, field := range n.Fields {
		path := strict.Child("servers", field.Name)
		at := &strict.Node{Line: field.Line, Col: field.Col}
		if !serverID.MatchString(field.Name) {
			f.r.Errorf(at, path, badID)
		}
		if field.Value == nil || field.Value.Kind == strict.Null {
			f.r.Errorf(at, path, "the server is empty: it needs a command or a url")
			continue
		}
		s, ok := f.server(field.Value, path, field.Name)
		if ok {
			f.regs = append(f.regs, &registration{server: s, file: f, node: at, path: path, served: s.Autostart})
		}
	}
}

const badID = "want letters, digits and ._- in a name, 64 at most, a letter or a digit first"

// listed takes the list mcp_servers: each entry is a server written out, which
// is registered and served, or a reference to one.
func (f *file) listed(m strict.Map) {
	for i, n := range m.List("mcp_servers") {
		path := strict.Index("mcp_servers", i)
		if n.Kind == strict.Mapping && n.Get("ref") != nil {
			f.reference(n, path)
			continue
		}
		s, ok := f.server(n, path, "")
		if ok && s.ID != "" {
			f.regs = append(f.regs, &registration{server: s, file: f, node: n.At("id"), path: path, served: true})
		}
	}
}

// reference takes an entry with ref, which leaves no room for other keys.
func (f *file) reference(n *strict.Node, path string) {
	for _, field := range n.Fields {
		if slices.Contains(serverKeys, field.Name) && field.Name != "tools_allowlist" {
			at := &strict.Node{Line: field.Line, Col: field.Col}
			f.r.Errorf(at, path, "%s cannot stand beside ref: a reference takes tools_allowlist alone", field.Name)
		}
	}
	m := f.r.Map(n, path, append([]string{"ref"}, serverKeys...)...)
	ref := reference{
		name: m.String("ref"), tools: m.Names("tools_allowlist", toolName, "a tool's name"),
		node: n.At("ref"), list: n.At("tools_allowlist"), path: strict.Child(path, "ref"),
	}
	if ref.name == "" {
		if !f.r.Faulty(ref.path) {
			m.Errorf("ref", "names no server")
		}
		return
	}
	f.refs = append(f.refs, ref)
}

// merge lays later files over earlier ones, resolves the references and
// returns what is served, in order.
func merge(files []*file) []Server {
	var order []string
	regs := map[string]*registration{}
	for _, f := range files {
		for _, reg := range f.regs {
			id := reg.server.ID
			old, again := regs[id]
			switch {
			case !again:
				order = append(order, id)
			case old.file == f:
				f.r.Errorf(reg.node, reg.path, "server %s is registered twice: give one of them another name", id)
				continue
			default:
				f.r.Warnf(reg.node, reg.path, "takes the place of server %s of an earlier file", id)
				reg.served = reg.served || old.served
			}
			regs[id] = reg
		}
	}
	for _, f := range files {
		seen := map[string]bool{}
		for _, ref := range f.refs {
			if seen[ref.name] {
				f.r.Errorf(ref.node, ref.path, "server %s is referred to twice: name its tools in one place", ref.name)
				continue
			}
			seen[ref.name] = true
			f.resolve(ref, regs, order)
		}
	}
	var out []Server
	first := map[string]string{}
	for _, id := range order {
		reg := regs[id]
		if !reg.served {
			continue
		}
		if other, clash := first[folded(id)]; clash {
			reg.file.r.Errorf(reg.node, reg.path,
				"server %s differs from %s in case or punctuation alone, which names of tools do not keep: rename one", id, other)
			continue
		}
		first[folded(id)] = id
		out = append(out, reg.server)
	}
	return out
}

// resolve narrows the server that a reference names, and has it served.
func (f *file) resolve(ref reference, regs map[string]*registration, known []string) {
	reg, ok := regs[ref.name]
	if !ok {
		switch hint := strict.Nearest(ref.name, known); {
		case hint != "":
			f.r.Errorf(ref.node, ref.path, "no server %.64q is registered: did you mean %s?", ref.name, hint)
		default:
			f.r.Errorf(ref.node, ref.path, "no server %.64q is registered: write it under servers, or as an entry with an id", ref.name)
		}
		return
	}
	reg.served = true
	if ref.tools == nil {
		return
	}
	own := reg.server.ToolsAllowlist
	tools := []string{} // not nil, which means every tool
	for i, t := range ref.tools {
		if own != nil && !slices.Contains(own, t) {
			f.r.Warnf(ref.list.At(strict.Index("", i)), ref.path, "tool %.64q stays closed: the server's own tools_allowlist has it not", t)
			continue
		}
		tools = append(tools, t)
	}
	reg.server.ToolsAllowlist = tools
}

// folded is what is left of a name in the name of a tool.
func folded(id string) string {
	return strings.Map(func(r rune) rune {
		if r == '.' || r == '-' || r == '_' {
			return '_'
		}
		return r
	}, strings.ToLower(id))
}
