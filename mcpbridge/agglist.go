package mcpbridge

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/sandboxd/sandboxd/mcpbridge/client"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// Bounds of the aggregated lists.
const (
	pageItems = 1000
	pageBytes = 8 << 20
	// listBytes bounds what one server gives to a list of resources or prompts.
	listBytes = 4 << 20
)

// listKind is one of the lists that are put together when they are asked for.
type listKind struct{ method, member, capability, key string }

func kindOf(method string) listKind {
	switch method {
	case "resources/list":
		return listKind{method, "resources", "resources", "uri"}
	case "resources/templates/list":
		return listKind{method, "resourceTemplates", "resources", "uriTemplate"}
	}
	return listKind{method, "prompts", "prompts", "name"}
}

// promptRef is what a prompt's aggregated name stands for.
type promptRef struct {
	e    *entry
	name string
}

// pages is a list that is longer than one page.
type pages struct {
	gen   int
	items [][]byte
}

// page answers a list request. A cursor is good until the list is asked for
// from its start again.
func (s *aggSession) page(method, member string, id, params []byte, fetch func() [][]byte) []byte {
	span, twice := onlyMember(params, "cursor")
	if twice {
		return relay.ErrorLine(id, -32602, "params.cursor is given twice")
	}
	s.mu.Lock()
	p := s.lists[method]
	s.mu.Unlock()
	if s.modern != nil {
		return modernPage(member, id, span.Of(params), fetch())
	}
	at := 0
	if span.End == 0 || string(span.Of(params)) == "null" {
		next := &pages{items: fetch()}
		if p != nil {
			next.gen = p.gen + 1
		}
		p = next
	} else {
		var cursor string
		gen, i, ok := "", "", false
		if json.Unmarshal(span.Of(params), &cursor) == nil {
			gen, i, ok = strings.Cut(cursor, ".")
		}
		n, err := strconv.Atoi(i)
		if !ok || err != nil || p == nil || gen != strconv.Itoa(p.gen) || n <= 0 || n >= len(p.items) {
			return relay.ErrorLine(id, -32602, "no such cursor: ask for the list from its start")
		}
		at = n
	}
	out, end := onePage(member, p.items, at)
	start := at
	at = end
	kept := &pages{gen: p.gen}
	if at < len(p.items) {
		kept = p
		out = fmt.Appendf(out, `,"nextCursor":"%d.%d"`, p.gen, at)
	} else if start > 0 {
		kept = p // the pages before can be asked for again
	}
	s.mu.Lock()
	s.lists[method] = kept
	s.mu.Unlock()
	return resultLine(id, append(out, '}'))
}

// onePage writes as many items as fit, and says where the next page begins. The
// object is left open.
func onePage(member string, items [][]byte, at int) (out []byte, end int) {
	out = append([]byte(`{"`), member...)
	out = append(out, `":[`...)
	start := at
	for ; at < len(items) && at-start < pageItems && len(out) < pageBytes; at++ {
		if at > start {
			out = append(out, ',')
		}
		out = append(out, items[at]...)
	}
	return append(out, ']'), at
}

// modernPage answers a list request of the revision without sessions: the
// cursor itself says how far the client is, and after which item.
func modernPage(member string, id, cursor []byte, items [][]byte) []byte {
	mark := func(n int) string {
		sum := sha256.Sum256(items[n-1])
		return fmt.Sprintf("%d.%x", n, sum[:8])
	}
	at := 0
	if len(cursor) > 0 && string(cursor) != "null" {
		var text string
		ok := json.Unmarshal(cursor, &text) == nil
		n, _, _ := strings.Cut(text, ".")
		var err error
		if at, err = strconv.Atoi(n); !ok || err != nil || at <= 0 || at >= len(items) || text != mark(at) {
			return relay.ErrorLine(id, -32602, "no such cursor: ask for the list from its start")
		}
	}
	out, end := onePage(member, items, at)
	if end < len(items) {
		out = fmt.Appendf(out, `,"nextCursor":"%s"`, mark(end))
	}
	return resultLine(id, append(out, '}'))
}

// collect asks all servers that run for one list, and gives what they named
// before for those that do not answer.
func (s *aggSession) collect(ctx context.Context, k listKind) [][]byte {
	entries, slugs := s.entries(), s.reg.slugs()
	per := make([][]json.RawMessage, len(entries))
	var wg sync.WaitGroup
	for i, e := range entries {
		wg.Go(func() { per[i] = s.fetch(ctx, e, k) })
	}
	wg.Wait()
	var out [][]byte
	prompts := map[string]promptRef{}
	for i, e := range entries {
		for _, raw := range per[i] {
			item, name, ref, err := e.listed(k, raw, slugs)
			if err == nil && name != "" {
				if _, taken := prompts[name]; taken {
					err = fmt.Errorf("its aggregated name %s is taken", name)
				}
				prompts[name] = ref
			}
			if err != nil {
				e.log.Warn("left out of a list", "list", k.member, "reason", relay.Cut([]byte(err.Error()), 300))
				continue
			}
			out = append(out, item)
		}
	}
	if k.key == "name" {
		s.mu.Lock()
		s.prompts = prompts
		s.mu.Unlock()
	}
	return out
}

