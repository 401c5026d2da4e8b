package mcpbridge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/mcpbridge/schema"
	"github.com/sandboxd/sandboxd/mcpbridge/suspect"
)

// errNotSelected is the one reason that the operator chose.
var errNotSelected = errors.New("not selected by tools_allowlist and include")

// LeftOut reports one tool that admission did not take in.
type LeftOut struct {
	// Tool is the tool's name, quoted and cut where it is not a valid one.
	Tool   string `json:"tool"`
	Reason string `json:"reason"`
}

// tool is one admitted tool.
type tool struct {
	name   string          // as clients see it
	wire   string          // as the server knows it
	def    json.RawMessage // the definition as the server sent it
	raw    json.RawMessage // the same with the configured name and description
	action Action
	in     *schema.Schema
	out    *schema.Schema // nil if none
	found  []suspect.Finding
}

// snapshot is what one admission took in. It never changes.
type snapshot struct {
	tools   []*tool
	byName  map[string]*tool
	leftOut []LeftOut
	// unapproved are those that differ from what was approved.
	unapproved []LeftOut
	flagged    []Flagged
}

const maxReports = 100

// unknown says what there is instead: a name that is close, or some of all.
func (s *snapshot) unknown(slug, action string) *Error {
	var near, all []string
	for _, t := range s.tools {
		all = append(all, t.name)
		if strings.EqualFold(t.name, action) || action != "" && (strings.Contains(t.name, action) || strings.Contains(action, t.name)) {
			near = append(near, t.name)
		}
	}
	hint, names := "it has", all
	switch {
	case len(near) > 0:
		hint, names = "did you mean", near
	case len(all) == 0:
		return errf(CodeUnknownAction, "connector %q has no action %q: none of its tools was admitted, see /api/v1/servers", slug, relay.Cut([]byte(action), 80))
	}
	more := ""
	if len(names) > 8 {
		names, more = names[:8], ", …"
	}
	return errf(CodeUnknownAction, "connector %q has no action %q: %s %s%s", slug, relay.Cut([]byte(action), 80), hint, strings.Join(names, ", "), more)
}

func (s *snapshot) leave(name, format string, args ...any) {
	switch {
	case len(s.leftOut) < maxReports:
		s.leftOut = append(s.leftOut, LeftOut{Tool: name, Reason: fmt.Sprintf(format, args...)})
	case len(s.leftOut) == maxReports:
		s.leftOut = append(s.leftOut, LeftOut{Tool: "…", Reason: "more tools were left out than are reported"})
	}
}

// admit checks a server's tool definitions.
func admit(l toolList, srv Server) *snapshot {
	s := &snapshot{byName: map[string]*tool{}}
	for _, raw := range l.defs {
		name, t, err := admitOne(raw, srv)
		if err == nil && l.http {
			_, err = schema.Headers(t.action.InputSchema)
		}
		switch {
		case err != nil:
			s.leave(name, "%s", err.Error())
		case s.byName[t.name] != nil:
			s.leave(name, "the server has two tools of this name: the first is kept")
		default:
			s.byName[t.name] = t
			s.tools = append(s.tools, t)
		}
	}
	if l.more {
		s.leave("…", "the server has more tools than the limit of %d", srv.Limits.Tools)
	}
	for _, want := range srv.ToolsAllowlist {
		if !slices.ContainsFunc(s.tools, func(t *tool) bool { return t.wire == want }) && !slices.ContainsFunc(s.leftOut, func(l LeftOut) bool { return l.Tool == want }) {
			s.leave(want, "tools_allowlist names it, but the server has no such tool")
		}
	}
	return s
}

