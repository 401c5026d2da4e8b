package config

import (
	"errors"
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"

	"github.com/sandboxd/sandboxd/policies/strict"
)

// ParseTOML turns a TOML document into the same tree as strict.ParseYAML, so
// that both forms meet one set of checks. It returns nil after a fault.
func ParseTOML(r *strict.Reporter, data []byte) *strict.Node {
	t := &tomlTree{r: r, data: data}
	for i, c := range data {
		if c == '\n' {
			t.breaks = append(t.breaks, i)
		}
	}
	if len(data) > strict.MaxBytes {
		r.Errorf(nil, "", "the document has %d bytes, more than the %d that are read", len(data), strict.MaxBytes)
		return nil
	}
	// The library's decoder is what knows every rule of the language, such as
	// that of keys given twice; its parser alone knows places.
	if err := toml.Unmarshal(data, &map[string]any{}); err != nil {
		var de *toml.DecodeError
		if errors.As(err, &de) {
			line, col := de.Position()
			r.Errorf(&strict.Node{Line: line, Col: col}, "", "not valid TOML: %.200s", strings.TrimPrefix(de.Error(), "toml: "))
		} else {
			r.Errorf(nil, "", "not valid TOML: %.200s", strings.TrimPrefix(err.Error(), "toml: "))
		}
		return nil
	}
	root := &strict.Node{Kind: strict.Mapping, Line: 1, Col: 1}
	t.parser.Reset(data)
	for table := root; !t.over && t.parser.NextExpression(); {
		e := t.parser.Expression()
		switch e.Kind {
		case unstable.KeyValue:
			t.keyValue(table, e, 0)
		case unstable.Table, unstable.ArrayTable:
			table = t.header(root, e)
		default: // a comment
		}
	}
	if err := t.parser.Error(); err != nil {
		r.Errorf(nil, "", "not valid TOML: %.200s", err.Error())
		return nil
	}
	if t.over {
		return nil
	}
	return root
}

type tomlTree struct {
	r      *strict.Reporter
	parser unstable.Parser
	data   []byte
	breaks []int // offsets of line breaks
	nodes  int
	over   bool
}

// header opens [a.b] or [[a.b]] and returns the table that follows.
func (t *tomlTree) header(root *strict.Node, e *unstable.Node) *strict.Node {
	at := root
	for it := e.Key(); it.Next(); {
		k := it.Node()
		next := at.Get(string(k.Data))
		switch {
		case it.IsLast() && e.Kind == unstable.ArrayTable:
			if next == nil {
				next = t.add(at, k, &strict.Node{Kind: strict.List})
			}
			item := t.node(k, strict.Mapping)
			next.Items = append(next.Items, item)
			at = item
		case next == nil:
			at = t.add(at, k, &strict.Node{Kind: strict.Mapping})
		case next.Kind == strict.List && len(next.Items) > 0:
			at = next.Items[len(next.Items)-1]
		default:
			at = next
		}
	}
	return at
}

// keyValue adds a.b.c = value below table.
func (t *tomlTree) keyValue(table *strict.Node, e *unstable.Node, depth int) {
	at := table
	for it := e.Key(); it.Next(); {
		k := it.Node()
		if it.IsLast() {
			t.add(at, k, t.value(e.Value(), k, depth))
			return
		}
		next := at.Get(string(k.Data))
		if next == nil {
			next = t.add(at, k, &strict.Node{Kind: strict.Mapping})
		}
		at = next
	}
}

func (t *tomlTree) value(v, key *unstable.Node, depth int) *strict.Node {
	if depth > strict.MaxDepth {
		if !t.over {
			t.r.Errorf(t.node(key, strict.Null), "", "the document is nested more than %d levels deep", strict.MaxDepth)
		}
		t.over = true
		return t.node(key, strict.Null)
	}
	at := v
	if v.Raw.Length == 0 {
		at = key // an array has no place of its own
	}
	n := t.node(at, strict.String)
	n.Text = string(v.Data)
	switch v.Kind {
	case unstable.String:
	case unstable.Bool:
		n.Kind = strict.Bool
	case unstable.Integer:
		n.Kind = strict.Int
	case unstable.Float:
		n.Kind = strict.Float
	case unstable.Array:
		n.Kind, n.Text = strict.List, ""
		for it := v.Children(); it.Next(); {
			if it.Node().Kind != unstable.Comment {
				n.Items = append(n.Items, t.value(it.Node(), at, depth+1))
			}
		}
	case unstable.InlineTable:
		n.Kind, n.Text = strict.Mapping, ""
		for it := v.Children(); it.Next(); {
			if it.Node().Kind == unstable.KeyValue {
				t.keyValue(n, it.Node(), depth+1)
			}
		}
	default:
		n.Kind = strict.Null
		t.r.Errorf(n, "", "a date or a time is not a value here: put it in quotes")
	}
	return n
}

// add puts a value under a key, both at the key's place unless the value has
// its own.
func (t *tomlTree) add(to *strict.Node, key *unstable.Node, v *strict.Node) *strict.Node {
	line, col := t.place(key)
	if v.Line == 0 {
		v.Line, v.Col = line, col
	}
	to.Fields = append(to.Fields, strict.Field{Name: string(key.Data), Line: line, Col: col, Value: v})
	return v
}

func (t *tomlTree) node(at *unstable.Node, kind strict.Kind) *strict.Node {
	if t.nodes++; t.nodes > strict.MaxNodes && !t.over {
		t.over = true
		t.r.Errorf(nil, "", "the document has more than %d values", strict.MaxNodes)
	}
	n := &strict.Node{Kind: kind}
	n.Line, n.Col = t.place(at)
	return n
}

// place turns an offset into a line and a column in characters.
func (t *tomlTree) place(at *unstable.Node) (line, col int) {
	offset := min(int(at.Raw.Offset), len(t.data))
	line = sort.SearchInts(t.breaks, offset)
	start := 0
	if line > 0 {
		start = t.breaks[line-1] + 1
	}
	return line + 1, utf8.RuneCount(t.data[start:offset]) + 1
}
