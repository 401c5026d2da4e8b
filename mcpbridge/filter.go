package mcpbridge

import (
	"encoding/json"
	"fmt"
	"sync"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// filter keeps a client of a raw endpoint to the tools that configuration and
// pins let through, under the names that configuration gives them. It touches
// nothing but lists of tools and calls.
type filter struct {
	srv  Server
	slug string
	// scope is what the session's client may see; nil is everything.
	scope *Scope
	pins  func() definitions // nil where every definition passes
	on    bool
	mu    sync.Mutex
	list  map[string]bool // ids of tools/list requests, see asked
	all   bool            // they are too many to be kept
	held  map[string]bool // tools that this session's server defines in another way
}

func (e *entry) newFilter(scope *Scope) *filter {
	f := &filter{srv: e.srv, slug: e.slug, scope: scope, list: map[string]bool{}, held: map[string]bool{}}
	if e.srv.Pin == PinStrict {
		f.pins = func() definitions {
			if d := e.approved.Load(); d != nil {
				return *d
			}
			return nil
		}
	}
	f.on = f.pins != nil || scope.narrows() || e.srv.ToolsAllowlist != nil || len(e.srv.Include) > 0 || len(e.srv.Renames) > 0 || len(e.srv.Descriptions) > 0
	return f
}

// refuses says why a call must not reach the server, or "".
func (f *filter) refuses(wire string) string {
	if !f.srv.selects(wire) {
		return fmt.Sprintf("unknown tool %q", relay.Cut([]byte(wire), 80))
	}
	if f.pins == nil {
		return ""
	}
	f.mu.Lock()
	held := f.held[wire]
	f.mu.Unlock()
	if _, ok := f.pins()[wire]; !ok || held {
		return fmt.Sprintf("tool %q is held back: its definition is not approved", relay.Cut([]byte(wire), 80))
	}
	return ""
}

// fromClient returns what to pass on, or the answer to what must not reach the
// server.
func (f *filter) fromClient(m relay.Message, raw []byte) (_ relay.Message, out, refusal []byte) {
	if !f.on {
		return m, raw, nil
	}
	if m.Duplicate {
		return m, nil, refuse(m, raw, "a member is given twice")
	}
	params := m.Params.Of(raw)
	switch m.Method {
	case "tools/call":
		name, twice := onlyMember(params, "name")
		var tool string
		if twice || json.Unmarshal(name.Of(params), &tool) != nil {
			return m, nil, refuse(m, raw, "params.name must be given once, as a string")
		}
		wire, ok := f.srv.wire(tool)
		if !ok || !f.scope.tool(f.slug, tool) {
			return m, nil, refuse(m, raw, fmt.Sprintf("unknown tool %q", relay.Cut([]byte(tool), 80)))
		}
		if why := f.refuses(wire); why != "" {
			return m, nil, refuse(m, raw, why)
		}
		if wire == tool {
			break
		}
		at := relay.Span{Start: m.Params.Start + name.Start, End: m.Params.Start + name.End}
		out, err := relay.Splice(raw, relay.Edit{Span: at, With: quoted(wire)})
		if err == nil {
			m, err = relay.Peek(out)
		}
		if err != nil {
			return m, nil, refuse(m, raw, "the call cannot be renamed")
		}
		return m, out, nil
	case "tools/list":
		if k, ok := relay.IDKey(m.ID.Of(raw)); ok {
			f.ask(k)
		}
	}
	return m, raw, nil
}

// maxListIDs bounds the ids that one session is known to have listed under.
const maxListIDs = 1024

// ask notes a tools/list request. Its id is never forgotten: a client that left
// another request unanswered could give its id to this one, and the answer to
// the other would then end the watch for the list. With too many ids every
// answer is looked at.
func (f *filter) ask(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all = f.all || len(f.list) >= maxListIDs; f.all {
		f.list = nil
		return
	}
	f.list[key] = true
}

func (f *filter) asked(key string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.all || f.list[key]
}

func refuse(m relay.Message, raw []byte, why string) []byte {
	if m.Kind != relay.Request {
		return []byte{} // nobody to tell: dropped
	}
	return relay.ErrorLine(m.ID.Of(raw), -32602, why)
}

// fromServer returns what to pass on: the message, or a list of tools as this
// client may see it.
func (f *filter) fromServer(m relay.Message, line []byte) (relay.Message, []byte) {
	if !f.on {
		return m, line
	}
	if m.Kind == relay.Batch || m.Duplicate {
		return m, nil // two parsers could read two things: dropped
	}
	if m.Kind != relay.Response || m.Result.End == 0 {
		return m, line
	}
	if k, _ := relay.IDKey(m.ID.Of(line)); !f.asked(k) {
		return m, line
	}
	result := m.Result.Of(line)
	tools, twice := onlyMember(result, "tools")
	if twice {
		return refused(m, line)
	}
	if t := tools.Of(result); len(t) == 0 || t[0] != '[' {
		return m, line
	}
	kept := []byte{'['}
	for _, def := range relay.Elements(tools.Of(result)) {
		if def = f.define(def); def == nil {
			continue
		}
		if len(kept) > 1 {
			kept = append(kept, ',')
		}
		kept = append(kept, def...)
	}
	at := relay.Span{Start: m.Result.Start + tools.Start, End: m.Result.Start + tools.End}
	out, err := relay.Splice(line, relay.Edit{Span: at, With: append(kept, ']')})
	if err != nil {
		return m, nil
	}
	if m, err = relay.Peek(out); err != nil {
		return m, nil
	}
	return m, out
}

// refused answers in the place of a list that cannot be filtered.
func refused(m relay.Message, line []byte) (relay.Message, []byte) {
	out := relay.ErrorLine(m.ID.Of(line), -32603, "the server's list of tools can be read in two ways")
	m, err := relay.Peek(out)
	if err != nil {
		return m, nil
	}
	return m, out
}

// define is a tool's definition as the client may see it, or nil.
func (f *filter) define(def []byte) []byte {
	name, twice := onlyMember(def, "name")
	var wire string
	if twice || json.Unmarshal(name.Of(def), &wire) != nil || !f.srv.selects(wire) {
		return nil
	}
	if f.pins != nil {
		held := f.pins().pinned(wire, def) != ""
		f.mu.Lock()
		f.held[wire] = held
		f.mu.Unlock()
		if held {
			return nil
		}
	}
	shown, ok := f.srv.shown(wire)
	if !ok || !f.scope.tool(f.slug, shown) {
		return nil
	}
	out, err := f.srv.present(def, wire, shown)
	if err != nil {
		return nil
	}
	return out
}

// shown is the name that clients see. It is false where a rename gave the name
// to another of the server's tools.
func (s Server) shown(wire string) (string, bool) {
	if to, ok := s.Renames[wire]; ok {
		return to, true
	}
	for _, to := range s.Renames {
		if to == wire {
			return "", false
		}
	}
	return wire, true
}

// wire is the server's own name for what clients call so.
func (s Server) wire(shown string) (string, bool) {
	for from, to := range s.Renames {
		if to == shown {
			return from, true
		}
	}
	_, renamed := s.Renames[shown]
	return shown, !renamed
}

// present puts a tool's configured name and description into its definition.
// Every other byte is the server's.
func (s Server) present(def []byte, wire, shown string) ([]byte, error) {
	description, override := s.Descriptions[wire]
	if wire == shown && !override {
		return def, nil
	}
	var edits []relay.Edit
	found := false
	err := relay.Members(def, func(k string, v relay.Span) bool {
		switch {
		case k == "name" && wire != shown:
			edits = append(edits, relay.Edit{Span: v, With: quoted(shown)})
		case k == "description" && override:
			found = true
			edits = append(edits, relay.Edit{Span: v, With: quoted(description)})
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	out, err := relay.Splice(def, edits...)
	if err != nil || found || !override {
		return out, err
	}
	// The name is there, so that more follows.
	i := 0
	for out[i] != '{' {
		i++
	}
	return append(append([]byte(`{"description":`), append(quoted(description), ',')...), out[i+1:]...), nil
}
