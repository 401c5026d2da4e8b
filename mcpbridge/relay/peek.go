package relay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// Kind says what a line is.
type Kind int

// The kinds. The zero value is a line that is no JSON-RPC 2.0.
const (
	Stray Kind = iota
	Request
	Notification
	Response
	Batch // an array of messages (2025-03-26 alone allowed it)
)

// Span is a half-open range of bytes; the zero Span is absent, since no
// member's value can begin at 0.
type Span struct{ Start, End int }

// Of returns the bytes of b that the span covers, or nil where it is absent.
func (s Span) Of(b []byte) []byte {
	if s.End == 0 {
		return nil
	}
	return b[s.Start:s.End:s.End]
}

// Message is what Peek saw of one line: where its members are, not their
// copies.
type Message struct {
	Kind   Kind
	Method string // unescaped
	// ID, Params, Result and Error are the members' values as they stand in
	// the line. Of a member given twice the last counts, as parsers have it.
	ID, Params, Result, Error Span
	// Duplicate says that one of the envelope's members was given twice, or once
	// more in other case, which two parsers can read in two ways: some, Go's
	// among them, do not tell case apart.
	Duplicate bool
	// Depth is how deeply the values' containers nest.
	Depth int
}

// Peek reads the envelope of one line without copying or decoding its values.
// It checks the grammar of the whole line; err wraps ErrSyntax where the line
// is no JSON at all. A JSON value that is no JSON-RPC message is a Stray with
// a nil error.
func Peek(line []byte) (Message, error) {
	i := space(line, 0)
	if i < len(line) && line[i] == '[' {
		return peekBatch(line)
	}
	if i >= len(line) || line[i] != '{' {
		_, err := whole(line)
		return Message{}, err
	}
	var m Message
	var version, method Span
	depth, err := members(line, func(k []byte, v Span) bool {
		var at *Span
		switch string(k) {
		case "jsonrpc":
			at = &version
		case "id":
			at = &m.ID
		case "method":
			at = &method
		case "params":
			at = &m.Params
		case "result":
			at = &m.Result
		case "error":
			at = &m.Error
		default:
			m.Duplicate = m.Duplicate || folds(k)
			return true
		}
		m.Duplicate = m.Duplicate || at.End != 0
		*at = v
		return true
	})
	if err != nil {
		return Message{}, err
	}
	m.Depth = depth
	if string(version.Of(line)) != `"2.0"` {
		return Message{Depth: depth}, nil
	}
	if method.End != 0 {
		if line[method.Start] != '"' || json.Unmarshal(method.Of(line), &m.Method) != nil {
			return Message{Depth: depth}, nil
		}
		m.Kind = Notification
		if m.ID.End != 0 {
			m.Kind = Request
		}
	} else if m.Result.End != 0 || m.Error.End != 0 {
		m.Kind = Response
	}
	return m, nil
}

// folds says whether a parser that ignores case takes k for a member of the
// envelope.
func folds(k []byte) bool {
	for _, name := range [...]string{"jsonrpc", "id", "method", "params", "result", "error"} {
		if bytes.EqualFold(k, []byte(name)) {
			return true
		}
	}
	return false
}

func peekBatch(line []byte) (Message, error) {
	depth, err := whole(line)
	if err != nil {
		return Message{}, err
	}
	m := Message{Kind: Batch, Depth: depth}
	n := 0
	for _, e := range Elements(line) {
		n++
		if em, err := Peek(e); err != nil || em.Kind == Stray || em.Kind == Batch {
			m.Kind = Stray
		}
	}
	if n == 0 {
		m.Kind = Stray
	}
	return m, nil
}

// Elements returns the elements of a JSON array that Peek found valid, or nil.
func Elements(array []byte) [][]byte {
	spans := ElementSpans(array)
	if spans == nil {
		return nil
	}
	out := make([][]byte, len(spans))
	for i, s := range spans {
		out[i] = s.Of(array)
	}
	return out
}

// ElementSpans is Elements with the places instead of the values.
func ElementSpans(array []byte) []Span {
	i := space(array, 0)
	if i >= len(array) || array[i] != '[' {
		return nil
	}
	var out []Span
	for i = space(array, i+1); i < len(array) && array[i] != ']'; i = space(array, i) {
		end, _, err := value(array, i)
		if err != nil {
			return nil
		}
		out = append(out, Span{i, end})
		if i = space(array, end); i < len(array) && array[i] == ',' {
			i = space(array, i+1)
		}
	}
	return out
}

