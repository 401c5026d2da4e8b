package netguard

import (
	"errors"
	"slices"

	"golang.org/x/crypto/cryptobyte"
)

// Bounds of a ClientHello. Post-quantum key shares and session tickets make a
// few kilobytes; nothing honest comes near these.
const (
	maxHelloWire    = 32 << 10 // bytes on the wire, record headers included
	maxHelloRecords = 64       // records that one ClientHello may be split over
	maxHelloBody    = 16 << 10 // bytes of the handshake message

	maxHelloExtensions = 128
)

// TLS code points that the parser knows (RFC 8446, RFC 6066, RFC 9849).
const (
	tlsRecordHeader     = 5
	tlsRecordMaxPayload = 1 << 14
	tlsChangeCipherSpec = 20
	tlsAlert            = 21
	tlsHandshake        = 22
	tlsApplicationData  = 23

	tlsMsgHeader      = 4
	tlsMsgClientHello = 1

	tlsExtServerName = 0
	tlsExtESNI       = 0xffce // draft-ietf-tls-esni-00 to -06
	tlsExtECHDraft   = 0xfe08 // draft-ietf-tls-esni-08
	tlsExtECHDraft9  = 0xfe09
	tlsExtECHDraft10 = 0xfe0a
	tlsExtECH        = 0xfe0d
	tlsExtECHOuter   = 0xfd00 // ech_outer_extensions: only ever inside an inner hello

	tlsNameTypeHost = 0
)

var (
	// errIncomplete asks for more bytes; it is never a verdict.
	errIncomplete = errors.New("netguard: message incomplete")

	errHelloNotTLS    = errors.New("netguard: not a TLS handshake")
	errHelloTooLarge  = errors.New("netguard: ClientHello over the size bound")
	errHelloMalformed = errors.New("netguard: malformed ClientHello")
	errHelloNames     = errors.New("netguard: ClientHello with other than one well-formed host_name")
)

// clientHello is what the gateway takes from a TLS client's first message.
type clientHello struct {
	// hasSNI tells an absent server_name extension from a present one.
	hasSNI bool
	// serverName is the one host_name as sent, not yet checked as a host.
	serverName string
	// ech is set by Encrypted Client Hello and its drafts, GREASE included:
	// the two cannot be told apart, which is GREASE's purpose.
	ech bool
}

// looksLikeTLS says whether b can be the start of a TLS handshake record. It
// needs one byte.
func looksLikeTLS(b []byte) bool { return len(b) > 0 && b[0] == tlsHandshake }

// parseClientHello reads the ClientHello at the start of b, over any number
// of records (RFC 8446, section 5.1), and how many bytes of b it took. It
// returns errIncomplete while b is a proper prefix of what could become one,
// and never asks for more than maxHelloWire bytes.
func parseClientHello(b []byte) (hello clientHello, n int, err error) {
	body, n, err := reassembleHello(b)
	if err != nil {
		return clientHello{}, 0, err
	}
	if hello, err = parseHelloBody(body); err != nil {
		return clientHello{}, 0, err
	}
	return hello, n, nil
}

// reassembleHello joins the fragments of the first handshake message. The
// message has to end where a record ends: nothing may follow a ClientHello in
// its own record, so a second message there hides from one of two parsers.
// Nothing is copied until the whole message is there, so that a client that
// sends single bytes buys no work.
func reassembleHello(b []byte) (body []byte, n int, err error) {
	var (
		head  [tlsMsgHeader]byte
		total int // handshake bytes seen
	)
	want := -1
	for records := 0; want < 0 || total < want; records++ {
		payload, size, err := nextHandshakeRecord(b[n:])
		if err != nil {
			return nil, 0, err
		}
		if records == maxHelloRecords || n+size > maxHelloWire {
			return nil, 0, errHelloTooLarge
		}
		n += size
		if total < tlsMsgHeader {
			copy(head[total:], payload)
		}
		total += len(payload)
		if head[0] != tlsMsgClientHello {
			return nil, 0, errHelloNotTLS
		}
		if total >= tlsMsgHeader {
			want = tlsMsgHeader + int(head[1])<<16 + int(head[2])<<8 + int(head[3])
			if want > tlsMsgHeader+maxHelloBody {
				return nil, 0, errHelloTooLarge
			}
		}
	}
	if total > want {
		return nil, 0, errHelloMalformed
	}
	msg := make([]byte, 0, total)
	for rest := b[:n]; len(rest) > 0; {
		payload, size, err := nextHandshakeRecord(rest)
		if err != nil {
			return nil, 0, err
		}
		msg, rest = append(msg, payload...), rest[size:]
	}
	return msg[tlsMsgHeader:], n, nil
}

