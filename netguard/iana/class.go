package iana

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// Class is a kind of address. The zero value is unknown and never public.
type Class uint8

// String is the class's name, such as "v4.loopback"; empty for the zero one.
func (c Class) String() string {
	if int(c) < len(classNames) {
		return classNames[c]
	}
	return ""
}

// Public reports whether addresses of the class are globally reachable
// unicast and nothing else.
func (c Class) Public() bool { return c == V4Public || c == V6Public }

// Local reports whether a policy may open an exact endpoint of the class:
// loopback, RFC 1918, CGNAT and ULA, and no other.
func (c Class) Local() bool {
	switch c {
	case V4Loopback, V4Private, V4Cgnat, V6Loopback, V6Ula:
		return true
	default:
		return false
	}
}

// Loopback reports whether addresses of the class never leave the host.
func (c Class) Loopback() bool { return c == V4Loopback || c == V6Loopback }

type entry4 struct {
	base, mask uint32
	class      Class
}

type entry6 struct {
	hi, lo, maskHi, maskLo uint64
	class                  Class
}

// Lookup classifies an address by its longest covering block. An IPv4-mapped
// address is V6Mapped: callers unmap what a resolver or a socket gave them. A
// zone and an invalid address give the zero class. It does not allocate.
func Lookup(a netip.Addr) Class {
	switch {
	case a.Is4():
		b := a.As4()
		v := binary.BigEndian.Uint32(b[:])
		for i := range table4 {
			if e := &table4[i]; v&e.mask == e.base {
				return e.class
			}
		}
		return V4Public
	case a.Is6() && a.Zone() == "":
		b := a.As16()
		hi, lo := binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
		for i := range table6 {
			if e := &table6[i]; hi&e.maskHi == e.hi && lo&e.maskLo == e.lo {
				return within6(e.class, lo)
			}
		}
		return V6Outside2000_3
	}
	return 0
}

// within6 refuses ISATAP interface identifiers under a public prefix (RFC
// 5214, 6.1): they carry an IPv4 address to which a router would tunnel. The
// universal and group bits of the identifier do not matter.
func within6(c Class, lo uint64) Class {
	if c == V6Public && lo>>32&^0x03000000 == 0x00005efe {
		return V6Isatap
	}
	return c
}

// Embedded4 is the IPv4 address that a NAT64 address of 64:ff9b::/96 carries
// (RFC 6052, 2.2), or false for any other.
func Embedded4(a netip.Addr) (netip.Addr, bool) {
	if Lookup(a) != V6Nat64 {
		return netip.Addr{}, false
	}
	b := a.As16()
	return netip.AddrFrom4([4]byte(b[12:])), true
}

// Metadata reports whether the address is a cloud's metadata or platform
// service, which nothing may open.
func Metadata(a netip.Addr) bool {
	for i := range metadata {
		if metadata[i] == a {
			return true
		}
	}
	return false
}

// Refused names a block that no policy may open and that shares an address
// with p, or false where all of p is public.
func Refused(p netip.Prefix) (string, bool) {
	for i := range metadata {
		if p.Contains(metadata[i]) {
			return "a metadata service", true
		}
	}
	if p.Addr().Is4() {
		for i := range table4 {
			e := &table4[i]
			block := e.prefix()
			if !e.class.Public() && block.Overlaps(p) {
				return block.String() + " (" + e.class.String() + ")", true
			}
		}
		return "", false
	}
	for i := range table6 {
		e := &table6[i]
		block := e.prefix()
		if e.class.Public() && block.Overlaps(p) && block.Bits() <= p.Bits() {
			return "", false // inside 2000::/3, and no longer block overlapped
		}
		if !e.class.Public() && block.Overlaps(p) {
			return block.String() + " (" + e.class.String() + ")", true
		}
	}
	return "space outside 2000::/3", true
}

func (e *entry4) prefix() netip.Prefix {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], e.base)
	return netip.PrefixFrom(netip.AddrFrom4(b), bits.OnesCount32(e.mask))
}

func (e *entry6) prefix() netip.Prefix {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], e.hi)
	binary.BigEndian.PutUint64(b[8:], e.lo)
	return netip.PrefixFrom(netip.AddrFrom16(b), bits.OnesCount64(e.maskHi)+bits.OnesCount64(e.maskLo))
}
