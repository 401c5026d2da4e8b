package netguard

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"time"
)

// DNS code points (RFC 1035, RFC 6891, RFC 8914, RFC 9460).
const (
	dnsHeaderLen  = 12
	dnsMinMessage = 512
	dnsMaxQuery   = 1232 // a query is one question and an OPT: nothing honest is longer
	dnsMaxAnswer  = 1232

	dnsFlagQR     = 1 << 15
	dnsFlagTC     = 1 << 9
	dnsFlagRD     = 1 << 8
	dnsFlagRA     = 1 << 7
	dnsFlagCD     = 1 << 4
	dnsOpcodeMask = 0xf << 11

	dnsTypeA     = 1
	dnsTypeAAAA  = 28
	dnsTypeOPT   = 41
	dnsTypeSVCB  = 64
	dnsTypeHTTPS = 65
	dnsClassIN   = 1

	dnsOptionEDE  = 15
	dnsEDEBlocked = 15 // "the server is unable to respond due to a blocklist": ours
)

// dnsRCode is a response code, EDNS ones included.
type dnsRCode uint16

const (
	dnsNoError  dnsRCode = 0
	dnsFormErr  dnsRCode = 1
	dnsServFail dnsRCode = 2
	dnsNXDomain dnsRCode = 3
	dnsNotImp   dnsRCode = 4
	dnsRefused  dnsRCode = 5
	dnsBadVers  dnsRCode = 16
)

var (
	errDNSMalformed = errors.New("netguard: malformed DNS message")
	errDNSSilent    = errors.New("netguard: DNS message that gets no answer")
)

// dnsQuery is one question as it came, with what an answer has to repeat.
type dnsQuery struct {
	id       uint16
	flags    uint16
	question []byte // name, type and class as on the wire, letter case kept (0x20)
	name     string // dotted, no trailing dot, case as sent; not yet checked as a host
	qtype    uint16
	class    uint16
	edns     bool
	version  uint8
	size     int // largest UDP answer
}

func (q *dnsQuery) opcode() int { return int(q.flags&dnsOpcodeMask) >> 11 }

// parseDNSQuery reads one query: a header, one question, at most one OPT
// record, and not a byte more (RFC 1035, section 4.1; RFC 6891, section 6.1).
// Options of the OPT are left where they are: a fresh query is built for the
// way out, so nothing that the guest wrote there travels. errDNSSilent means
// that even an error answer would be wrong: a response, or no header. With
// errDNSMalformed q holds the header.
func parseDNSQuery(msg []byte) (q dnsQuery, err error) {
	if len(msg) < dnsHeaderLen {
		return q, errDNSSilent
	}
	q.id = binary.BigEndian.Uint16(msg)
	q.flags = binary.BigEndian.Uint16(msg[2:])
	q.size = dnsMinMessage
	if q.flags&dnsFlagQR != 0 {
		return q, errDNSSilent
	}
	counts := [4]uint16{}
	for i := range counts {
		counts[i] = binary.BigEndian.Uint16(msg[4+2*i:])
	}
	if len(msg) > dnsMaxQuery || q.flags&dnsFlagTC != 0 {
		return q, errDNSMalformed
	}
	if q.opcode() != 0 {
		return q, nil // other operations have other sections; the caller refuses by opcode
	}
	if counts[0] != 1 || counts[1] != 0 || counts[2] != 0 || counts[3] > 1 {
		return q, errDNSMalformed
	}
	off, err := q.parseQuestion(msg)
	if err != nil {
		return q, err
	}
	if counts[3] == 1 {
		if off, err = q.parseOPT(msg, off); err != nil {
			return q, err
		}
	}
	if off != len(msg) {
		return q, errDNSMalformed
	}
	return q, nil
}

// parseQuestion reads the name without compression: there is nothing before
// it that a pointer could point to. A dot within a label is refused, since
// the dotted form could not tell it from two labels.
func (q *dnsQuery) parseQuestion(msg []byte) (int, error) {
	var name strings.Builder
	off := dnsHeaderLen
	for {
		if off >= len(msg) {
			return 0, errDNSMalformed
		}
		n := int(msg[off])
		off++
		if n == 0 {
			break
		}
		if n > 63 || off+n > len(msg) || off+n-dnsHeaderLen > 254 {
			return 0, errDNSMalformed
		}
		label := string(msg[off : off+n])
		if strings.IndexByte(label, '.') >= 0 {
			return 0, errDNSMalformed
		}
		if name.Len() > 0 {
			name.WriteByte('.')
		}
		name.WriteString(label)
		off += n
	}
	if off+4 > len(msg) {
		return 0, errDNSMalformed
	}
	q.name = name.String()
	q.qtype = binary.BigEndian.Uint16(msg[off:])
	q.class = binary.BigEndian.Uint16(msg[off+2:])
	off += 4
	q.question = msg[dnsHeaderLen:off]
	return off, nil
}

