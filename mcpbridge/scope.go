package mcpbridge

import (
	"context"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// Scope is what one client may see and use: of the connectors, of the
// aggregated endpoint and of the servers' own. The zero value is nothing. A nil
// *Scope is everything.
type Scope struct {
	// Name tells clients apart: nobody can use another's sessions.
	Name string
	// Servers are those that the client sees, by their names or slugs; "*" is
	// all of them.
	Servers []string
	// Tools, where not empty, are patterns (as in path.Match) of the tools that
	// it sees, by the names that clients have for them: TOOL for any of its
	// servers, SERVER:TOOL for one. Resources and prompts go by server alone.
	Tools []string
}

// Validate checks the patterns.
func (s *Scope) Validate() error {
	for _, p := range s.Tools {
		_, pattern := splitPattern(p)
		if _, err := path.Match(pattern, "x"); err != nil || pattern == "" {
			return fmt.Errorf("tools pattern %q: want TOOL or SERVER:TOOL, with * ? and [a-z] as in file names", relay.Cut([]byte(p), 80))
		}
	}
	return nil
}

func splitPattern(p string) (server, tool string) {
	if server, tool, ok := strings.Cut(p, ":"); ok {
		return Slug(server), tool
	}
	return "", p
}

func (s *Scope) name() string {
	if s == nil {
		return ""
	}
	return "client " + s.Name
}

// server says whether the client sees a server, by its slug.
func (s *Scope) server(slug string) bool {
	return s == nil || slices.ContainsFunc(s.Servers, func(n string) bool { return n == "*" || Slug(n) == slug })
}

// tool says whether the client sees a server's tool, by the name that clients
// have for it.
func (s *Scope) tool(slug, tool string) bool {
	if s == nil {
		return true
	}
	return s.server(slug) && (len(s.Tools) == 0 || slices.ContainsFunc(s.Tools, func(p string) bool {
		server, pattern := splitPattern(p)
		ok, err := path.Match(pattern, tool)
		return ok && err == nil && (server == "" || server == slug)
	}))
}

// narrows says whether the client sees some of a server's tools alone.
func (s *Scope) narrows() bool { return s != nil && len(s.Tools) > 0 }

// whole says whether the client sees every server whole, and so what else there
// is.
func (s *Scope) whole() bool { return s == nil || slices.Contains(s.Servers, "*") && !s.narrows() }

// tools keeps those names that the client sees.
func (s *Scope) tools(slug string, names []string) []string {
	if s == nil {
		return names
	}
	var out []string
	for _, n := range names {
		if s.tool(slug, n) {
			out = append(out, n)
		}
	}
	return out
}

// event is as much of an event as the client may know; false is none of it.
func (s *Scope) event(ev Event) (Event, bool) {
	if s == nil {
		return ev, true
	}
	ev.Text, ev.Stderr = "", "" // they may be about another client's calls
	switch {
	case !s.server(ev.Server), ev.Type == EventCall && !s.tool(ev.Server, ev.Action):
		return ev, false
	case !s.narrows():
		return ev, true
	}
	changed := len(ev.Added)+len(ev.Removed)+len(ev.Changed) > 0
	ev.Added, ev.Removed, ev.Changed = s.tools(ev.Server, ev.Added), s.tools(ev.Server, ev.Removed), s.tools(ev.Server, ev.Changed)
	ev.LeftOut, ev.Flagged, ev.Tools = nil, nil, 0 // they count and name what it does not see
	return ev, ev.Type != EventTools || !changed || len(ev.Added)+len(ev.Removed)+len(ev.Changed) > 0
}

// descriptor is a connector as the client sees it.
func (s *Scope) descriptor(d Descriptor) Descriptor {
	if s.narrows() {
		d.Actions = slices.DeleteFunc(slices.Clone(d.Actions), func(a Action) bool { return !s.tool(d.Name, a.Key) })
	}
	return d
}

// status is a server's state as the client sees it.
func (s *Scope) status(st Status) Status {
	if s != nil {
		st.Stderr = "" // as in event
	}
	if s.narrows() {
		st.Tools, st.LeftOut, st.Unapproved, st.Flagged = 0, nil, nil, nil
	}
	return st
}

type scopeKey struct{}

// withScope puts the client's scope into its request.
func withScope(req *http.Request, s *Scope) *http.Request {
	return req.WithContext(context.WithValue(req.Context(), scopeKey{}, s))
}

// scopeOf is the scope that guard put there.
func scopeOf(req *http.Request) *Scope {
	s, ok := req.Context().Value(scopeKey{}).(*Scope)
	if !ok {
		return &Scope{} // guard was not passed: nothing
	}
	return s
}

// ClientOf names who sent a request that Registry.Handler passed to one of
// Config.Handlers, so that they, too, can tell the sessions of clients apart.
// It is empty where Config.Authorize tells nobody apart.
func ClientOf(req *http.Request) string { return scopeOf(req).name() }

// seen finds a server that the request's client may see.
func (r *Registry) seen(req *http.Request, name string) *entry {
	e := r.entry(Slug(name))
	if e == nil || !scopeOf(req).server(e.slug) {
		return nil
	}
	return e
}
