package mcpbridge

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// maxDefinitionDepth bounds how deeply a tool's definition may nest.
const maxDefinitionDepth = 128

var errDeep = fmt.Errorf("the definition nests more than %d levels", maxDefinitionDepth)

// canonical is a JSON value without white space, its members in the order of
// their names and its strings written in one way. Numbers keep their digits. A
// member given twice stays twice: parsers do not agree on which one counts.
func canonical(raw []byte) ([]byte, error) { return appendCanonical(nil, raw, 0) }

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func appendCanonical(out, raw []byte, depth int) ([]byte, error) {
	raw = bytes.TrimSpace(raw)
	if depth > maxDefinitionDepth {
		return nil, errDeep
	}
	if len(raw) == 0 {
		return nil, errors.New("no JSON")
	}
	var err error
	switch raw[0] {
	case '{':
		ms, err := sorted(raw)
		if err != nil {
			return nil, err
		}
		out = append(out, '{')
		for i, m := range ms {
			if i > 0 {
				out = append(out, ',')
			}
			out = append(append(out, quoted(m.name)...), ':')
			if out, err = appendCanonical(out, m.value, depth+1); err != nil {
				return nil, err
			}
		}
		return append(out, '}'), nil
	case '[':
		out = append(out, '[')
		for i, el := range relay.Elements(raw) {
			if i > 0 {
				out = append(out, ',')
			}
			if out, err = appendCanonical(out, el, depth+1); err != nil {
				return nil, err
			}
		}
		return append(out, ']'), nil
	case '"':
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return nil, err
		}
		return append(out, quoted(s)...), nil
	}
	return append(out, raw...), nil
}

type member struct {
	name  string
	value []byte
}

func sorted(object []byte) ([]member, error) {
	var ms []member
	err := relay.Members(object, func(k string, v relay.Span) bool {
		ms = append(ms, member{k, v.Of(object)})
		return true
	})
	slices.SortStableFunc(ms, func(a, b member) int { return bytes.Compare([]byte(a.name), []byte(b.name)) })
	return ms, err
}

// ToolChange is how one tool's definition differs from the approved one.
type ToolChange struct {
	Tool string `json:"tool"`
	Kind string `json:"kind"` // added, removed or changed
	// Members are the places that differ. For a tool that was added or removed
	// they are all it has.
	Members []MemberChange `json:"members"`
}

// MemberChange is one value within a definition, in canonical JSON; empty
// where there is none.
type MemberChange struct {
	Path string `json:"path"` // a JSON pointer
	Old  string `json:"old,omitempty"`
	New  string `json:"new,omitempty"`
}

// compare lists the changes by tool name.
func compare(old, now definitions) []ToolChange {
	var out []ToolChange
	names := slices.Concat(slices.Collect(maps.Keys(old)), slices.Collect(maps.Keys(now)))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		a, had := old[name]
		b, has := now[name]
		c := ToolChange{Tool: name, Kind: "changed"}
		switch {
		case !had:
			c.Kind = "added"
		case !has:
			c.Kind = "removed"
		case same(a, b):
			continue
		}
		av, bv := map[string]string{}, map[string]string{}
		flatten(av, a, "", 0)
		flatten(bv, b, "", 0)
		paths := slices.Concat(slices.Collect(maps.Keys(av)), slices.Collect(maps.Keys(bv)))
		slices.Sort(paths)
		for _, p := range slices.Compact(paths) {
			if av[p] != bv[p] {
				c.Members = append(c.Members, MemberChange{p, av[p], bv[p]})
			}
		}
		out = append(out, c)
	}
	return out
}

// flatten collects the scalars and empty containers of a value by their place.
func flatten(into map[string]string, raw []byte, path string, depth int) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || depth > maxDefinitionDepth {
		return
	}
	n := 0
	add := func(name string, value []byte) {
		n++
		p := path + "/" + pointerName(name)
		for _, again := into[p]; again; _, again = into[p] {
			p += "#2" // a member given twice
		}
		flatten(into, value, p, depth+1)
	}
	switch raw[0] {
	case '{':
		ms, err := sorted(raw)
		if err != nil {
			return
		}
		for _, m := range ms {
			add(m.name, m.value)
		}
	case '[':
		for i, el := range relay.Elements(raw) {
			add(strconv.Itoa(i), el)
		}
	}
	if c, err := canonical(raw); n == 0 && err == nil {
		into[path] = string(c)
	}
}

func pointerName(s string) string {
	return string(bytes.ReplaceAll(bytes.ReplaceAll([]byte(s), []byte("~"), []byte("~0")), []byte("/"), []byte("~1")))
}

// WriteChanges writes changes for people. What servers wrote is shown in ASCII
// with escapes, so that it can neither move a cursor nor look like something
// else, and cut to 400 characters.
func WriteChanges(w io.Writer, changes []ToolChange) error {
	var b bytes.Buffer
	show := func(s string) string {
		var out []byte
		for _, r := range s {
			switch {
			case len(out) > 400:
				return string(out) + "…"
			case r < ' ' || r > '~' && r <= 0xffff:
				out = fmt.Appendf(out, `\u%04x`, r)
			case r > '~':
				out = fmt.Appendf(out, `\U%08x`, r)
			default:
				out = append(out, byte(r))
			}
		}
		return string(out)
	}
	for _, c := range changes {
		sign := map[string]string{"added": "+", "removed": "-"}[c.Kind]
		if sign == "" {
			sign = "~"
		}
		fmt.Fprintf(&b, "%s %s (%s)\n", sign, show(c.Tool), c.Kind)
		for _, m := range c.Members {
			fmt.Fprintf(&b, "    %s\n", show(m.Path))
			if m.Old != "" {
				fmt.Fprintf(&b, "      - %s\n", show(m.Old))
			}
			if m.New != "" {
				fmt.Fprintf(&b, "      + %s\n", show(m.New))
			}
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}
