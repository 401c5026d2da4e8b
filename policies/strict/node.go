package strict

import (
	"strconv"
	"strings"
)

// Kind is what a Node holds.
type Kind int

// The kinds. The zero value is none of them.
const (
	Null Kind = iota + 1
	Bool
	Int
	Float
	String
	List
	Mapping
)

// String returns the kind as messages spell it.
func (k Kind) String() string {
	switch k {
	case Null:
		return "nothing"
	case Bool:
		return "true or false"
	case Int:
		return "a whole number"
	case Float:
		return "a number"
	case String:
		return "a string"
	case List:
		return "a list"
	case Mapping:
		return "a mapping"
	}
	return "an unknown value"
}

// Node is one value of a document with its place in the file. Line and Col
// count from 1; Col counts characters. A tree shares no node between two
// places unless the document did (by an alias).
type Node struct {
	Kind      Kind
	Line, Col int
	Text      string  // of a scalar, as the document gave it, unquoted
	Items     []*Node // of a List
	Fields    []Field // of a Mapping, in the document's order
}

// Field is one key of a Mapping with its value. Line and Col are the key's.
type Field struct {
	Name      string
	Line, Col int
	Value     *Node
}

// Get returns the value of a key, or nil.
func (n *Node) Get(name string) *Node {
	if n == nil {
		return nil
	}
	for _, f := range n.Fields {
		if f.Name == name {
			return f.Value
		}
	}
	return nil
}

// At follows a path such as allow[2].ports[0] and returns the deepest node
// that is there: a fault at a missing key is best shown at what lacks it. It
// never returns nil for a non-nil n.
func (n *Node) At(path string) *Node {
	for path != "" && n != nil {
		var next *Node
		switch path[0] {
		case '[':
			num, rest, ok := strings.Cut(path[1:], "]")
			i, err := strconv.Atoi(num)
			if !ok || err != nil || i < 0 || i >= len(n.Items) {
				return n
			}
			next, path = n.Items[i], strings.TrimPrefix(rest, ".")
		default:
			end := strings.IndexAny(path, ".[")
			if end < 0 {
				end = len(path)
			}
			next = n.Get(path[:end])
			path = strings.TrimPrefix(path[end:], ".")
		}
		if next == nil {
			return n
		}
		n = next
	}
	return n
}