// fetch asks one server. A slow one is left out, so that it delays no other
// for long.
func (s *aggSession) fetch(ctx context.Context, e *entry, k listKind) []json.RawMessage {
	cl := s.present(e)
	if cl == nil {
		// Not running: what it said before is good enough. If it never said
		// anything, it is started for that.
		items, has := e.known(k)
		if items != nil || !has {
			return items
		}
		var err error
		if cl, err = e.acquire(ctx); err != nil {
			return nil
		}
		defer e.release()
	}
	if _, ok := cl.Init().Capabilities[k.capability]; !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	items, more, err := cl.List(ctx, k.method, k.member, client.ListBounds{Items: e.srv.Limits.Tools, Bytes: listBytes})
	if err != nil {
		e.log.Warn("server's list could not be read", "list", k.member, "error", relay.Cut([]byte(err.Error()), 300))
		items, _ = e.known(k)
		return items
	}
	if items == nil {
		items = []json.RawMessage{}
	}
	if more {
		e.log.Warn("server's list is longer than the limit", "list", k.member, "limit", e.srv.Limits.Tools)
	}
	e.mu.Lock()
	if e.lists == nil {
		e.lists = map[string][]json.RawMessage{}
	}
	e.lists[k.method] = items
	e.mu.Unlock()
	return items
}

// known is what a server named before, nil if it was never asked, and whether
// it has such a list at all.
func (e *entry) known(k listKind) (items []json.RawMessage, has bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lists[k.method], e.state == StateIdle && slices.Contains(e.capabilities, k.capability)
}

// listed makes one item of a server one of the aggregated list: a URI with the
// server's prefix, a prompt with the server's name before its own.
func (e *entry) listed(k listKind, raw []byte, slugs []string) (item []byte, name string, ref promptRef, err error) {
	span, twice := onlyMember(raw, k.key)
	var own string
	if twice || json.Unmarshal(span.Of(raw), &own) != nil || own == "" {
		return nil, "", ref, fmt.Errorf("%s must be given once, as a string", k.key)
	}
	with := prefixURI(e.slug, span.Of(raw))
	if k.key == "name" {
		name = AggregateName(e.slug, own)
		switch {
		case !toolNameOK(own):
			return nil, "", ref, fmt.Errorf("prompt %q: the name is not 1 to 128 characters of A-Z a-z 0-9 _ - . /", relay.Cut([]byte(own), 80))
		case !ownsName(name, e.slug, slugs):
			return nil, "", ref, fmt.Errorf("prompt %s belongs to a server with a longer name", name)
		}
		with, ref = quoted(name), promptRef{e, own}
	}
	item, err = relay.Splice(raw, relay.Edit{Span: span, With: with})
	return item, name, ref, err
}

// uriPrefix stands before every URI of a server at the aggregated endpoint.
// It is the begin of a scheme (RFC 3986, 3.1), and two servers never share it,
// so that a URI says by itself whose it is.
func uriPrefix(slug string) string { return "mcp-" + strings.ReplaceAll(slug, "_", "-") + "+" }

// prefixURI puts the prefix into a JSON string. What is no string stays.
func prefixURI(slug string, jsonString []byte) []byte {
	if len(jsonString) < 2 || jsonString[0] != '"' {
		return jsonString
	}
	return slices.Concat([]byte(`"`+uriPrefix(slug)), jsonString[1:])
}

// resourceOf finds the server of a URI, and the URI as the server knows it.
func (s *aggSession) resourceOf(uri string) (*entry, string) {
	rest, ok := strings.CutPrefix(uri, "mcp-")
	name, own, found := strings.Cut(rest, "+")
	if !ok || !found || strings.Contains(name, "_") {
		return nil, ""
	}
	e := s.reg.entry(strings.ReplaceAll(name, "-", "_"))
	if e == nil || !s.scope.server(e.slug) {
		return nil, ""
	}
	return e, own
}

// prefixResult prefixes the URIs of resources that a result links or embeds,
// so that a client can read what it is pointed to. Nothing else changes.
func prefixResult(slug, method string, raw []byte) []byte {
	if !bytes.Contains(raw, []byte(`"uri"`)) {
		return raw
	}
	var edits []relay.Edit
	uri := func(object []byte, at int) {
		if span, twice := onlyMember(object, "uri"); !twice && span.End != 0 {
			moved := relay.Span{Start: span.Start + at, End: span.End + at}
			edits = append(edits, relay.Edit{Span: moved, With: prefixURI(slug, span.Of(object))})
		}
	}
	block := func(object []byte, at int) {
		typ, _ := onlyMember(object, "type")
		switch string(typ.Of(object)) {
		case `"resource_link"`:
			uri(object, at)
		case `"resource"`:
			if span, twice := onlyMember(object, "resource"); !twice && span.End != 0 {
				uri(span.Of(object), at+span.Start)
			}
		}
	}
	member, each := "content", block
	switch method {
	case "resources/read":
		member, each = "contents", uri
	case "prompts/get":
		member, each = "messages", func(object []byte, at int) {
			if span, twice := onlyMember(object, "content"); !twice && span.End != 0 {
				block(span.Of(object), at+span.Start)
			}
		}
	}
	list, twice := onlyMember(raw, member)
	if twice || list.End == 0 {
		return raw
	}
	text := list.Of(raw)
	for _, el := range relay.ElementSpans(text) {
		if b := el.Of(text); b[0] == '{' && bytes.Contains(b, []byte(`"uri"`)) {
			each(b, list.Start+el.Start)
		}
	}
	out, err := relay.Splice(raw, edits...)
	if err != nil {
		return raw
	}
	return out
}
