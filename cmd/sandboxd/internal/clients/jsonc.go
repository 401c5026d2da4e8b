package clients

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"unicode/utf8"

	"github.com/tailscale/hujson"

	"github.com/sandboxd/sandboxd/policies/strict"
)

// parseJSON turns JSON, with comments and trailing commas where there are any,
// into the tree of strict. It returns nil after a fault. A key given twice is
// one: clients do not agree on which counts.
func parseJSON(r *strict.Reporter, data []byte) *strict.Node {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	v, err := parseHu(data)
	if err != nil {
		r.Errorf(nil, "", "%v", err)
		return nil
	}
	t := jsonTree{r: r}
	for i, c := range data {
		if c == '\n' {
			t.breaks = append(t.breaks, i)
		}
	}
	return t.node(&v, "")
}

// parseHu bounds what the parser, which recurses, is given. Its errors show
// no text of the document, which may hold a secret.
func parseHu(data []byte) (hujson.Value, error) {
	switch {
	case len(data) > strict.MaxBytes:
		return hujson.Value{}, fmt.Errorf("the document has %d bytes, more than the %d that are read", len(data), strict.MaxBytes)
	case !utf8.Valid(data):
		return hujson.Value{}, errors.New("the document is not UTF-8")
	case tooDeep(data):
		return hujson.Value{}, fmt.Errorf("the document is nested more than %d levels deep", strict.MaxDepth)
	}
	v, err := hujson.Parse(data)
	if err != nil {
		var line, col int
		if _, scanErr := fmt.Sscanf(err.Error(), "hujson: line %d, column %d:", &line, &col); scanErr == nil {
			return v, fmt.Errorf("line %d, column %d is not valid JSON", line, col)
		}
		return v, errors.New("not valid JSON")
	}
	return v, nil
}

// tooDeep looks at brackets outside of strings. A bracket in a comment counts
// too, which can only refuse more.
func tooDeep(data []byte) bool {
	depth, inString := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
			if c == '\n' { // no string goes on: a quote in a comment began it
				inString = false
			}
		case c == '[' || c == '{':
			if depth++; depth > strict.MaxDepth {
				return true
			}
		case c == ']' || c == '}':
			depth--
		}
	}
	return false
}

type jsonTree struct {
	r      *strict.Reporter
	breaks []int // offsets of line breaks
}

func (t *jsonTree) place(offset int) (line, col int) {
	i := sort.SearchInts(t.breaks, offset)
	start := 0
	if i > 0 {
		start = t.breaks[i-1] + 1
	}
	return i + 1, offset - start + 1
}

func (t *jsonTree) node(v *hujson.Value, path string) *strict.Node {
	n := &strict.Node{}
	n.Line, n.Col = t.place(v.StartOffset)
	switch x := v.Value.(type) {
	case *hujson.Object:
		n.Kind = strict.Mapping
		seen := map[string]bool{}
		for i := range x.Members {
			m := &x.Members[i]
			name := text(m.Name.Value)
			f := strict.Field{Name: name}
			f.Line, f.Col = t.place(m.Name.StartOffset)
			if seen[name] {
				t.r.Errorf(&strict.Node{Line: f.Line, Col: f.Col}, strict.Child(path, name), "was given before")
				continue
			}
			seen[name] = true
			f.Value = t.node(&m.Value, strict.Child(path, name))
			n.Fields = append(n.Fields, f)
		}
	case *hujson.Array:
		n.Kind = strict.List
		for i := range x.Elements {
			n.Items = append(n.Items, t.node(&x.Elements[i], strict.Index(path, i)))
		}
	case hujson.Literal:
		n.Text = text(x)
		switch x.Kind() {
		case 'n':
			n.Kind = strict.Null
		case 't', 'f':
			n.Kind = strict.Bool
		case '0':
			n.Kind = strict.Int
			if bytes.ContainsAny(x, ".eE") {
				n.Kind = strict.Float
			}
		default:
			n.Kind = strict.String
		}
	}
	return n
}

// text is a literal's text, unquoted.
func text(v hujson.ValueTrimmed) string {
	l, ok := v.(hujson.Literal)
	if !ok {
		return ""
	}
	var s string
	if l.Kind() == '"' && json.Unmarshal(l, &s) == nil {
		return s
	}
	return string(l)
}
