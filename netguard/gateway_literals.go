package netguard

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/sandboxd/sandboxd/netguard/iana"
)

// maxListedPorts is how many single ports stand for a rule's ranges; a rule
// with more opens every port at the gateway's first door, and the rest are
// refused at the second.
const maxListedPorts = 256

// Literals yields the address ranges that the policy in force opens without a
// look-up, with their ports; nil means every port. What lies in them and is
// refused whatever a rule says (special ranges, deny rules) is cut out, so
// that a gateway can refuse it before a connection looks alive.
func (e *Egress) Literals() iter.Seq2[netip.Prefix, []uint16] {
	return func(yield func(netip.Prefix, []uint16) bool) {
		p := e.Policy()
		if p == nil || p.mode == "" {
			return
		}
		for key := range p.local {
			for _, a := range localAddrs(key) {
				if !e.door(p, netip.AddrPortFrom(a, key.port)).Allow {
					continue
				}
				if !yield(netip.PrefixFrom(a, a.BitLen()), []uint16{key.port}) {
					return
				}
			}
		}
		cuts := e.cuts(p)
		open := func(a netip.Addr) bool {
			_, ok := e.guard.classify(p, e.subject.Registry, a)
			return ok && p.denyNets.find(a) == nil
		}
		for n := range p.allowNets.prefixes() {
			for _, r := range n.rules {
				ports := listPorts(r.ports)
				if !carve(r.prefix, cuts, open, func(q netip.Prefix) bool { return yield(q, ports) }) {
					return
				}
			}
		}
		if p.mode != ModePublic {
			return
		}
		for _, all := range []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)} {
			if !carve(all, cuts, open, func(q netip.Prefix) bool { return yield(q, nil) }) {
				return
			}
		}
	}
}

// prefixes is the set of the table's prefixes.
func (t *prefixTable) prefixes() map[*prefixNode]struct{} {
	all := make(map[*prefixNode]struct{})
	for n := range t.each {
		all[n] = struct{}{}
	}
	return all
}

// localAddrs are the addresses at which a guest finds a local endpoint
// without a look-up through the gateway.
func localAddrs(key localKey) []netip.Addr {
	switch {
	case key.addr.IsValid():
		return []netip.Addr{key.addr}
	case localhostName(key.name):
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	}
	return nil
}

// cuts are the prefixes at whose edges the answer for an address may change.
func (e *Egress) cuts(p *Policy) []netip.Prefix {
	cuts := slices.Collect(iana.Blocks())
	tables := []*prefixTable{&p.denyNets, &e.guard.refused}
	if t := e.guard.trusted[e.subject.Registry]; t != nil {
		tables = append(tables, t)
	}
	for _, t := range tables {
		for n := range t.prefixes() {
			cuts = append(cuts, n.prefix)
		}
	}
	if p.nat64 {
		for _, c := range slices.Clone(cuts) {
			if c.Addr().Is4() {
				cuts = append(cuts, nat64Prefix(c))
			}
		}
	}
	return cuts
}

// nat64Prefix is the part of 64:ff9b::/96 that carries an IPv4 prefix.
func nat64Prefix(p netip.Prefix) netip.Prefix {
	b := [16]byte{1: 0x64, 2: 0xff, 3: 0x9b}
	four := p.Addr().As4()
	copy(b[12:], four[:])
	return netip.PrefixFrom(netip.AddrFrom16(b), 96+p.Bits())
}

// carve yields the largest parts of p in which open is true, given that it
// changes only at the edges of cuts. It reports whether to go on.
func carve(p netip.Prefix, cuts []netip.Prefix, open func(netip.Addr) bool, yield func(netip.Prefix) bool) bool {
	var within []netip.Prefix
	for _, c := range cuts {
		if c.Bits() > p.Bits() && p.Contains(c.Addr()) {
			within = append(within, c)
		}
	}
	if len(within) == 0 {
		return !open(p.Addr()) || yield(p)
	}
	bits := p.Bits() + 1
	low := netip.PrefixFrom(p.Addr(), bits)
	high := p.Addr().AsSlice()
	high[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	a, _ := netip.AddrFromSlice(high)
	return carve(low, within, open, yield) && carve(netip.PrefixFrom(a, bits), within, open, yield)
}

// listPorts spells ranges out, or returns nil for every port where there are
// too many.
func listPorts(ranges []portRange) []uint16 {
	var ports []uint16
	for _, r := range ranges {
		if len(ports)+int(r.last-r.first)+1 > maxListedPorts {
			return nil
		}
		for p := int(r.first); p <= int(r.last); p++ {
			ports = append(ports, uint16(p))
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}
