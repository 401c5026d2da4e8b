package strict

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxFaults bounds what one document can make us say.
const maxFaults = 100

// Fault is one thing wrong with a document. Line and Col count from 1.
type Fault struct {
	File      string
	Line, Col int
	Path      string // such as egress.allow[0].host; empty for the document
	Msg       string
	Warning   bool // the document is usable all the same
}

// String renders file:line:col: path: message, the form that editors follow.
func (f Fault) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:%d:%d: ", f.File, f.Line, f.Col)
	if f.Warning {
		b.WriteString("warning: ")
	}
	if f.Path != "" {
		b.WriteString(f.Path + ": ")
	}
	b.WriteString(f.Msg)
	return b.String()
}

// Faults is an error with all faults of a document, in the order of the file.
type Faults []Fault

// Error renders one fault a line.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, x := range f {
		lines[i] = x.String()
	}
	return strings.Join(lines, "\n")
}

// Reporter collects the faults of one document. The zero value names no file.
// It is not safe for concurrent use.
type Reporter struct {
	file   string
	faults []Fault
	seen   map[Fault]bool
	more   int
}

// NewReporter returns a Reporter that names the file so.
func NewReporter(file string) *Reporter { return &Reporter{file: file} }

// Errorf adds a fault at the node; a nil node stands for the document's start.
func (r *Reporter) Errorf(n *Node, path, format string, args ...any) {
	r.at(n, path, false, format, args...)
}

// Warnf adds a warning at the node.
func (r *Reporter) Warnf(n *Node, path, format string, args ...any) {
	r.at(n, path, true, format, args...)
}

func (r *Reporter) at(n *Node, path string, warning bool, format string, args ...any) {
	line, col := 1, 1
	if n != nil && n.Line > 0 {
		line, col = n.Line, n.Col
	}
	r.add(line, col, path, warning, fmt.Sprintf(format, args...))
}

func (r *Reporter) add(line, col int, path string, warning bool, msg string) {
	if line < 1 {
		line = 1
	}
	if col < 1 {
		col = 1
	}
	f := Fault{File: r.file, Line: line, Col: col, Path: path, Msg: msg, Warning: warning}
	if r.seen[f] { // an alias repeats its anchor's faults
		return
	}
	if len(r.faults) >= maxFaults {
		if !warning {
			r.more++
		}
		return
	}
	if r.seen == nil {
		r.seen = map[Fault]bool{}
	}
	r.seen[f] = true
	r.faults = append(r.faults, f)
}

// Faulty reports whether an error was reported at the path or below it.
func (r *Reporter) Faulty(path string) bool {
	return slices.ContainsFunc(r.faults, func(f Fault) bool {
		rest, ok := strings.CutPrefix(f.Path, path)
		return ok && !f.Warning && (rest == "" || path == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// Err returns the errors as Faults, or nil where there are only warnings.
func (r *Reporter) Err() error {
	out := r.pick(false)
	if r.more > 0 {
		last := Fault{File: r.file, Line: 1, Col: 1, Msg: strconv.Itoa(r.more) + " more faults are not shown"}
		out = append(out, last)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// Warnings returns the warnings in the order of the file.
func (r *Reporter) Warnings() []Fault { return r.pick(true) }

func (r *Reporter) pick(warning bool) Faults {
	var out Faults
	for _, f := range r.faults {
		if f.Warning == warning {
			out = append(out, f)
		}
	}
	slices.SortStableFunc(out, func(a, b Fault) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Col - b.Col
	})
	return out
}

// Child appends a key to a path.
func Child(path, name string) string {
	if path == "" {
		return plain(name)
	}
	return path + "." + plain(name)
}

// Index appends a list index to a path.
func Index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// plain keeps a stranger's key from breaking lines of a report.
func plain(name string) string {
	for _, c := range name {
		if c < ' ' || c == 0x7f || c == '"' || c > 0x7e {
			return quote(name)
		}
	}
	return cut(name, 64)
}

func quote(s string) string { return strconv.QuoteToASCII(cut(s, 64)) }

func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
