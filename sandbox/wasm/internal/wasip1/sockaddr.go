package wasip1

import (
	"encoding/binary"
	"net/netip"
)

// readAddr reads a WasiAddress: a pointer and a size, of 4 or 16 raw bytes, or
// of the second version's 128 with the family in front.
func (m memory) readAddr(ptr uint32) (netip.Addr, Errno) {
	h, e := m.view(ptr, 8)
	if e != Success {
		return netip.Addr{}, e
	}
	size := binary.LittleEndian.Uint32(h[4:])
	if size != 4 && size != 16 && size != 128 {
		return netip.Addr{}, EINVAL
	}
	b, e := m.view(binary.LittleEndian.Uint32(h), size)
	if e != Success {
		return netip.Addr{}, e
	}
	if size == 128 {
		switch binary.LittleEndian.Uint16(b) {
		case familyInet4:
			b = b[2:6]
		case familyInet6:
			b = b[2:18]
		default:
			return netip.Addr{}, EAFNOSUPPORT
		}
	}
	a, _ := netip.AddrFromSlice(b)
	return a.Unmap(), Success
}

// putAddr writes to (_, WasiAddress, out address type, out port).
func (m memory) putAddr(p params, a netip.AddrPort) Errno {
	h, e := m.view(p.u32(1), 8)
	if e != Success {
		return e
	}
	size := binary.LittleEndian.Uint32(h[4:])
	raw, kind, family := a.Addr().AsSlice(), uint32(addrType4), uint16(familyInet4)
	if a.Addr().Is6() {
		kind, family = addrType6, familyInet6
	}
	if size < uint32(len(raw)) {
		return EINVAL
	}
	b, e := m.view(binary.LittleEndian.Uint32(h), min(size, 128))
	if e != Success {
		return e
	}
	for _, out := range []uint32{p.u32(2), p.u32(3)} {
		if e := m.canPutU32(out); e != Success {
			return e
		}
	}
	clear(b)
	if len(b) == 128 {
		binary.LittleEndian.PutUint16(b, family)
		b = b[2:]
	}
	copy(b, raw)
	if e := m.putU32(p.u32(2), kind); e != Success {
		return e
	}
	return m.putU32(p.u32(3), uint32(a.Port()))
}

// putAddrinfo fills a WasiAddrinfo (flags, family, socket type, protocol,
// address length, address, name, name length, next; 28 bytes) and the
// WasiSockaddr (family, length, data; 12 bytes) that it points to.
func (m memory) putAddrinfo(at uint32, a netip.AddrPort) Errno {
	info, e := m.view(at, 28)
	if e != Success {
		return e
	}
	sa, e := m.view(binary.LittleEndian.Uint32(info[12:]), 12)
	if e != Success {
		return e
	}
	raw, family := a.Addr().AsSlice(), uint8(familyInet4)
	if a.Addr().Is6() {
		family = familyInet6
	}
	data, e := m.view(binary.LittleEndian.Uint32(sa[8:]), uint32(2+len(raw)))
	if e != Success {
		return e
	}
	binary.BigEndian.PutUint16(data, a.Port())
	copy(data[2:], raw)
	sa[0] = family
	binary.LittleEndian.PutUint32(sa[4:], uint32(len(data)))
	info[2], info[3], info[4] = family, typeTCP, 1 // TCP
	binary.LittleEndian.PutUint32(info[8:], 12)
	binary.LittleEndian.PutUint32(info[20:], 0)
	return Success
}
