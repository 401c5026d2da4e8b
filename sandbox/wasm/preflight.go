package wasm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
)

// Bounds of a module that the engine itself does not have: a table lives on
// the host's heap, outside the memory limit.
const (
	maxTables       = 64
	maxTableEntries = 1 << 20
	sectionTable    = 4
	sectionMemory   = 5
)

// ModuleError says what is wrong with a module, for its author.
type ModuleError struct {
	What string // one clause
	Err  error  // the engine's own words, or nil
}

// Error joins both parts.
func (e *ModuleError) Error() string {
	if e.Err == nil {
		return "wasm module: " + e.What
	}
	return fmt.Sprintf("wasm module: %s: %s", e.What, clip(e.Err.Error()))
}

// Unwrap returns the engine's error.
func (e *ModuleError) Unwrap() error { return e.Err }

func malformed(format string, args ...any) error {
	return &ModuleError{What: fmt.Sprintf(format, args...)}
}

// preflight checks what the engine would find too late, and returns the module
// with an upper bound on each table, so that table.grow stops there.
func preflight(bin []byte, memoryLimit uint64) (out []byte, minMemory uint64, err error) {
	switch {
	case len(bin) < 8 || !bytes.Equal(bin[:4], []byte("\x00asm")):
		return nil, 0, malformed("not a WebAssembly file")
	case binary.LittleEndian.Uint32(bin[4:]) == 0x1000d:
		return nil, 0, malformed("a component (WASI preview 2), only core modules for wasip1 run here")
	case binary.LittleEndian.Uint32(bin[4:]) != 1:
		return nil, 0, malformed("unknown version %d", binary.LittleEndian.Uint32(bin[4:]))
	}
	out = append(make([]byte, 0, len(bin)+64), bin[:8]...)
	memories := false
	for r := (reader{b: bin[8:]}); len(r.b) > 0; {
		id := r.byte()
		body := r.bytes(r.u32())
		if r.bad {
			return nil, 0, malformed("cut short")
		}
		switch id {
		case sectionTable:
			if body, err = capTables(body); err != nil {
				return nil, 0, err
			}
		case sectionMemory:
			memories = true
			if minMemory, err = firstMemory(body); err != nil {
				return nil, 0, err
			}
			if minMemory > memoryLimit {
				return nil, 0, malformed("needs %d bytes of memory at least, over its limit of %d", minMemory, memoryLimit)
			}
		}
		out = append(out, id)
		out = binary.AppendUvarint(out, uint64(len(body)))
		out = append(out, body...)
	}
	if !memories {
		return nil, 0, malformed("has no memory")
	}
	return out, minMemory, nil
}

// capTables rewrites the table section with an upper bound everywhere.
func capTables(body []byte) ([]byte, error) {
	r := reader{b: body}
	n := r.u32()
	if r.bad || n > maxTables {
		return nil, malformed("has %d tables, over %d", n, maxTables)
	}
	out := binary.AppendUvarint(nil, uint64(n))
	for range n {
		kind, flags := r.byte(), r.byte()
		least := r.u32()
		most := uint32(maxTableEntries)
		if flags == 1 {
			most = min(most, r.u32())
		}
		switch {
		case r.bad || flags > 1 || kind != 0x70 && kind != 0x6f:
			return nil, malformed("a table of an unknown kind")
		case least > maxTableEntries:
			return nil, malformed("a table of %d entries, over %d", least, maxTableEntries)
		}
		out = append(out, kind, 1)
		out = binary.AppendUvarint(out, uint64(least))
		// An upper bound below the lower one is for the engine to refuse.
		out = binary.AppendUvarint(out, uint64(most))
	}
	if len(r.b) > 0 {
		return nil, malformed("a table section with more in it than tables")
	}
	return out, nil
}

func firstMemory(body []byte) (uint64, error) {
	r := reader{b: body}
	n, flags, least := r.u32(), r.byte(), r.u32()
	switch {
	case r.bad || n != 1:
		return 0, malformed("must have one memory, not %d", n)
	case flags > 1:
		return 0, malformed("a shared or 64-bit memory, which does not run here")
	}
	return uint64(least) * pageBytes, nil
}

// reader reads WebAssembly's binary format. After an error everything is zero.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.bad = true
		return 0
	}
	c := r.b[0]
	r.b = r.b[1:]
	return c
}

func (r *reader) u32() uint32 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || n > 5 || v > 1<<32-1 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return uint32(v)
}

func (r *reader) bytes(n uint32) []byte {
	if r.bad || uint64(n) > uint64(len(r.b)) {
		r.bad, r.b = true, nil
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

// clip makes one line of a text that can hold a module's own names, of any
// length and of any bytes.
func clip(s string) string {
	const most = 300
	s = string(bytes.ToValidUTF8([]byte(s), []byte("?")))
	s = string(bytes.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, []byte(s)))
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
