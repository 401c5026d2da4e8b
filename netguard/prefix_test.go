package netguard

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

// TestPrefixTable compares the table with a look at every prefix.
func TestPrefixTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var entries []prefixEntry
		for range rapid.IntRange(0, 12).Draw(t, "n") {
			p := netip.MustParsePrefix(genPrefix(t))
			entries = append(entries, prefixEntry{p, &rule{prefix: p}})
		}
		table := newPrefixTable(entries)
		var probes []netip.Addr
		for _, e := range entries {
			end := lastAddr(e.prefix)
			probes = append(probes, e.prefix.Addr(), end, e.prefix.Addr().Prev(), end.Next())
		}
		probes = append(probes, genAddr().Draw(t, "probe"))
		for _, a := range probes {
			want := map[*rule]bool{}
			for _, e := range entries {
				if a.IsValid() && e.prefix.Contains(a) {
					want[e.rule] = true
				}
			}
			got, last := 0, 129
			for n := table.find(a); n != nil; n = n.parent {
				if n.prefix.Bits() >= last {
					t.Fatalf("%v: %v does not come after a longer one", a, n.prefix)
				}
				last = n.prefix.Bits()
				for _, r := range n.rules {
					if !want[r] {
						t.Fatalf("%v is not in %v", a, r.prefix)
					}
					got++
				}
			}
			if got != len(want) {
				t.Fatalf("%v: %d rules, want %d of %v", a, got, len(want), entries)
			}
		}
	})
}