func admitOne(raw json.RawMessage, srv Server) (name string, _ *tool, err error) {
	if !utf8.Valid(raw) {
		raw = bytes.ToValidUTF8(raw, []byte("\uFFFD"))
	}
	m := map[string]json.RawMessage{}
	dup := ""
	if err := relay.Members(raw, func(k string, v relay.Span) bool {
		if _, ok := m[k]; ok {
			dup = k
		}
		m[k] = v.Of(raw)
		return true
	}); err != nil {
		return "?", nil, errors.New("the definition is no JSON object")
	}
	if json.Unmarshal(m["name"], &name) != nil || !toolNameOK(name) {
		return fmt.Sprintf("%q", relay.Cut([]byte(name), 80)), nil,
			errors.New("the name is not 1 to 128 characters of A-Z a-z 0-9 _ - . /")
	}
	if dup != "" {
		return name, nil, fmt.Errorf("the definition has the member %q twice", relay.Cut([]byte(dup), 80))
	}
	if !srv.selects(name) {
		return name, nil, errNotSelected
	}
	shown, ok := srv.shown(name)
	if !ok {
		return name, nil, errors.New("another tool is renamed to its name")
	}
	t := &tool{name: shown, wire: name, def: raw}
	if _, err := canonical(raw); err != nil {
		return name, nil, err
	}
	if t.raw, err = srv.present(raw, name, shown); err != nil {
		return name, nil, errors.New("the definition is no JSON object")
	}
	b := schema.Bounds{Bytes: srv.Limits.SchemaBytes, Depth: srv.Limits.SchemaDepth, RequireRootType: srv.RequireRootType}
	if t.in, err = schema.Compile(m["inputSchema"], b); err != nil {
		return name, nil, fmt.Errorf("inputSchema: %w", err)
	}
	out := m["outputSchema"]
	if len(out) > 0 && string(out) != "null" {
		if t.out, err = schema.Compile(out, b); err != nil {
			return name, nil, fmt.Errorf("outputSchema: %w", err)
		}
		t.action.OutputSchema = withRootType(out, t.out)
	}
	t.action.Key = shown
	t.action.Label = title(m, shown)
	_ = json.Unmarshal(m["description"], &t.action.Description) // absent or no string: none
	if d, override := srv.Descriptions[name]; override {
		t.action.Description = d
	}
	t.action.InputSchema = withRootType(m["inputSchema"], t.in)
	return name, t, nil
}

// pin compares what was admitted with what is approved, and approves it where
// nothing was before. A store that cannot be read approves nothing.
func (e *entry) pin(s *snapshot) {
	if e.srv.Pin == PinOff {
		return
	}
	now := definitions{}
	for _, t := range s.tools {
		now[t.wire] = t.def
	}
	approved, err := e.reg.pins.see(e.slug, now)
	if err != nil {
		e.log.Error("approved tools cannot be kept", "error", err)
		if e.srv.Pin != PinStrict {
			return
		}
		approved = definitions{}
	}
	e.approved.Store(&approved)
	kept := s.tools[:0:0]
	for _, t := range s.tools {
		why := approved.pinned(t.wire, t.def)
		if why == "" {
			kept = append(kept, t)
			continue
		}
		s.unapprove(t.wire, why+approveHint(e.slug))
		if e.srv.Pin == PinStrict {
			s.leave(t.wire, "held back: %s", why+approveHint(e.slug))
			delete(s.byName, t.name)
		} else {
			kept = append(kept, t)
		}
	}
	s.tools = kept
	for name := range approved {
		if _, ok := now[name]; !ok && e.srv.selects(name) {
			s.unapprove(name, "it was removed, or cannot be admitted any more"+approveHint(e.slug))
		}
	}
	slices.SortFunc(s.unapproved, func(a, b LeftOut) int { return strings.Compare(a.Tool, b.Tool) })
}

func (s *snapshot) unapprove(name, why string) {
	if len(s.unapproved) < maxReports {
		s.unapproved = append(s.unapproved, LeftOut{Tool: name, Reason: why})
	}
}

// selects says whether configuration lets a tool through by its name.
func (s Server) selects(name string) bool {
	if s.ToolsAllowlist != nil && !slices.Contains(s.ToolsAllowlist, name) {
		return false
	}
	return len(s.Include) == 0 || slices.ContainsFunc(s.Include, func(p string) bool {
		ok, err := path.Match(p, name)
		return ok && err == nil
	})
}

// title is the tool's name for people: title, else annotations.title, else
// its name.
func title(m map[string]json.RawMessage, name string) string {
	var s string
	if json.Unmarshal(m["title"], &s) == nil && s != "" {
		return s
	}
	var a struct {
		Title string `json:"title"`
	}
	if json.Unmarshal(m["annotations"], &a) == nil && a.Title != "" {
		return a.Title
	}
	return name
}

// withRootType shows the root type that admission took to be there; strict
// clients refuse a whole list without it.
func withRootType(raw json.RawMessage, s *schema.Schema) json.RawMessage {
	if !s.RootTypeAdded {
		return raw
	}
	i := bytes.IndexByte(raw, '{') + 1
	rest := bytes.TrimLeft(raw[i:], " \t\r\n")
	out := []byte(`{"type":"object"`)
	if rest[0] != '}' {
		out = append(out, ',')
	}
	return append(out, rest...)
}

// diff names what changed between two admissions.
func diff(old, now *snapshot) (added, removed, changed []string) {
	for _, t := range now.tools {
		if o := old.byName[t.name]; o == nil {
			added = append(added, t.name)
		} else if !bytes.Equal(o.raw, t.raw) {
			changed = append(changed, t.name)
		}
	}
	for _, t := range old.tools {
		if now.byName[t.name] == nil {
			removed = append(removed, t.name)
		}
	}
	return added, removed, changed
}
