package shared

import (
	"sort"
	"strings"
	"testing"
)

func TestBelow(t *testing.T) {
	for name, want := range map[string]Kind{
		"example.com":           Private,
		"example.co.uk":         Private,
		"www.ck":                Private,
		"foo.github.io":         Private,
		"corp.example":          Private,
		"com":                   Public,
		"co.uk":                 Public,
		"uk":                    Public,
		"ck":                    Public,
		"foo.ck":                Public,
		"kobe.jp":               Public,
		"nosuchtld":             Public,
		"github.io":             Shared,
		"s3.amazonaws.com":      Shared,
		"amazonaws.com":         Shared,
		"windows.net":           Shared,
		"blob.core.windows.net": Shared,
		"googleapis.com":        Shared,
		"trycloudflare.com":     Shared,
		"compute.amazonaws.com": Shared,
	} {
		if got := Below(name); got != want {
			t.Errorf("Below(%q) = %d, want %d", name, got, want)
		}
	}
}

func TestItself(t *testing.T) {
	for name, want := range map[string]bool{
		"com": true, "co.uk": true, "nosuchtld": true,
		"github.io": false, "example.com": false, "foo.github.io": false,
	} {
		if got := Itself(name); got != want {
			t.Errorf("Itself(%q) = %v", name, got)
		}
	}
}

// TestSpans holds that the generated list is sorted, without repetition, and
// names no suffix, for which the library is asked.
func TestSpans(t *testing.T) {
	lines := strings.Split(strings.Trim(spans, "\n"), "\n")
	if len(lines) < 300 || !sort.StringsAreSorted(lines) {
		t.Errorf("%d lines, sorted %v", len(lines), sort.StringsAreSorted(lines))
	}
	for i, l := range lines {
		if i > 0 && lines[i-1] == l || l != strings.ToLower(l) || !strings.Contains(l, ".") {
			t.Errorf("line %d: %q", i+1, l)
		}
	}
}
