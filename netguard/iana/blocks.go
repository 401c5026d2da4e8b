package iana

import (
	"encoding/binary"
	"iter"
	"math/bits"
	"net/netip"
)

// Blocks yields every block of the tables and every metadata address, in no
// useful order: the only places where Lookup and Metadata change their
// answer, an ISATAP identifier apart.
func Blocks() iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		for _, e := range table4 {
			var b [4]byte
			binary.BigEndian.PutUint32(b[:], e.base)
			if !yield(netip.PrefixFrom(netip.AddrFrom4(b), bits.OnesCount32(e.mask))) {
				return
			}
		}
		for _, e := range table6 {
			var b [16]byte
			binary.BigEndian.PutUint64(b[:8], e.hi)
			binary.BigEndian.PutUint64(b[8:], e.lo)
			n := bits.OnesCount64(e.maskHi) + bits.OnesCount64(e.maskLo)
			if !yield(netip.PrefixFrom(netip.AddrFrom16(b), n)) {
				return
			}
		}
		for _, a := range metadata {
			if !yield(netip.PrefixFrom(a, a.BitLen())) {
				return
			}
		}
	}
}
