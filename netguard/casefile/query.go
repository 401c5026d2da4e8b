package casefile

import (
	"context"
	"encoding/binary"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// dnsQuery is a look-up in kind dns, as fields of one DNS message (RFC 1035,
// 4.1). The message is built even where the fields make no sense.
type dnsQuery struct {
	Name     string `json:"name"`
	Type     string `json:"type"`
	Class    string `json:"class"`
	Opcode   string `json:"opcode"`
	QR       int    `json:"qr"`
	QDCount  *int   `json:"qdcount"`
	Options  []int  `json:"edns_options"`
	Trailing int    `json:"trailing_bytes"`
}

// types are the names of record types; TYPEn names any other (RFC 3597, 5).
var types = map[string]uint16{
	"A": 1, "NS": 2, "CNAME": 5, "SOA": 6, "NULL": 10, "PTR": 12, "HINFO": 13, "MX": 15, "TXT": 16,
	"AAAA": 28, "SRV": 33, "NAPTR": 35, "DS": 43, "SSHFP": 44, "RRSIG": 46, "DNSKEY": 48, "TLSA": 52,
	"SVCB": 64, "HTTPS": 65, "AXFR": 252, "IXFR": 251, "ANY": 255, "CAA": 257, "URI": 256,
}

// message writes the query on the wire.
func (q dnsQuery) message() []byte {
	const id = 0x5a5a
	qd := uint16(1)
	if q.QDCount != nil {
		qd = uint16(*q.QDCount)
	}
	flags := uint16(1 << 8) // recursion desired
	flags |= opcode(q.Opcode) << 11
	if q.QR != 0 {
		flags |= 1 << 15
	}
	var ar uint16
	if len(q.Options) > 0 {
		ar = 1
	}
	b := binary.BigEndian.AppendUint16(nil, id)
	for _, v := range []uint16{flags, qd, 0, 0, ar} {
		b = binary.BigEndian.AppendUint16(b, v)
	}
	for range max(int(qd), 0) {
		b = append(b, wireName(q.Name)...)
		b = binary.BigEndian.AppendUint16(b, recordType(q.Type))
		b = binary.BigEndian.AppendUint16(b, class(q.Class))
	}
	if ar == 1 {
		var opts []byte
		for _, code := range q.Options {
			opts = binary.BigEndian.AppendUint16(opts, uint16(code))
			opts = binary.BigEndian.AppendUint16(opts, 4)
			opts = append(opts, 0xde, 0xad, 0xbe, 0xef)
		}
		b = append(b, 0, 0, 41, 0x04, 0xd0, 0, 0, 0, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(len(opts)))
		b = append(b, opts...)
	}
	return append(b, make([]byte, q.Trailing)...)
}

// wireName writes labels with their lengths, whatever they hold.
func wireName(name string) []byte {
	var b []byte
	for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		b = append(b, byte(len(label)))
		b = append(b, label...)
	}
	return append(b, 0)
}

func recordType(s string) uint16 {
	if n, ok := types[strings.ToUpper(s)]; ok {
		return n
	}
	n, _ := strconv.ParseUint(strings.TrimPrefix(strings.ToUpper(s), "TYPE"), 10, 16)
	return uint16(n)
}

func class(s string) uint16 {
	switch strings.ToUpper(s) {
	case "", "IN":
		return 1
	case "CH":
		return 3
	case "HS":
		return 4
	case "NONE":
		return 254
	}
	return 255
}

func opcode(s string) uint16 {
	switch strings.ToUpper(s) {
	case "", "QUERY":
		return 0
	case "IQUERY":
		return 1
	case "STATUS":
		return 2
	case "NOTIFY":
		return 4
	case "UPDATE":
		return 5
	}
	return 15
}

// query hands the message to the gateway's resolver.
func (b *bench) query(q dnsQuery) (got, error) {
	_, err := b.egress.Resolve(context.Background(), q.message(), func([]netip.AddrPort, time.Duration) error { return nil })
	g := b.decision()
	if err != nil && g.Outcome == Allow {
		return got{Outcome: Deny, Note: err.Error()}, nil
	}
	return g, nil
}
