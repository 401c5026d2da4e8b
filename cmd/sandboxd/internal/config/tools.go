package config

import (
	"regexp"
	"slices"

	"github.com/sandboxd/sandboxd/policies/strict"
)

// shownName is what a tool may be renamed to.
var shownName = regexp.MustCompile(`^[A-Za-z0-9_./-]{1,128}$`)

const (
	maxDescription = 4096
	maxInFlight    = 4096
	maxWaiting     = 65536
)

// tools takes what governs a server's tools and who shares its sandboxes.
func (f *file) tools(m strict.Map, s *Server) {
	s.Pin = f.oneOf(m, "pin", "strict", "warn", "off")
	s.Sharing = f.oneOf(m, "sharing", "tenant", "session", "call")
	s.IdleStop = m.Duration("idle_stop")
	s.CallTimeout = m.Duration("call_timeout")
	s.InFlight = int(m.Int("max_in_flight", 1, maxInFlight))
	s.Waiting = int(m.Int("max_waiting", 1, maxWaiting))
	s.Renames = f.texts(m, "renames")
	taken := map[string]bool{}
	for _, tool := range sortedKeys(s.Renames) {
		to := s.Renames[tool]
		at := strict.Child(m.Path("renames"), tool)
		switch n := m.Get("renames").Get(tool); {
		case !shownName.MatchString(to):
			f.r.Errorf(n, at, "want letters, digits and _ - . / in a tool's name, 128 at most")
		case taken[to]:
			f.r.Errorf(n, at, "another tool is renamed to the same name")
		}
		taken[to] = true
	}
	s.Descriptions = f.texts(m, "descriptions")
	for _, tool := range sortedKeys(s.Descriptions) {
		if len(s.Descriptions[tool]) > maxDescription {
			f.r.Errorf(m.Get("descriptions").Get(tool), strict.Child(m.Path("descriptions"), tool), "want %d bytes at most", maxDescription)
		}
	}
}

func sortedKeys(m map[string]string) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// oneOf takes one of some words, or "" where the key is missing.
func (f *file) oneOf(m strict.Map, key string, words ...string) string {
	v := m.String(key)
	if !m.Has(key) || slices.Contains(words, v) || f.r.Faulty(m.Path(key)) {
		return v
	}
	want := words[0]
	for _, w := range words[1 : len(words)-1] {
		want += ", " + w
	}
	m.Errorf(key, "want %s or %s", want, words[len(words)-1])
	return ""
}

// texts takes a mapping from tools' names to strings.
func (f *file) texts(m strict.Map, key string) map[string]string {
	n := m.Get(key)
	if n == nil {
		return nil
	}
	if n.Kind != strict.Mapping {
		m.Errorf(key, "want a mapping from tools' names to strings, got %s", n.Kind)
		return nil
	}
	var names []string
	for _, field := range n.Fields {
		names = append(names, field.Name)
	}
	values := f.r.Map(n, m.Path(key), names...)
	out := map[string]string{}
	for _, field := range n.Fields {
		at := &strict.Node{Line: field.Line, Col: field.Col}
		switch {
		case !toolName.MatchString(field.Name):
			f.r.Errorf(at, values.Path(field.Name), "is not a tool's name")
			continue
		case field.Value == nil || field.Value.Kind == strict.Null:
			f.r.Errorf(at, values.Path(field.Name), "has no value")
			continue
		}
		f.noSecret(field.Value, values.Path(field.Name))
		if v := values.String(field.Name); !f.r.Faulty(values.Path(field.Name)) {
			out[field.Name] = v
		}
	}
	return out
}