// Members calls yield for each member of a JSON object with its unescaped name
// and where its value is, until yield returns false. The error wraps
// ErrSyntax.
func Members(object []byte, yield func(name string, value Span) bool) error {
	_, err := members(object, func(k []byte, v Span) bool { return yield(string(k), v) })
	return err
}

// Member returns the value of the last member with that name; ok is false
// where object is no object or has none.
func Member(object []byte, name string) (s Span, ok bool) {
	_, err := members(object, func(k []byte, v Span) bool {
		if string(k) == name {
			s, ok = v, true
		}
		return true
	})
	return s, ok && err == nil
}

func members(b []byte, yield func(k []byte, v Span) bool) (depth int, err error) {
	i := space(b, 0)
	if i >= len(b) || b[i] != '{' {
		return 0, syntax(i)
	}
	if i = space(b, i+1); i < len(b) && b[i] == '}' {
		return 1, trailing(b, i+1)
	}
	for {
		i = space(b, i)
		kEnd, err := str(b, i)
		if err != nil {
			return 0, err
		}
		k := b[i+1 : kEnd-1]
		for _, c := range k {
			if c == '\\' {
				var s string
				if err := json.Unmarshal(b[i:kEnd], &s); err != nil {
					return 0, syntax(i)
				}
				k = []byte(s)
				break
			}
		}
		if i = space(b, kEnd); i >= len(b) || b[i] != ':' {
			return 0, syntax(i)
		}
		i = space(b, i+1)
		end, d, err := value(b, i)
		if err != nil {
			return 0, err
		}
		depth = max(depth, d+1)
		if !yield(k, Span{i, end}) {
			return depth, nil
		}
		if i = space(b, end); i >= len(b) {
			return 0, syntax(i)
		}
		switch b[i] {
		case ',':
			i++
		case '}':
			return depth, trailing(b, i+1)
		default:
			return 0, syntax(i)
		}
	}
}

// Depth checks that b is exactly one JSON value and says how deeply its
// containers nest. The error wraps ErrSyntax.
func Depth(b []byte) (int, error) { return whole(b) }

func whole(b []byte) (int, error) {
	end, depth, err := value(b, 0)
	if err != nil {
		return 0, err
	}
	return depth, trailing(b, end)
}

func trailing(b []byte, i int) error {
	if i = space(b, i); i != len(b) {
		return syntax(i)
	}
	return nil
}

// IDKey returns a comparable form of a JSON-RPC id: 1, 1.0 and 1e0 are one
// number, and "1" is a string of its own. Integers beyond 2^53 keep all their
// digits. ok is false for an id that can be answered by nothing (null, absent,
// or no string or number).
func IDKey(id []byte) (k string, ok bool) {
	if len(id) == 0 {
		return "", false
	}
	switch c := id[0]; {
	case c == '"':
		var s string
		if json.Unmarshal(id, &s) != nil {
			return "", false
		}
		return "s" + s, true
	case c == '-' || c >= '0' && c <= '9':
		if f, err := strconv.ParseFloat(string(id), 64); err == nil && f == float64(int64(f)) && f > -1<<53 && f < 1<<53 {
			return "n" + strconv.FormatInt(int64(f), 10), true
		}
		return "n" + string(id), true
	}
	return "", false
}

// Edit replaces one span of a message.
type Edit struct {
	Span
	With []byte
}

// Splice returns a copy of b with the edits made, in ascending order of their
// spans and without overlap. Everything else keeps its bytes.
func Splice(b []byte, edits ...Edit) ([]byte, error) {
	n, last := len(b), 0
	for _, e := range edits {
		if e.Start < last || e.End < e.Start || e.End > len(b) {
			return nil, fmt.Errorf("edit %d..%d overlaps or is out of range", e.Start, e.End)
		}
		n += len(e.With) - (e.End - e.Start)
		last = e.End
	}
	out, last := make([]byte, 0, n), 0
	for _, e := range edits {
		out = append(append(out, b[last:e.Start]...), e.With...)
		last = e.End
	}
	return append(out, b[last:]...), nil
}
