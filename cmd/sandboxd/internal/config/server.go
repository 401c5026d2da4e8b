package config

import (
	"errors"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/policies/strict"
	"github.com/sandboxd/sandboxd/sandbox"
)

// The keys of a server, by the transports that they belong to.
var (
	commonKeys  = []string{"id", "label", "transport", "tools_allowlist", "include", "renames", "descriptions", "pin", "sharing", "idle_stop", "call_timeout", "max_in_flight", "max_waiting", "required", "autostart"}
	stdioKeys   = []string{"command", "args", "env", "policy", "isolation", "mounts", "warm"}
	networkKeys = []string{"url", "headers", "allow_local_endpoint", "oauth"}
	serverKeys  = slices.Concat(commonKeys, stdioKeys, networkKeys)
)

var (
	toolName = regexp.MustCompile(`^[^\x00-\x20"\\\x7f]{1,256}$`)
	envName  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,255}$`)
)

// server takes one server. name is its key where it has one, and then there is
// no id. It returns false where the node is no mapping.
func (f *file) server(n *strict.Node, path, name string) (Server, bool) {
	known := serverKeys
	if name != "" {
		known = known[1:]
	}
	m := f.r.Map(n, path, known...)
	if m.Node() == nil {
		return Server{}, false
	}
	s := Server{
		ID:             name,
		Label:          m.String("label"),
		ToolsAllowlist: m.Names("tools_allowlist", toolName, "a tool's name"),
		Include:        m.Names("include", toolName, "a tool's name"),
		Required:       m.Bool("required"),
		Autostart:      m.Bool("autostart"),
		Dir:            f.dir,
	}
	if name == "" {
		s.ID = m.String("id")
		if !serverID.MatchString(s.ID) && !f.r.Faulty(m.Path("id")) {
			if !m.Has("id") {
				m.Errorf("id", "is missing: a server needs an id, or a ref to one that has it")
			} else {
				m.Errorf("id", badID)
			}
		}
	}
	if len(s.Label) > 200 || strings.ContainsFunc(s.Label, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		m.Errorf("label", "want one line of 200 bytes at most")
	}
	if s.Label == "" {
		s.Label = s.ID
	}
	f.tools(m, &s)
	s.Transport = f.transport(m)
	if s.Transport == "" {
		return s, true
	}
	foreign, kind := networkKeys, "network"
	if s.Transport != Stdio {
		foreign, kind = stdioKeys, "stdio"
	}
	for _, field := range n.Fields {
		if slices.Contains(foreign, field.Name) {
			at := &strict.Node{Line: field.Line, Col: field.Col}
			f.r.Errorf(at, m.Path(field.Name), "is for %s servers; this one has transport %s", kind, s.Transport)
		}
	}
	if s.Transport == Stdio {
		f.stdio(m, &s)
	} else {
		f.network(m, &s)
	}
	return s, true
}

// transport takes the transport, or tells it by what is there.
func (f *file) transport(m strict.Map) Transport {
	switch t := Transport(m.String("transport")); t {
	case Stdio, HTTP, WebSocket:
		return t
	case SSE:
		f.r.Warnf(m.Get("transport"), m.Path("transport"), "sse is deprecated: use http where the server speaks Streamable HTTP")
		return t
	case "":
		if m.Has("transport") {
			if !f.r.Faulty(m.Path("transport")) {
				m.Errorf("transport", "is empty: want stdio, http, websocket or sse")
			}
			return ""
		}
		if m.Has("command") != m.Has("url") {
			if m.Has("command") {
				return Stdio
			}
			return HTTP
		}
		m.Errorf("transport", "is missing: want stdio with a command, or http or websocket with a url")
	default:
		m.Errorf("transport", "want stdio, http, websocket or sse")
	}
	return ""
}

// stdio takes what only a server in a sandbox has.
func (f *file) stdio(m strict.Map, s *Server) {
	s.Command, s.Args = m.String("command"), m.Strings("args")
	if s.Command == "" && !f.r.Faulty(m.Path("command")) {
		m.Errorf("command", "is missing: a stdio server needs one")
	}
	// A process list shows arguments to everyone.
	f.noSecret(m.Get("command"), m.Path("command"))
	for i, n := range itemsOf(m.Get("args")) {
		f.noSecret(n, strict.Index(m.Path("args"), i))
	}
	s.Env = f.vars(m, "env", envName, "a variable's name")
	for _, v := range s.Env {
		if strings.ContainsRune(v.Value.Reveal(), 0) {
			f.r.Errorf(m.Get("env").Get(v.Name), strict.Child(m.Path("env"), v.Name), "holds a NUL byte")
		}
	}
	f.policy(m, s)
	if name := m.String("isolation"); name != "" {
		tier, err := sandbox.ParseIsolation(name)
		switch {
		case err != nil:
			m.Errorf("isolation", "%v", err)
		case s.Policy != nil && !s.Policy.Satisfied(tier):
			m.Errorf("isolation", "%s is less than the minimum of the policy, %s", tier, s.Policy.Isolation)
		}
		s.Isolation = tier
	}
	f.mounts(m, s)
	s.Warm = int(m.Int("warm", 1, maxWarm))
	if s.Warm > 0 && s.Policy != nil && s.Policy.Limits.Wall > 0 {
		m.Errorf("warm", "cannot stand beside a policy that limits wall: the time until somebody comes would count")
	}
}

// maxWarm is how many sandboxes one server can keep started.
const maxWarm = 16

func (f *file) mounts(m strict.Map, s *Server) {
	seen := map[string]bool{}
	for i, n := range m.List("mounts") {
		at := strict.Index(m.Path("mounts"), i)
		mount, ok := f.mount(n, at)
		if !ok {
			continue
		}
		if seen[mount.Target] {
			f.r.Errorf(n, at, "another mount has the same target")
		}
		seen[mount.Target] = true
		s.Mounts = append(s.Mounts, mount)
	}
}

// policy takes a preset's name, a file's path or a policy written out.
func (f *file) policy(m strict.Map, s *Server) {
	n := m.Get("policy")
	switch {
	case n == nil && m.Has("policy"):
		m.Errorf("policy", "is empty: leave the key out for none, or name a preset or a file")
		return
	case n == nil:
		none, err := f.policies.Preset("none")
		if err != nil {
			m.Errorf("policy", "%v", err)
		}
		s.Policy = none
		return
	case n.Kind == strict.Mapping:
		s.Policy = f.policies.Decode(f.r, n, m.Path("policy"))
		s.Policy.Name = "of server " + s.ID
	default:
		ref := m.String("policy")
		if ref == "" {
			return
		}
		p, err := f.policies.Find(ref, f.dir)
		var faults strict.Faults
		switch {
		case errors.As(err, &faults):
			for _, x := range faults { // once, however many servers name the file
				if !slices.Contains(f.policyFaults, x) {
					f.policyFaults = append(f.policyFaults, x)
				}
			}
			m.Errorf("policy", "the file has faults of its own")
			return
		case err != nil:
			m.Errorf("policy", "%v", err)
			return
		}
		s.Policy = p
		for _, x := range p.Warnings {
			if !slices.Contains(f.policyWarnings, x) {
				f.policyWarnings = append(f.policyWarnings, x)
			}
		}
	}
	for _, v := range s.Env {
		if !s.Policy.PermitsEnv(v.Name) {
			f.r.Errorf(m.Get("env").Get(v.Name), strict.Child(m.Path("env"), v.Name), "the policy does not let the server have it: add it to env there")
		}
	}
}

// mount takes {source, target, rw} or SRC:DST[:ro|:rw].
func (f *file) mount(n *strict.Node, at string) (Mount, bool) {
	var out Mount
	switch n.Kind {
	case strict.String:
		parts := strings.Split(n.Text, ":")
		mode := ""
		if len(parts) == 3 {
			mode = parts[2]
		}
		if len(parts) < 2 || len(parts) > 3 || len(parts) == 3 && mode != "ro" && mode != "rw" {
			f.r.Errorf(n, at, "want SRC:DST, SRC:DST:rw or a mapping of source, target and rw")
			return out, false
		}
		out = Mount{Source: parts[0], Target: parts[1], ReadWrite: mode == "rw"}
	default:
		m := f.r.Map(n, at, "source", "target", "rw")
		if m.Node() == nil {
			return out, false
		}
		out = Mount{Source: m.String("source"), Target: m.String("target"), ReadWrite: m.Bool("rw")}
	}
	switch {
	case f.r.Faulty(at):
		return out, false
	case out.Source == "":
		f.r.Errorf(n, at, "has no source")
		return out, false
	case !path.IsAbs(out.Target) || path.Clean(out.Target) != out.Target || out.Target == "/":
		f.r.Errorf(n, at, "the target must be an absolute, clean path below /")
		return out, false
	}
	out.Source = f.path(out.Source)
	if err := exists(out.Source); err != nil {
		f.r.Errorf(n, at, "source %s: %v", out.Source, err)
		return out, false
	}
	return out, true
}

func itemsOf(n *strict.Node) []*strict.Node {
	if n == nil {
		return nil
	}
	return n.Items
}
