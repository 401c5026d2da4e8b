package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// maxWork bounds one validation, in visits of a subschema and blocks of 64
// bytes of a value, beside one for each byte of the value. An honest call needs
// under a thousand.
const maxWork = 1_000_000

const maxVisitDepth = 512

// DefaultValueDepth bounds the nesting of a value.
const DefaultValueDepth = 128

var errWork = errors.New("checking it takes too much work")

// InvalidError says where a value breaks its schema.
type InvalidError struct {
	// Path is a JSON pointer (RFC 6901) into the value; * stands for an item or
	// member whose own name the validator does not give. Empty is the root.
	Path string
	// Reason is one clause; it quotes the value and is cut.
	Reason string
}

// Error joins path and reason.
func (e *InvalidError) Error() string {
	if e.Path == "" {
		return e.Reason
	}
	return e.Path + ": " + e.Reason
}

// Validate checks a JSON value; a failure is *InvalidError. Numbers are
// compared as 64-bit floats; the bytes themselves are not changed.
func (s *Schema) Validate(raw json.RawMessage) (err error) {
	defer func() { // as in Compile
		if p := recover(); p != nil {
			err = &InvalidError{Reason: "the validator gave up on it"}
		}
	}()
	depth, err := relay.Depth(raw)
	if err != nil {
		return &InvalidError{Reason: err.Error()}
	}
	if depth > DefaultValueDepth {
		return &InvalidError{Reason: fmt.Sprintf("it nests %d levels, at most %d are allowed", depth, DefaultValueDepth)}
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		return &InvalidError{Reason: cut(err.Error())}
	}
	w := work{budget: maxWork + len(raw)}
	if err := w.visit(s.root, v, 0); err != nil {
		return &InvalidError{Reason: err.Error()}
	}
	if err := s.resolved.Validate(v); err != nil {
		return locate(err)
	}
	return nil
}

// work walks a schema and a value together as a validator would at worst, and
// gives up when that is too much.
type work struct{ budget int }

func (w *work) spend(n int) bool {
	w.budget -= n
	return w.budget >= 0
}

func (w *work) visit(n *node, v any, depth int) error {
	if depth > maxVisitDepth || !w.spend(n.weight) {
		return errWork
	}
	// The validator prints a value of the wrong type, all of it.
	if (n.whole || !n.takes(v)) && !w.size(v) {
		return errWork
	}
	for _, c := range n.here {
		if err := w.visit(c, v, depth+1); err != nil {
			return err
		}
	}
	switch v := v.(type) {
	case map[string]any:
		return w.visitObject(n, v, depth)
	case []any:
		for _, e := range v {
			for _, c := range n.items {
				if err := w.visit(c, e, depth+1); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// takes says whether a large value has an allowed type.
func (n *node) takes(v any) bool {
	if n.types == nil {
		return true
	}
	t := ""
	switch v.(type) {
	case map[string]any:
		t = "object"
	case []any:
		t = "array"
	case string:
		t = "string"
	default:
		return true // a scalar is small
	}
	return slices.Contains(n.types, t)
}

func (w *work) visitObject(n *node, v map[string]any, depth int) error {
	for k, e := range v {
		if c := n.props[k]; c != nil {
			if err := w.visit(c, e, depth+1); err != nil {
				return err
			}
		}
		for _, c := range n.members {
			if err := w.visit(c, e, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// size spends what printing or comparing a value costs.
func (w *work) size(v any) bool {
	switch v := v.(type) {
	case string:
		return w.spend(len(v) / 64)
	case []any:
		for _, e := range v {
			if !w.spend(1) || !w.size(e) {
				return false
			}
		}
	case map[string]any:
		for k, e := range v {
			if !w.spend(1+len(k)/64) || !w.size(e) {
				return false
			}
		}
	}
	return true
}

// weight is how large a keyword's own value is, in the same unit.
func weight(v any) int {
	w := work{budget: maxWork}
	w.size(v)
	return maxWork - w.budget
}

// locate turns the library's chain of "validating SCHEMA-PATH: " into a path
// of the value: within one subschema, what the path gained through
// properties or items is a step into the value; a jump along $ref is none.
func locate(err error) *InvalidError {
	msg := err.Error()
	var path []string
	prev := ""
	for {
		rest, ok := strings.CutPrefix(msg, "validating ")
		if !ok {
			break
		}
		at, tail, ok := strings.Cut(rest, ": ")
		if !ok {
			break
		}
		msg = tail
		if at == "root" {
			at = ""
		}
		if gained, ok := strings.CutPrefix(at, prev); ok && at != "" {
			path = append(path, steps(gained)...)
		}
		prev = at
	}
	p := strings.Join(path, "/")
	if p != "" {
		p = "/" + p
	}
	return &InvalidError{Path: p, Reason: cut(msg)}
}

func steps(schemaPath string) []string {
	segs := strings.Split(strings.TrimPrefix(schemaPath, "/"), "/")
	var out []string
	for i := 0; i < len(segs); i++ {
		switch segs[i] {
		case "properties":
			if i++; i < len(segs) {
				out = append(out, segs[i])
			}
		case "items", "prefixItems", "contains", "additionalItems", "unevaluatedItems", "additionalProperties", "unevaluatedProperties":
			out = append(out, "*")
			if i+1 < len(segs) {
				if _, err := strconv.Atoi(segs[i+1]); err == nil {
					i++
				}
			}
		case "patternProperties":
			i++
			out = append(out, "*")
		case "allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies":
			i++
		}
	}
	return out
}
