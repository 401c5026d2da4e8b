package casefile

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/sandboxd/sandboxd/netguard"
)

// sniInput is the input of kind sni: what a guest sends to an address.
type sniInput struct {
	Dst   string    `json:"dst"`
	Proto string    `json:"proto"`
	TLS   *tlsHello `json:"tls"`
	HTTP  []string  `json:"http"`
	Raw   bool      `json:"raw"`
}

// tlsHello is a ClientHello in outline.
type tlsHello struct {
	SNI         *string `json:"sni"`
	ECH         bool    `json:"ech"`
	Names       int     `json:"names"`   // host_name entries; 0 means one
	Records     int     `json:"records"` // TLS records it is spread over
	Truncated   bool    `json:"truncated"`
	Intercepted bool    `json:"intercepted"` // TLS ends at the guard, which sees HTTP
}

func runSNI(b *bench, c Case) (got, error) {
	var in sniInput
	if err := decode(c.Input, &in); err != nil {
		return got{}, err
	}
	dst, err := netip.ParseAddrPort(in.Dst)
	if err != nil {
		return got{}, fmt.Errorf("dst: %w", err)
	}
	if err := b.pin(); err != nil {
		return got{}, err
	}
	network := in.Proto
	if network == "" {
		network = "tcp"
	}
	if in.TLS != nil {
		v := b.egress.JudgeStream(network, dst, in.TLS.bytes())
		if !v.Allow || !in.TLS.Intercepted {
			return verdict(v), nil
		}
		name := ""
		if in.TLS.SNI != nil {
			name = *in.TLS.SNI
		}
		return verdict(b.egress.JudgeRequest(name, dst, in.stream())), nil
	}
	return verdict(b.egress.JudgeStream(network, dst, in.stream())), nil
}

func verdict(v netguard.Verdict) got {
	return outcome(v.Allow, v.Reason, v.Class.String(), v.Rule)
}

// pin looks up every name of the case's resolver through the gateway, as the
// sandbox would have done before it connected.
func (b *bench) pin() error {
	for name := range b.zone.names {
		for _, typ := range []string{"A", "AAAA"} {
			q := dnsQuery{Name: name, Type: typ}
			_, err := b.egress.Resolve(context.Background(), q.message(), func([]netip.AddrPort, time.Duration) error { return nil })
			if err != nil {
				return fmt.Errorf("pin %q: %w", name, err)
			}
		}
	}
	return nil
}

// stream is what the guest sends in clear.
func (in sniInput) stream() []byte {
	if in.Raw {
		return []byte("\x00\x00\x00\x08\x04\xd2\x16\x2f") // Postgres asking for TLS: neither TLS nor HTTP
	}
	var s []byte
	for _, head := range in.HTTP {
		s = append(s, head...)
	}
	return s
}

// bytes writes the ClientHello (RFC 8446, 4.1.2) in TLS records.
func (h tlsHello) bytes() []byte {
	msg := h.handshake()
	if h.Truncated {
		msg = msg[:len(msg)-8]
	}
	n := max(h.Records, 1)
	var out []byte
	for i := range n {
		part := msg[i*len(msg)/n : (i+1)*len(msg)/n]
		out = append(out, 22, 3, 1)
		out = append16(out, len(part))
		out = append(out, part...)
	}
	return out
}

func (h tlsHello) handshake() []byte {
	body := []byte{3, 3}
	body = append(body, make([]byte, 32)...) // random
	body = append(body, 0)                   // no session id
	body = append16(body, 4)
	body = append(body, 0x13, 0x01, 0x13, 0x02)
	body = append(body, 1, 0) // null compression
	exts := h.extensions()
	body = append16(body, len(exts))
	body = append(body, exts...)
	msg := []byte{1, 0}
	msg = append16(msg, len(body))
	return append(msg, body...)
}

func (h tlsHello) extensions() []byte {
	var exts []byte
	if h.SNI != nil {
		var list []byte
		for range max(h.Names, 1) {
			list = append(list, 0)
			list = append16(list, len(*h.SNI))
			list = append(list, *h.SNI...)
		}
		data := append(append16(nil, len(list)), list...)
		exts = extension(exts, 0, data)
	}
	exts = extension(exts, 43, []byte{2, 3, 4}) // TLS 1.3
	if h.ECH {
		// An outer hello: type, suite, config id, empty key, payload (RFC 9849).
		exts = extension(exts, 0xfe0d, []byte{0, 0, 1, 0, 1, 7, 0, 0, 0, 4, 1, 2, 3, 4})
	}
	return exts
}

func extension(b []byte, typ int, data []byte) []byte {
	b = append16(b, typ)
	b = append16(b, len(data))
	return append(b, data...)
}

func append16(b []byte, n int) []byte {
	return binary.BigEndian.AppendUint16(b, uint16(n))
}
