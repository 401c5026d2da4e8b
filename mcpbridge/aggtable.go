package mcpbridge

import (
	"slices"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// aggTool is one tool of the aggregated endpoint.
type aggTool struct {
	e *entry
	t *tool
}

// aggTable is what the aggregated endpoint offers. It is built anew when a
// server's snapshot changed, and never changes itself.
type aggTable struct {
	snaps   []*snapshot
	tools   map[string]aggTool
	names   []string // the tools, in their order
	list    [][]byte // their definitions
	leftOut map[string][]LeftOut
}

// table returns the present table.
func (r *Registry) table() *aggTable {
	entries := r.list()
	snaps := make([]*snapshot, len(entries))
	for i, e := range entries {
		snaps[i] = e.snap.Load()
	}
	old := r.agg.Load()
	if old != nil && slices.Equal(old.snaps, snaps) {
		return old
	}
	t := buildTable(entries, snaps, r.slugs())
	for slug, ls := range t.leftOut {
		for _, l := range ls {
			r.cfg.Logger.Warn("tool left out of the aggregated endpoint", "server", slug, "tool", l.Tool, "reason", l.Reason)
		}
	}
	r.agg.Store(t)
	return t
}

func buildTable(entries []*entry, snaps []*snapshot, slugs []string) *aggTable {
	t := &aggTable{snaps: snaps, tools: map[string]aggTool{}, leftOut: map[string][]LeftOut{}}
	for i, e := range entries {
		if snaps[i] == nil {
			continue
		}
		leave := func(name, why string) {
			if len(t.leftOut[e.slug]) < maxReports {
				t.leftOut[e.slug] = append(t.leftOut[e.slug], LeftOut{Tool: name, Reason: why})
			}
		}
		for _, tl := range snaps[i].tools {
			name := AggregateName(e.slug, tl.name)
			if !ownsName(name, e.slug, slugs) {
				leave(tl.name, "its aggregated name "+name+" belongs to a server with a longer name")
				continue
			}
			if _, taken := t.tools[name]; taken {
				leave(tl.name, "its aggregated name "+name+" is taken by another of the server's tools")
				continue
			}
			def, err := tl.renamed(name)
			if err != nil {
				leave(tl.name, err.Error())
				continue
			}
			t.list, t.names = append(t.list, def), append(t.names, name)
			t.tools[name] = aggTool{e, tl}
		}
	}
	return t
}

// tools lists the definitions that the session's client sees.
func (s *aggSession) tools() [][]byte {
	t := s.reg.table()
	if s.scope == nil {
		return t.list
	}
	var out [][]byte
	for i, name := range t.names {
		if at := t.tools[name]; s.scope.tool(at.e.slug, at.t.name) {
			out = append(out, t.list[i])
		}
	}
	return out
}

// entries are the servers that the session's client sees.
func (s *aggSession) entries() []*entry {
	return slices.DeleteFunc(s.reg.list(), func(e *entry) bool { return !s.scope.server(e.slug) })
}

// renamed is the tool's definition with another name, and with a root type in
// its schemas; every other byte is the server's.
func (t *tool) renamed(name string) ([]byte, error) {
	var edits []relay.Edit
	err := relay.Members(t.raw, func(k string, v relay.Span) bool {
		switch k {
		case "name":
			edits = append(edits, relay.Edit{Span: v, With: []byte(`"` + name + `"`)})
		case "inputSchema":
			edits = append(edits, relay.Edit{Span: v, With: t.action.InputSchema})
		case "outputSchema":
			if t.out != nil {
				edits = append(edits, relay.Edit{Span: v, With: t.action.OutputSchema})
			}
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	return relay.Splice(t.raw, edits...)
}
