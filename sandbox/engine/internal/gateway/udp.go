//go:build linux

package gateway

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// plainUDP and extendedUDP bound an answer by datagram: without EDNS (RFC
	// 1035), and with it, whatever size the query names (RFC 9715).
	plainUDP    = 512
	extendedUDP = 1232
	dnsHeader   = 12
)

// wantDestination has the kernel tell which of its addresses a datagram came
// to, so that the answer leaves from there: only so does connection tracking
// turn it back into one from the resolver that the guest asked.
func wantDestination(c *net.UDPConn) error {
	rc, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = rc.Control(func(fd uintptr) {
		if isIPv4(c) {
			inner = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_PKTINFO, 1)
			return
		}
		inner = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1)
	})
	return errors.Join(err, inner)
}

func isIPv4(c *net.UDPConn) bool {
	a, ok := c.LocalAddr().(*net.UDPAddr)
	return ok && a.AddrPort().Addr().Is4()
}

// answerAll answers a socket's queries until it is closed, each in a goroutine
// of its own, so that a slow look-up holds up no other.
func (g *Gateway) answerAll(c *net.UDPConn) {
	buf := make([]byte, maxQuery+1)
	oob := make([]byte, 128)
	for {
		n, oobn, _, from, err := c.ReadMsgUDPAddrPort(buf, oob)
		if err != nil {
			if g.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			// An ICMP error about an earlier answer, or no memory.
			select {
			case <-time.After(time.Millisecond):
			case <-g.ctx.Done():
			}
			continue
		}
		source := replySource(oob[:oobn])
		if n < dnsHeader || n > maxQuery || source == nil {
			continue
		}
		select {
		case g.lookups <- struct{}{}:
		default:
			continue
		}
		query := append([]byte(nil), buf[:n]...)
		g.wg.Go(func() {
			defer func() { <-g.lookups }()
			g.answer(c, query, source, from)
		})
	}
}

func (g *Gateway) answer(c *net.UDPConn, query, source []byte, from netip.AddrPort) {
	answer := fit(query, g.resolve(query))
	if answer == nil {
		return
	}
	if _, _, err := c.WriteMsgUDPAddrPort(answer, source, from); err != nil && g.ctx.Err() == nil {
		g.cfg.Logger.Debug("sending a DNS answer failed", "error", err)
	}
}

// replySource turns the control data of a received datagram into that of its
// answer: from the address and interface that the datagram came to.
func replySource(oob []byte) []byte {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for _, m := range msgs {
		switch {
		case m.Header.Level == unix.SOL_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo:
			// struct in_pktinfo: interface, local address, header's address.
			info := &unix.Inet4Pktinfo{
				Ifindex:  int32(binary.NativeEndian.Uint32(m.Data[0:4])),
				Spec_dst: [4]byte(m.Data[4:8]),
			}
			return unix.PktInfo4(info)
		case m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= unix.SizeofInet6Pktinfo:
			info := &unix.Inet6Pktinfo{Addr: [16]byte(m.Data[0:16]), Ifindex: binary.NativeEndian.Uint32(m.Data[16:20])}
			return unix.PktInfo6(info)
		}
	}
	return nil
}

// fit cuts an answer that is too big for a datagram to its question, with the
// TC bit set, so that the guest asks again over TCP.
func fit(query, answer []byte) []byte {
	limit := plainUDP
	if len(query) >= dnsHeader && binary.BigEndian.Uint16(query[10:12]) > 0 {
		limit = extendedUDP
	}
	if len(answer) <= limit {
		return answer
	}
	end := questionEnd(answer)
	if end == 0 || end > limit {
		return nil
	}
	cut := append([]byte(nil), answer[:end]...)
	cut[2] |= 0x02
	clear(cut[6:dnsHeader])
	return cut
}

// questionEnd gives where the one question of a message ends, or 0.
func questionEnd(msg []byte) int {
	if len(msg) < dnsHeader || binary.BigEndian.Uint16(msg[4:6]) != 1 {
		return 0
	}
	for i := dnsHeader; i < len(msg); {
		n := int(msg[i])
		switch {
		case n == 0:
			if end := i + 1 + 4; end <= len(msg) {
				return end
			}
			return 0
		case n > 63: // a pointer has nothing to point to in a question
			return 0
		}
		i += 1 + n
	}
	return 0
}