// nextHandshakeRecord returns the payload of the handshake record at the start
// of b and the record's size. A wrong first byte is refused at once, before
// the rest of the header arrives.
func nextHandshakeRecord(b []byte) (payload []byte, size int, err error) {
	if len(b) == 0 {
		return nil, 0, errIncomplete
	}
	if b[0] != tlsHandshake || len(b) > 1 && b[1] != 3 {
		return nil, 0, errHelloNotTLS
	}
	if len(b) < tlsRecordHeader {
		return nil, 0, errIncomplete
	}
	length := int(b[3])<<8 | int(b[4])
	if length == 0 || length > tlsRecordMaxPayload {
		return nil, 0, errHelloMalformed
	}
	size = tlsRecordHeader + length
	if len(b) < size {
		return nil, 0, errIncomplete
	}
	return b[tlsRecordHeader:size], size, nil
}

// parseHelloBody reads the ClientHello message (RFC 8446, section 4.1.2).
func parseHelloBody(body []byte) (clientHello, error) {
	var (
		hello                              clientHello
		version                            uint16
		session, suites, methods, extBlock cryptobyte.String
	)
	s := cryptobyte.String(body)
	if !s.ReadUint16(&version) || version>>8 != 3 || !s.Skip(32) ||
		!s.ReadUint8LengthPrefixed(&session) || len(session) > 32 ||
		!s.ReadUint16LengthPrefixed(&suites) || len(suites) < 2 || len(suites)%2 != 0 ||
		!s.ReadUint8LengthPrefixed(&methods) || len(methods) == 0 {
		return clientHello{}, errHelloMalformed
	}
	if s.Empty() {
		return hello, nil // before TLS 1.2 extensions could be left out
	}
	if !s.ReadUint16LengthPrefixed(&extBlock) || !s.Empty() {
		return clientHello{}, errHelloMalformed
	}
	seen := make([]uint16, 0, 32)
	for !extBlock.Empty() {
		var (
			kind uint16
			data cryptobyte.String
		)
		if !extBlock.ReadUint16(&kind) || !extBlock.ReadUint16LengthPrefixed(&data) {
			return clientHello{}, errHelloMalformed
		}
		if slices.Contains(seen, kind) || len(seen) == maxHelloExtensions {
			return clientHello{}, errHelloMalformed
		}
		seen = append(seen, kind)
		switch kind {
		case tlsExtServerName:
			name, err := parseServerName(data)
			if err != nil {
				return clientHello{}, err
			}
			hello.hasSNI, hello.serverName = true, name
		case tlsExtECH, tlsExtECHOuter, tlsExtECHDraft, tlsExtECHDraft9, tlsExtECHDraft10, tlsExtESNI:
			hello.ech = true
		}
	}
	return hello, nil
}

// parseServerName reads a ServerNameList (RFC 6066, section 3) with exactly
// one entry of type host_name. The list may hold one name of each type and no
// other type was ever defined, so whatever else it holds is a trick.
func parseServerName(data cryptobyte.String) (string, error) {
	var (
		list, name cryptobyte.String
		kind       uint8
	)
	if !data.ReadUint16LengthPrefixed(&list) || !data.Empty() {
		return "", errHelloMalformed
	}
	if !list.ReadUint8(&kind) || !list.ReadUint16LengthPrefixed(&name) {
		return "", errHelloMalformed
	}
	if kind != tlsNameTypeHost || len(name) == 0 || len(name) > 255 || !list.Empty() {
		return "", errHelloNames
	}
	return string(name), nil
}
