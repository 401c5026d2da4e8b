//go:build linux

package container

import (
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Where things are in packet headers, and conntrack's flag for a changed
// destination (IPS_DST_NAT).
const (
	v4Source, v4Destination = 12, 16
	v6Source, v6Destination = 8, 24
	portDestination         = 2
	statusDNAT              = 1 << 5

	icmpv6NeighbourSolicit, icmpv6NeighbourAdvert = 135, 136
)

func accept() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}} }
func drop() []expr.Any   { return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}} }

// link matches packets that came in (or did not) over the guest's link.
func link(op expr.CmpOp) []expr.Any {
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, gatewayLink)
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: op, Register: 1, Data: name},
	}
}

func family(fam byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{fam}},
	}
}

func transport(proto byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
	}
}

func neighbourDiscovery() []expr.Any {
	return append(transport(unix.IPPROTO_ICMPV6),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
		&expr.Range{
			Op: expr.CmpOpEq, Register: 1,
			FromData: []byte{icmpv6NeighbourSolicit}, ToData: []byte{icmpv6NeighbourAdvert},
		})
}

// source matches the source address; the family has been matched before.
func source(op expr.CmpOp, a netip.Addr) []expr.Any {
	offset, size := uint32(v4Source), uint32(net.IPv4len)
	if a.Is6() {
		offset, size = v6Source, net.IPv6len
	}
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		&expr.Cmp{Op: op, Register: 1, Data: a.AsSlice()},
	}
}

func loadDestination(fam byte) *expr.Payload {
	p := &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: v4Destination, Len: net.IPv4len}
	if fam == unix.NFPROTO_IPV6 {
		p.Offset, p.Len = v6Destination, net.IPv6len
	}
	return p
}

// destination matches a network; the family has been matched before.
func destination(p netip.Prefix) []expr.Any {
	fam := byte(unix.NFPROTO_IPV4)
	if p.Addr().Is6() {
		fam = unix.NFPROTO_IPV6
	}
	size := uint32(p.Addr().BitLen() / 8)
	return []expr.Any{
		loadDestination(fam),
		&expr.Bitwise{
			SourceRegister: 1, DestRegister: 1, Len: size,
			Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()), Xor: make([]byte, size),
		},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Addr().AsSlice()},
	}
}

// port matches destination ports from first to last.
func port(first, last uint16) []expr.Any {
	load := &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: portDestination, Len: 2}
	from, to := binaryutil.BigEndian.PutUint16(first), binaryutil.BigEndian.PutUint16(last)
	if first == last {
		return []expr.Any{load, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: from}}
	}
	return []expr.Any{load, &expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: from, ToData: to}}
}

// Concatenations are laid out in consecutive registers of four bytes.
const (
	reg32  = 8 // NFT_REG32_00
	after4 = reg32 + 1
	after6 = reg32 + 4
)

// inPins matches destination address and port together.
func inPins(fam byte, set *nftables.Set) []expr.Any {
	addr := loadDestination(fam)
	addr.DestRegister = reg32
	reg := uint32(after4)
	if fam == unix.NFPROTO_IPV6 {
		reg = after6
	}
	return []expr.Any{
		addr,
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: portDestination, Len: 2},
		&expr.Lookup{SourceRegister: reg32, SetName: set.Name, SetID: set.ID},
	}
}

func inHosts(fam byte, set *nftables.Set) []expr.Any {
	return []expr.Any{loadDestination(fam), &expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID}}
}

func conntrack(states uint32) []expr.Any { return conntrackBits(expr.CtKeySTATE, states) }

func conntrackStatus(flags uint32) []expr.Any { return conntrackBits(expr.CtKeySTATUS, flags) }

func conntrackBits(key expr.CtKey, bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Register: 1, Key: key},
		&expr.Bitwise{
			SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4),
		},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}
