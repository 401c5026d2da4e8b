package netguard

import (
	"net/netip"
	"slices"
)

// prefixTable answers which prefixes contain an address, the longest first.
// Prefixes nest or are disjoint, so it is a sorted list of intervals, each
// pointing at the innermost prefix, which points at the one around it.
type prefixTable struct {
	starts []netip.Addr  // first address of each interval, sorted
	inner  []*prefixNode // the innermost prefix there, or nil
	nodes  int
}

type prefixNode struct {
	prefix netip.Prefix
	rules  []*rule
	parent *prefixNode
}

// prefixEntry is one prefix with the rule it came from.
type prefixEntry struct {
	prefix netip.Prefix
	rule   *rule
}

// newPrefixTable builds the table; entries may repeat and nest.
func newPrefixTable(entries []prefixEntry) prefixTable {
	sorted := slices.Clone(entries)
	slices.SortStableFunc(sorted, func(a, b prefixEntry) int {
		if c := a.prefix.Addr().Compare(b.prefix.Addr()); c != 0 {
			return c
		}
		return a.prefix.Bits() - b.prefix.Bits()
	})
	var t prefixTable
	var open *prefixNode // the stack of prefixes around the current address
	leave := func(next netip.Addr) {
		for open != nil && (!next.IsValid() || !open.prefix.Contains(next)) {
			end := lastAddr(open.prefix).Next()
			open = open.parent
			if end.IsValid() && (!next.IsValid() || end.Compare(next) <= 0) {
				t.mark(end, open)
			}
		}
	}
	for _, e := range sorted {
		leave(e.prefix.Addr())
		if open != nil && open.prefix == e.prefix {
			open.rules = append(open.rules, e.rule)
			continue
		}
		open = &prefixNode{prefix: e.prefix, rules: []*rule{e.rule}, parent: open}
		t.nodes++
		t.mark(e.prefix.Addr(), open)
	}
	leave(netip.Addr{})
	return t
}

// mark says that from start on n is the innermost prefix; a later mark for
// the same address replaces the earlier.
func (t *prefixTable) mark(start netip.Addr, n *prefixNode) {
	if k := len(t.starts); k > 0 && t.starts[k-1] == start {
		t.inner[k-1] = n
		return
	}
	t.starts = append(t.starts, start)
	t.inner = append(t.inner, n)
}

// find is the innermost prefix that contains a, or nil. Follow parent for the
// wider ones.
func (t *prefixTable) find(a netip.Addr) *prefixNode {
	lo, hi := 0, len(t.starts)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if t.starts[mid].Compare(a) <= 0 {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 {
		return nil
	}
	n := t.inner[lo-1]
	if n != nil && n.prefix.Addr().BitLen() != a.BitLen() {
		return nil // the last IPv4 prefix ends where IPv6 begins
	}
	return n
}

// lastAddr is the highest address of a masked prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
