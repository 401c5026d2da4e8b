package schema

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// node is one subschema, with its children sorted by what part of a value
// they look at. It exists to count work, not to judge.
type node struct {
	here    []*node          // applied to the same value
	props   map[string]*node // to one member
	members []*node          // to any member or member's name
	items   []*node          // to any item
	ref     string           // JSON pointer, resolved into here
	weight  int              // work at this node alone
	types   []string         // what "type" allows; nil is everything
	whole   bool             // a keyword compares, hashes or prints the whole value
}

var errNodes = errors.New("too many subschemas")

type builder struct {
	byPath map[string]*node
	left   int
	nested bool // an $id below the root
	refs   bool
}

func buildGraph(doc map[string]any, maxNodes int) (*node, error) {
	b := &builder{byPath: map[string]*node{}, left: maxNodes}
	root, err := b.build(doc, "")
	if err != nil {
		return nil, err
	}
	if b.nested && b.refs {
		return nil, errors.New("references beside a nested $id are not supported")
	}
	for _, n := range b.byPath {
		if n.ref == "" {
			continue
		}
		pointer, err := url.PathUnescape(n.ref[1:])
		target := b.byPath[pointer]
		if err != nil || target == nil {
			return nil, fmt.Errorf("$ref %q leads to no subschema", cut(n.ref))
		}
		n.here = append(n.here, target)
	}
	return root, nil
}

func (b *builder) build(v any, path string) (*node, error) {
	if b.left--; b.left < 0 {
		return nil, errNodes
	}
	n := &node{weight: 1}
	b.byPath[path] = n
	m, ok := v.(map[string]any)
	if !ok {
		if _, ok := v.(bool); !ok {
			return nil, fmt.Errorf("%s is no schema", cut("#"+path))
		}
		return n, nil
	}
	if err := b.refsOf(n, m, path); err != nil {
		return nil, err
	}
	switch t := m["type"].(type) {
	case string:
		n.types = []string{t}
	case []any:
		n.types = []string{}
		for _, e := range t {
			if e, ok := e.(string); ok {
				n.types = append(n.types, e)
			}
		}
	}
	for _, k := range []string{"enum", "const", "uniqueItems", "contains"} {
		_, has := m[k]
		n.whole = n.whole || has
	}
	n.weight += weight(m["enum"]) + weight(m["const"]) + weight(m["required"])
	for k, v := range m {
		p := path + "/" + escapePointer(k)
		var err error
		switch k {
		case "not", "if", "then", "else":
			err = b.add(&n.here, v, p)
		case "allOf", "anyOf", "oneOf":
			err = b.addAll(&n.here, v, p)
		case "dependentSchemas", "dependencies":
			err = b.addMap(&n.here, v, p)
		case "properties":
			err = b.addProps(n, v, p)
		case "patternProperties":
			err = b.addMap(&n.members, v, p)
		case "additionalProperties", "unevaluatedProperties", "propertyNames":
			err = b.add(&n.members, v, p)
		case "prefixItems":
			err = b.addAll(&n.items, v, p)
		case "items":
			if _, list := v.([]any); list {
				err = b.addAll(&n.items, v, p)
			} else {
				err = b.add(&n.items, v, p)
			}
		case "additionalItems", "unevaluatedItems", "contains":
			err = b.add(&n.items, v, p)
		case "$defs", "definitions":
			var unused []*node // reached by reference alone
			err = b.addMap(&unused, v, p)
		}
		if err != nil {
			return nil, err
		}
	}
	return n, nil
}

func (b *builder) refsOf(n *node, m map[string]any, path string) error {
	for _, k := range []string{"$dynamicRef", "$recursiveRef"} {
		if _, ok := m[k]; ok {
			return fmt.Errorf("%s is not supported", k)
		}
	}
	if id, ok := m["$id"].(string); ok {
		if len(id) > 256 {
			return errors.New("$id is too long")
		}
		b.nested = b.nested || path != ""
	}
	if a, ok := m["$anchor"].(string); ok && len(a) > 256 {
		return errors.New("$anchor is too long")
	}
	ref, ok := m["$ref"].(string)
	if !ok {
		return nil
	}
	if ref != "#" && !strings.HasPrefix(ref, "#/") {
		return fmt.Errorf("$ref %q leads out of the schema", cut(ref))
	}
	b.refs = true
	n.ref = ref
	return nil
}

func (b *builder) add(to *[]*node, v any, path string) error {
	n, err := b.build(v, path)
	*to = append(*to, n)
	return err
}

func (b *builder) addAll(to *[]*node, v any, path string) error {
	list, ok := v.([]any)
	if !ok {
		return fmt.Errorf("%s is no list of schemas", cut("#"+path))
	}
	for i, e := range list {
		if err := b.add(to, e, path+"/"+strconv.Itoa(i)); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) addMap(to *[]*node, v any, path string) error {
	m, ok := v.(map[string]any)
	if !ok {
		return fmt.Errorf("%s is no map of schemas", cut("#"+path))
	}
	for k, e := range m {
		if _, list := e.([]any); list {
			continue // draft-07's dependencies may list names instead
		}
		if err := b.add(to, e, path+"/"+escapePointer(k)); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) addProps(n *node, v any, path string) error {
	m, ok := v.(map[string]any)
	if !ok {
		return fmt.Errorf("%s is no map of schemas", cut("#"+path))
	}
	n.props = make(map[string]*node, len(m))
	n.weight += len(m)
	for k, e := range m {
		c, err := b.build(e, path+"/"+escapePointer(k))
		if err != nil {
			return err
		}
		n.props[k] = c
	}
	return nil
}

func escapePointer(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "~", "~0"), "/", "~1")
}
