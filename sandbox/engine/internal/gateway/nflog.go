//go:build linux

package gateway

import (
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// netlinkBuffer takes what the kernel batches into one datagram.
	netlinkBuffer = 64 << 10
	nlHeader      = 16
	nfHeader      = 4
	attrHeader    = 4
	// nflogPacket is NFNL_SUBSYS_ULOG<<8 | NFULNL_MSG_PACKET.
	nflogPacket = 4 << 8
	// nfulaPayload is the attribute that holds the packet's first bytes.
	nfulaPayload = 9
	attrTypeMask = 0x3fff // without the nested and byte-order flags
	maxExtension = 8      // IPv6 extension headers that are walked
)

// reportAll reports refused packets until the socket is closed. If packets
// come faster than the Egress records them, the kernel drops reports.
func (g *Gateway) reportAll(f *os.File) {
	buf := make([]byte, netlinkBuffer)
	for {
		n, err := f.Read(buf)
		if err != nil {
			if g.ctx.Err() != nil || errors.Is(err, os.ErrClosed) || errors.Is(err, io.EOF) {
				return
			}
			if !errors.Is(err, unix.ENOBUFS) {
				g.cfg.Logger.Warn("reading refused packets failed", "error", err)
			}
			select {
			case <-time.After(time.Millisecond):
			case <-g.ctx.Done():
			}
			continue
		}
		parseNflog(buf[:n], g.cfg.Egress.Refused)
	}
}

// parseNflog calls report for each logged packet of one netlink datagram. The
// headers are the kernel's, the payloads the guest's.
func parseNflog(b []byte, report func(network string, dst netip.AddrPort)) {
	for len(b) >= nlHeader {
		size := int(binary.NativeEndian.Uint32(b[0:4]))
		if size < nlHeader || size > len(b) {
			return
		}
		if binary.NativeEndian.Uint16(b[4:6]) == nflogPacket && size >= nlHeader+nfHeader {
			if packet := payload(b[nlHeader+nfHeader : size]); packet != nil {
				if network, dst, ok := parsePacket(packet); ok {
					report(network, dst)
				}
			}
		}
		b = b[min(align4(size), len(b)):]
	}
}

// payload finds the packet among a message's attributes.
func payload(b []byte) []byte {
	for len(b) >= attrHeader {
		size := int(binary.NativeEndian.Uint16(b[0:2]))
		if size < attrHeader || size > len(b) {
			return nil
		}
		if binary.NativeEndian.Uint16(b[2:4])&attrTypeMask == nfulaPayload {
			return b[attrHeader:size]
		}
		b = b[min(align4(size), len(b)):]
	}
	return nil
}

func align4(n int) int { return (n + 3) &^ 3 }

// parsePacket reads an IP packet's destination, as far as the copied bytes go.
func parsePacket(b []byte) (network string, dst netip.AddrPort, ok bool) {
	if len(b) == 0 {
		return "", netip.AddrPort{}, false
	}
	switch b[0] >> 4 {
	case 4:
		return parseIPv4(b)
	case 6:
		return parseIPv6(b)
	}
	return "", netip.AddrPort{}, false
}

func parseIPv4(b []byte) (string, netip.AddrPort, bool) {
	const minHeader = 20
	header := int(b[0]&0x0f) * 4
	if len(b) < minHeader || header < minHeader {
		return "", netip.AddrPort{}, false
	}
	var rest []byte
	if first := binary.BigEndian.Uint16(b[6:8])&0x1fff == 0; first && header <= len(b) {
		rest = b[header:]
	}
	network, port := transport(b[9], rest)
	return network, netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[16:20])), port), true
}

func parseIPv6(b []byte) (string, netip.AddrPort, bool) {
	const header = 40
	if len(b) < header {
		return "", netip.AddrPort{}, false
	}
	dst := netip.AddrFrom16([16]byte(b[24:40]))
	next, rest := b[6], b[header:]
	for range maxExtension {
		size := 0
		switch next {
		case unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_DSTOPTS:
			if len(rest) >= 2 {
				size = 8 + int(rest[1])*8
			}
		case unix.IPPROTO_FRAGMENT:
			if len(rest) >= 8 {
				size = 8
				if binary.BigEndian.Uint16(rest[2:4])&0xfff8 != 0 {
					// A later fragment has no transport header.
					network, _ := transport(rest[0], nil)
					return network, netip.AddrPortFrom(dst, 0), true
				}
			}
		default:
			network, port := transport(next, rest)
			return network, netip.AddrPortFrom(dst, port), true
		}
		if size == 0 || size > len(rest) {
			break
		}
		next, rest = rest[0], rest[size:]
	}
	return "ip", netip.AddrPortFrom(dst, 0), true
}

// transport names a protocol and reads the destination port where it has one.
func transport(protocol byte, rest []byte) (network string, port uint16) {
	switch protocol {
	case unix.IPPROTO_TCP:
		network = "tcp"
	case unix.IPPROTO_UDP:
		network = "udp"
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		return "icmp", 0
	default:
		return "ip", 0
	}
	if len(rest) >= 4 {
		port = binary.BigEndian.Uint16(rest[2:4])
	}
	return network, port
}
