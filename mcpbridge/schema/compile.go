package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// ErrSchema marks a schema that cannot be compiled within its bounds.
var ErrSchema = errors.New("schema not usable")

// Bounds limit one schema; a zero field takes its default. The largest honest
// schema among 1,541 tools had 44 KB and a depth of 24.
type Bounds struct {
	Bytes int // default 256 KiB
	Depth int // of nested containers; default 64
	Nodes int // subschemas; default 20,000
	// RequireRootType refuses a root without type "object"; otherwise it is
	// taken to be there. A root of another type is refused either way.
	RequireRootType bool
}

// Schema is a compiled schema of an object. It is safe for concurrent use.
type Schema struct {
	resolved *jsonschema.Resolved
	root     *node
	// RootTypeAdded says that the root had no type.
	RootTypeAdded bool
}

// Compile reads a schema in draft 2020-12 or draft-07. Its errors wrap
// ErrSchema and are fit for a report.
func Compile(raw json.RawMessage, b Bounds) (s *Schema, err error) {
	// The library asserts some of what it assumes; a schema that breaks an
	// assertion is one that cannot be compiled.
	defer func() {
		if p := recover(); p != nil {
			s, err = nil, fmt.Errorf("%w: the compiler gave up on it", ErrSchema)
		}
	}()
	if b.Bytes <= 0 {
		b.Bytes = 256 << 10
	}
	if b.Depth <= 0 {
		b.Depth = 64
	}
	if b.Nodes <= 0 {
		b.Nodes = 20_000
	}
	if len(raw) > b.Bytes {
		return nil, fmt.Errorf("%w: it has %d bytes, at most %d are allowed", ErrSchema, len(raw), b.Bytes)
	}
	depth, err := relay.Depth(raw)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSchema, err)
	}
	if depth > b.Depth {
		return nil, fmt.Errorf("%w: it nests %d levels, at most %d are allowed", ErrSchema, depth, b.Depth)
	}
	var doc map[string]any
	if err := json.Unmarshal(raw, &doc); err != nil || doc == nil {
		return nil, fmt.Errorf("%w: it is no JSON object", ErrSchema)
	}
	s = &Schema{}
	switch t, ok := doc["type"]; {
	case ok && t != "object":
		return nil, fmt.Errorf("%w: the root's type is not \"object\"", ErrSchema)
	case !ok && b.RequireRootType:
		return nil, fmt.Errorf("%w: the root has no type", ErrSchema)
	case !ok:
		s.RootTypeAdded = true
	}
	if s.root, err = buildGraph(doc, b.Nodes); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSchema, err)
	}
	var js jsonschema.Schema
	if err := json.Unmarshal(raw, &js); err != nil {
		return nil, fmt.Errorf("%w: %s", ErrSchema, cut(err.Error()))
	}
	if js.Schema, err = dialect(js.Schema); err != nil {
		return nil, err
	}
	js.Type = "object"
	if s.resolved, err = js.Resolve(nil); err != nil {
		return nil, fmt.Errorf("%w: %s", ErrSchema, cut(err.Error()))
	}
	// A reference that leads back to itself without descending into the value
	// shows on the smallest value already.
	w := work{budget: maxWork}
	if err := w.visit(s.root, map[string]any{}, 0); err != nil {
		return nil, fmt.Errorf("%w: it refers to itself", ErrSchema)
	}
	return s, nil
}

// dialect maps the spellings of $schema seen in the wild to those that the
// library knows.
func dialect(uri string) (string, error) {
	s := strings.TrimSuffix(uri, "#")
	_, s, _ = strings.Cut(s, "://")
	switch s {
	case "":
		if uri == "" {
			return "", nil
		}
	case "json-schema.org/draft-07/schema":
		return "http://json-schema.org/draft-07/schema#", nil
	case "json-schema.org/draft/2020-12/schema":
		return "https://json-schema.org/draft/2020-12/schema", nil
	}
	return "", fmt.Errorf("%w: $schema %q is neither draft-07 nor 2020-12", ErrSchema, cut(uri))
}

func cut(s string) string { return relay.Cut([]byte(s), 300) }
