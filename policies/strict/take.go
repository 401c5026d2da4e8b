package strict

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Map takes the values of one mapping. Each method reports a wrong kind and
// returns the zero value then; a missing key, or one without a value, is the
// zero value and no fault. Has tells them apart.
type Map struct {
	r    *Reporter
	node *Node
	path string
}

// Map checks that n is a mapping with known keys only. It reports the rest,
// and every unknown key with the known one that looks most like it.
func (r *Reporter) Map(n *Node, path string, known ...string) Map {
	m := Map{r: r, path: path}
	if n == nil {
		return m
	}
	if n.Kind != Mapping {
		r.Errorf(n, path, "want a mapping, got %s", n.Kind)
		return m
	}
	m.node = n
	for _, f := range n.Fields {
		if !slices.Contains(known, f.Name) {
			msg := "unknown key " + quote(f.Name)
			if s := Nearest(f.Name, known); s != "" {
				msg += ": did you mean " + s + "?"
			} else {
				msg += ": the keys here are " + strings.Join(known, ", ")
			}
			r.add(f.Line, f.Col, path, false, msg)
		}
	}
	return m
}

// Path returns the path of a key of this mapping.
func (m Map) Path(name string) string { return Child(m.path, name) }

// Node returns the mapping's own node, or nil where it is none.
func (m Map) Node() *Node { return m.node }

// Get returns the node of a key, or nil where it is missing or null.
func (m Map) Get(name string) *Node {
	n := m.node.Get(name)
	if n == nil || n.Kind == Null {
		return nil
	}
	return n
}

// Has reports whether the key is there, even without a value.
func (m Map) Has(name string) bool { return m.node.Get(name) != nil }

// Errorf reports a fault at a key, or at the mapping where the key is missing.
func (m Map) Errorf(name, format string, args ...any) {
	n := m.node.Get(name)
	if n == nil {
		n = m.node
	}
	m.r.Errorf(n, m.Path(name), format, args...)
}

// String takes a string. A number or a bool is a fault: in YAML 0123, no and
// 1.10 change meaning without quotes.
func (m Map) String(name string) string {
	n := m.Get(name)
	if n == nil || !m.r.want(n, m.Path(name), String) {
		return ""
	}
	return n.Text
}

// Bool takes true or false.
func (m Map) Bool(name string) bool {
	n := m.Get(name)
	if n == nil || !m.r.want(n, m.Path(name), Bool) {
		return false
	}
	return strings.EqualFold(n.Text, "true")
}

// Int takes a whole number in plain decimal digits within [lo, hi].
func (m Map) Int(name string, lo, hi int64) int64 {
	n := m.Get(name)
	if n == nil || !m.r.want(n, m.Path(name), Int) {
		return 0
	}
	v, err := strconv.ParseInt(n.Text, 10, 64)
	if err != nil || strconv.FormatInt(v, 10) != n.Text || v < lo || v > hi {
		m.r.Errorf(n, m.Path(name), "want a whole number from %d to %d in plain decimal digits", lo, hi)
		return 0
	}
	return v
}

// Number takes a whole or a fractional number within [lo, hi].
func (m Map) Number(name string, lo, hi float64) float64 {
	n := m.Get(name)
	if n == nil {
		return 0
	}
	if n.Kind != Int && n.Kind != Float {
		m.r.Errorf(n, m.Path(name), "want %s, got %s", Float, n.Kind)
		return 0
	}
	v, err := strconv.ParseFloat(n.Text, 64)
	if err != nil || math.IsNaN(v) || v < lo || v > hi {
		m.r.Errorf(n, m.Path(name), "want a number from %g to %g", lo, hi)
		return 0
	}
	return v
}

// Duration takes a positive duration such as 90s, 10m or 1h30m.
func (m Map) Duration(name string) time.Duration {
	n := m.Get(name)
	if n == nil {
		return 0
	}
	d, err := time.ParseDuration(n.Text)
	if n.Kind != String || err != nil || d <= 0 {
		m.r.Errorf(n, m.Path(name), "want a duration above zero such as 90s, 10m or 1h30m")
		return 0
	}
	return d
}

// Bytes takes a size above zero: a whole number of bytes, or one with KiB,
// MiB, GiB (powers of 1024) or kB, MB, GB (powers of 1000).
func (m Map) Bytes(name string) int64 {
	n := m.Get(name)
	if n == nil {
		return 0
	}
	if n.Kind == Int || n.Kind == String {
		if v, ok := ParseBytes(n.Text); ok {
			return v
		}
	}
	m.r.Errorf(n, m.Path(name), "want a size above zero such as 512MiB, 1GiB or a whole number of bytes")
	return 0
}

// ParseBytes reads a size as Map.Bytes does.
func ParseBytes(s string) (int64, bool) {
	unit := int64(1)
	for _, u := range []struct {
		suffix string
		unit   int64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}} {
		if rest, ok := strings.CutSuffix(s, u.suffix); ok {
			s, unit = strings.TrimSuffix(rest, " "), u.unit
			break
		}
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v <= 0 || v > math.MaxInt64/unit || strconv.FormatInt(v, 10) != s {
		return 0, false
	}
	return v * unit, true
}

// List takes a list's items. A single value is a fault, not a list of one.
func (m Map) List(name string) []*Node {
	n := m.Get(name)
	if n == nil || !m.r.want(n, m.Path(name), List) {
		return nil
	}
	return n.Items
}

// list takes a list of names. A key with nothing behind it is a fault: whoever
// has commented out the last of them means none, where a missing key can mean
// all.
func (m Map) list(name string) *Node {
	n := m.node.Get(name)
	switch {
	case n == nil:
		return nil
	case n.Kind == Null:
		m.r.Errorf(n, m.Path(name), "is empty: write [] for none, or leave the key out")
		return nil
	case !m.r.want(n, m.Path(name), List):
		return nil
	}
	return n
}

// Strings takes a list of strings; an empty list is not nil. Items keep their
// index even where one is of another kind.
func (m Map) Strings(name string) []string {
	n := m.list(name)
	if n == nil {
		return nil
	}
	out := make([]string, 0, len(n.Items))
	for i, item := range n.Items {
		m.r.want(item, Index(m.Path(name), i), String)
		out = append(out, item.Text)
	}
	return out
}

// Names takes a list of different strings that match re; what names them in
// messages. An empty list is not nil.
func (m Map) Names(name string, re *regexp.Regexp, what string) []string {
	n := m.list(name)
	if n == nil {
		return nil
	}
	out := make([]string, 0, len(n.Items))
	seen := make(map[string]int, len(n.Items))
	for i, item := range n.Items {
		path := Index(m.Path(name), i)
		if !m.r.want(item, path, String) {
			continue
		}
		if !re.MatchString(item.Text) {
			m.r.Errorf(item, path, "%s is not %s", quote(item.Text), what)
			continue
		}
		if line, dup := seen[item.Text]; dup {
			m.r.Errorf(item, path, "%s was given before, at line %d", quote(item.Text), line)
			continue
		}
		seen[item.Text] = item.Line
		out = append(out, item.Text)
	}
	return out
}

// want reports a kind other than the wanted one.
func (r *Reporter) want(n *Node, path string, k Kind) bool {
	if n.Kind == k {
		return true
	}
	hint := ""
	if k == String && (n.Kind == Int || n.Kind == Float || n.Kind == Bool) {
		hint = ": put it in quotes"
	}
	r.Errorf(n, path, "want %s, got %s%s", k, n.Kind, hint)
	return false
}