// parseOPT reads the one additional record that a query may have: OPT at the
// root, with well-formed options.
func (q *dnsQuery) parseOPT(msg []byte, off int) (int, error) {
	const fixed = 11 // root name, type, class, ttl, length
	if off+fixed > len(msg) || msg[off] != 0 || binary.BigEndian.Uint16(msg[off+1:]) != dnsTypeOPT {
		return 0, errDNSMalformed
	}
	q.edns = true
	q.size = min(max(int(binary.BigEndian.Uint16(msg[off+3:])), dnsMinMessage), dnsMaxAnswer)
	q.version = msg[off+6]
	end := off + fixed + int(binary.BigEndian.Uint16(msg[off+9:]))
	if end > len(msg) {
		return 0, errDNSMalformed
	}
	for off += fixed; off < end; {
		if off+4 > end {
			return 0, errDNSMalformed
		}
		off += 4 + int(binary.BigEndian.Uint16(msg[off+2:]))
	}
	if off != end {
		return 0, errDNSMalformed
	}
	return end, nil
}

// dnsAnswer is what we say to a query.
type dnsAnswer struct {
	rcode   dnsRCode
	blocked bool // policy's doing: said as an extended error to who speaks EDNS
	addrs   []netip.Addr
	ttl     time.Duration
}

// answer builds the response. Every byte of it is ours but the question's,
// which is repeated as sent. Addresses of the other family are left out, and
// so are those beyond the size that the client takes: any part of a vetted
// set is an answer, so none is ever truncated.
func (q *dnsQuery) answer(a dnsAnswer) []byte {
	b := make([]byte, dnsHeaderLen, dnsMinMessage)
	binary.BigEndian.PutUint16(b, q.id)
	flags := dnsFlagQR | q.flags&(dnsOpcodeMask|dnsFlagRD|dnsFlagCD) | dnsFlagRA | uint16(a.rcode)&0xf
	binary.BigEndian.PutUint16(b[2:], flags)
	if q.question != nil {
		binary.BigEndian.PutUint16(b[4:], 1)
		b = append(b, q.question...)
	}
	opt := q.optRecord(a)
	answers := 0
	for _, addr := range a.addrs {
		addr = addr.Unmap()
		if q.qtype != dnsTypeA && q.qtype != dnsTypeAAAA || addr.Is4() != (q.qtype == dnsTypeA) {
			continue
		}
		raw := addr.AsSlice()
		if len(b)+12+len(raw)+len(opt) > q.size {
			break
		}
		b = append(b, 0xc0, dnsHeaderLen) // the question's name
		b = binary.BigEndian.AppendUint16(b, q.qtype)
		b = binary.BigEndian.AppendUint16(b, dnsClassIN)
		b = binary.BigEndian.AppendUint32(b, uint32(a.ttl/time.Second))
		b = binary.BigEndian.AppendUint16(b, uint16(len(raw)))
		b = append(b, raw...)
		answers++
	}
	binary.BigEndian.PutUint16(b[6:], uint16(answers))
	if len(opt) > 0 {
		binary.BigEndian.PutUint16(b[10:], 1)
		b = append(b, opt...)
	}
	return b
}

// optRecord is the OPT of the answer to a query that had one.
func (q *dnsQuery) optRecord(a dnsAnswer) []byte {
	if !q.edns {
		return nil
	}
	b := []byte{0}
	b = binary.BigEndian.AppendUint16(b, dnsTypeOPT)
	b = binary.BigEndian.AppendUint16(b, dnsMaxAnswer)
	b = append(b, byte(a.rcode>>4), 0, 0, 0)
	if !a.blocked {
		return binary.BigEndian.AppendUint16(b, 0)
	}
	b = binary.BigEndian.AppendUint16(b, 6)
	b = binary.BigEndian.AppendUint16(b, dnsOptionEDE)
	b = binary.BigEndian.AppendUint16(b, 2)
	return binary.BigEndian.AppendUint16(b, dnsEDEBlocked)
}
