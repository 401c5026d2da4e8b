package netguard

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// prefixTable answers which prefixes contain an address, the longest first.
// Prefixes nest or are disjoint, so it is a sorted list of intervals for each
// family, each pointing at the innermost prefix, which points at the one
// around it.
type prefixTable struct {
	four []interval4
	six  []interval6
}

// interval4 reaches from start to the next interval's.
type interval4 struct {
	start uint32
	inner *prefixNode // nil between prefixes
}

type interval6 struct {
	hi, lo uint64
	inner  *prefixNode
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
		t.mark(e.prefix.Addr(), open)
	}
	leave(netip.Addr{})
	return t
}

// mark says that from start on n is the innermost prefix; a later mark for
// the same address replaces the earlier.
func (t *prefixTable) mark(start netip.Addr, n *prefixNode) {
	if start.Is4() {
		v := bits4(start)
		if k := len(t.four); k > 0 && t.four[k-1].start == v {
			t.four[k-1].inner = n
			return
		}
		t.four = append(t.four, interval4{v, n})
		return
	}
	hi, lo := bits6(start)
	if k := len(t.six); k > 0 && t.six[k-1].hi == hi && t.six[k-1].lo == lo {
		t.six[k-1].inner = n
		return
	}
	t.six = append(t.six, interval6{hi, lo, n})
}

// find is the innermost prefix that contains a, or nil. Follow parent for the
// wider ones. An IPv4-mapped address is an IPv6 one here.
func (t *prefixTable) find(a netip.Addr) *prefixNode {
	if a.Is4() {
		v := bits4(a)
		lo, hi := 0, len(t.four)
		for lo < hi {
			if mid := int(uint(lo+hi) >> 1); t.four[mid].start <= v {
				lo = mid + 1
			} else {
				hi = mid
			}
		}
		if lo == 0 {
			return nil
		}
		return t.four[lo-1].inner
	}
	if len(t.six) == 0 || !a.Is6() {
		return nil
	}
	h, l := bits6(a)
	lo, hi := 0, len(t.six)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if s := &t.six[mid]; s.hi < h || s.hi == h && s.lo <= l {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 {
		return nil
	}
	return t.six[lo-1].inner
}

// each yields every prefix of the table with its rules, some more than once.
func (t *prefixTable) each(yield func(*prefixNode) bool) {
	up := func(n *prefixNode) bool {
		for ; n != nil; n = n.parent {
			if !yield(n) {
				return false
			}
		}
		return true
	}
	for _, iv := range t.four {
		if !up(iv.inner) {
			return
		}
	}
	for _, iv := range t.six {
		if !up(iv.inner) {
			return
		}
	}
}

func bits4(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}

func bits6(a netip.Addr) (hi, lo uint64) {
	b := a.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
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
