package relay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// ErrSyntax marks bytes that are not one JSON value (RFC 8259). Invalid UTF-8
// inside a string is let through: parsers replace it, and the relay changes
// nothing.
var ErrSyntax = errors.New("not JSON")

// stack remembers one bit per open container (1 for an object), so that a line
// of brackets costs an eighth of its own size and no recursion.
type stack struct {
	bits  []uint64
	depth int
	max   int
}

func (s *stack) push(object bool) {
	w, b := s.depth>>6, uint(s.depth&63)
	if w == len(s.bits) {
		s.bits = append(s.bits, 0)
	}
	s.bits[w] &^= 1 << b
	if object {
		s.bits[w] |= 1 << b
	}
	s.depth++
	s.max = max(s.max, s.depth)
}

func (s *stack) object() bool {
	d := s.depth - 1
	return s.bits[d>>6]>>uint(d&63)&1 == 1
}

func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\r' || b[i] == '\n') {
		i++
	}
	return i
}

func syntax(i int) error { return fmt.Errorf("%w at byte %d", ErrSyntax, i) }

// value returns the index after the JSON value that begins at b[i], white
// space before it included, and the depth of its containers.
func value(b []byte, i int) (end, depth int, err error) {
	var buf [4]uint64
	st := stack{bits: buf[:0]}
	for {
		i = space(b, i)
		if i >= len(b) {
			return 0, 0, syntax(i)
		}
		c := b[i]
		switch c {
		case '"':
			i, err = str(b, i)
		case '{', '[':
			st.push(c == '{')
			if i = space(b, i+1); i < len(b) && b[i] == c+2 {
				i++
				st.depth--
				break
			}
			if c == '{' {
				if i, err = key(b, i); err != nil {
					return 0, 0, err
				}
			}
			continue
		default:
			i, err = scalar(b, i)
		}
		if err != nil {
			return 0, 0, err
		}
		more := false
		for st.depth > 0 && !more {
			if i, more, err = next(b, i, &st); err != nil {
				return 0, 0, err
			}
		}
		if st.depth == 0 {
			return i, st.max, nil
		}
	}
}

// next reads what follows a value inside the innermost container: a comma
// (and, in an object, the next key), or its end.
func next(b []byte, i int, st *stack) (int, bool, error) {
	i = space(b, i)
	if i >= len(b) {
		return 0, false, syntax(i)
	}
	object := st.object()
	switch c := b[i]; {
	case c == ',' && object:
		i, err := key(b, space(b, i+1))
		return i, true, err
	case c == ',':
		return i + 1, true, nil
	case c == '}' && object, c == ']' && !object:
		st.depth--
		return i + 1, false, nil
	}
	return 0, false, syntax(i)
}

// key reads a member's name and its colon.
func key(b []byte, i int) (int, error) {
	i, err := str(b, i)
	if err != nil {
		return 0, err
	}
	if i = space(b, i); i >= len(b) || b[i] != ':' {
		return 0, syntax(i)
	}
	return i + 1, nil
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// special marks the bytes of w that are a quote, a backslash or a control
// character, exactly up to and including the lowest mark.
func special(w uint64) uint64 {
	q, s := w^(ones*'"'), w^(ones*'\\')
	return ((q-ones)&^q | (s-ones)&^s | (w-ones*0x20)&^w) & highs
}

// str returns the index after the string that begins at b[i].
func str(b []byte, i int) (int, error) {
	if i >= len(b) || b[i] != '"' {
		return 0, syntax(i)
	}
	for i++; i < len(b); {
		if i+8 <= len(b) {
			m := special(binary.LittleEndian.Uint64(b[i:]))
			if m == 0 {
				i += 8
				continue
			}
			i += bits.TrailingZeros64(m) >> 3
		}
		switch c := b[i]; {
		case c == '"':
			return i + 1, nil
		case c == '\\':
			n := escape(b[i:])
			if n == 0 {
				return 0, syntax(i)
			}
			i += n
		case c < 0x20:
			return 0, syntax(i)
		default:
			i++
		}
	}
	return 0, syntax(i)
}

// escape returns the length of the escape sequence at the start of b, or 0.
func escape(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(b) < 6 {
			return 0
		}
		for _, c := range b[2:6] {
			if (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'f') {
				return 0
			}
		}
		return 6
	}
	return 0
}

func scalar(b []byte, i int) (int, error) {
	for _, lit := range [...]string{"true", "false", "null"} {
		if len(b)-i >= len(lit) && string(b[i:i+len(lit)]) == lit {
			return i + len(lit), nil
		}
	}
	return number(b, i)
}

func number(b []byte, i int) (int, error) {
	if i < len(b) && b[i] == '-' {
		i++
	}
	start := i
	if i = digits(b, i); i == start || b[start] == '0' && i > start+1 {
		return 0, syntax(start)
	}
	if i < len(b) && b[i] == '.' {
		start = i + 1
		if i = digits(b, start); i == start {
			return 0, syntax(i)
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		if i++; i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		start = i
		if i = digits(b, start); i == start {
			return 0, syntax(i)
		}
	}
	return i, nil
}

func digits(b []byte, i int) int {
	for i < len(b) && b[i] >= '0' && b[i] <= '9' {
		i++
	}
	return i
}
