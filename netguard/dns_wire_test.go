package netguard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// dnsQueryBytes is a query as an independent library writes it.
func dnsQueryBytes(t testing.TB, name string, qtype dnsmessage.Type, change func(*dnsmessage.Message)) []byte {
	t.Helper()
	m := dnsmessage.Message{
		Header: dnsmessage.Header{ID: 0x1234, RecursionDesired: true},
		Questions: []dnsmessage.Question{{
			Name: dnsmessage.MustNewName(name), Type: qtype, Class: dnsmessage.ClassINET,
		}},
	}
	if change != nil {
		change(&m)
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// withEDNS adds an OPT that takes size bytes and carries the options.
func withEDNS(size int, options ...dnsmessage.Option) func(*dnsmessage.Message) {
	return func(m *dnsmessage.Message) {
		var h dnsmessage.ResourceHeader
		if err := h.SetEDNS0(size, dnsmessage.RCodeSuccess, false); err != nil {
			panic(err)
		}
		m.Additionals = append(m.Additionals, dnsmessage.Resource{Header: h, Body: &dnsmessage.OPTResource{Options: options}})
	}
}

func TestParseDNSQuery(t *testing.T) {
	plain := dnsQueryBytes(t, "ApI.example.com.", dnsmessage.TypeA, nil)
	edns := dnsQueryBytes(t, "a.example.", dnsmessage.TypeAAAA, withEDNS(4096, dnsmessage.Option{Code: 8, Data: []byte{1, 2}}))
	patch := func(b []byte, at int, with ...byte) []byte {
		c := bytes.Clone(b)
		copy(c[at:], with)
		return c
	}
	label := func(parts ...string) []byte {
		b := bytes.Clone(plain[:dnsHeaderLen])
		for _, p := range parts {
			b = append(append(b, byte(len(p))), p...)
		}
		return append(b, 0, 0, 1, 0, 1)
	}
	long := strings.Repeat("a", 63)
	tests := []struct {
		name string
		in   []byte
		want string // the name
		err  error
	}{
		{"case kept", plain, "ApI.example.com", nil},
		{"edns with options", edns, "a.example", nil},
		{"root", dnsQueryBytes(t, ".", dnsmessage.TypeA, nil), "", nil},
		{"255 octets", label(long, long, long, long[:61]), strings.Join([]string{long, long, long, long[:61]}, "."), nil},
		{"nul in a label is kept for the host check", label("a\x00", "example"), "a\x00.example", nil},
		{"another operation", patch(plain, 2, 0x20), "", nil},

		{"too short", plain[:11], "", errDNSSilent},
		{"a response", patch(plain, 2, 0x81), "", errDNSSilent},
		{"256 octets", label(long, long, long, long[:62]), "", errDNSMalformed},
		{"label of 64", patch(plain, dnsHeaderLen, 64), "", errDNSMalformed},
		{"compression pointer", patch(plain, dnsHeaderLen, 0xc0, dnsHeaderLen), "", errDNSMalformed},
		{"dot in a label", label("a.b", "example"), "", errDNSMalformed},
		{"truncated flag", patch(plain, 2, 3), "", errDNSMalformed},
		{"no question", patch(plain, 4, 0, 0), "", errDNSMalformed},
		{"two questions", patch(plain, 4, 0, 2), "", errDNSMalformed},
		{"an answer", patch(plain, 6, 0, 1), "", errDNSMalformed},
		{"an authority", patch(plain, 8, 0, 1), "", errDNSMalformed},
		{"two additionals", patch(edns, 10, 0, 2), "", errDNSMalformed},
		{"additional announced, none there", patch(plain, 10, 0, 1), "", errDNSMalformed},
		{"trailing bytes", append(bytes.Clone(plain), 0), "", errDNSMalformed},
		{"question cut", plain[:len(plain)-1], "", errDNSMalformed},
		{"option longer than its record", patch(edns, len(edns)-3, 9), "", errDNSMalformed},
		{"additional that is no OPT", patch(edns, len(edns)-16, 1), "", errDNSMalformed},
		{"oversized", append(bytes.Clone(plain), make([]byte, dnsMaxQuery)...), "", errDNSMalformed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			q, err := parseDNSQuery(tt.in)
			if !errors.Is(err, tt.err) || err == nil && q.name != tt.want {
				t.Errorf("got %q, %v; want %q, %v", q.name, err, tt.want, tt.err)
			}
		})
	}
}

func TestDNSAnswer(t *testing.T) {
	many := make([]netip.Addr, 0, 2*MaxAnswers)
	for i := range MaxAnswers {
		many = append(many, netip.AddrFrom4([4]byte{8, 8, 8, byte(i)}),
			netip.AddrFrom16([16]byte{0x26, 0x06, 15: byte(i)}))
	}
	tests := []struct {
		name  string
		qtype dnsmessage.Type
		edns  int
		in    dnsAnswer
		rcode dnsmessage.RCode
		count int
	}{
		{"ipv4 only", dnsmessage.TypeA, 0, dnsAnswer{addrs: addrs("8.8.8.8", "2606::1", "::ffff:8.8.4.4")}, dnsmessage.RCodeSuccess, 2},
		{"ipv6 only", dnsmessage.TypeAAAA, 0, dnsAnswer{addrs: addrs("8.8.8.8", "2606::1")}, dnsmessage.RCodeSuccess, 1},
		{"no data", dnsmessage.TypeAAAA, 0, dnsAnswer{addrs: addrs("8.8.8.8")}, dnsmessage.RCodeSuccess, 0},
		{"service binding", dnsmessage.TypeHTTPS, 0, dnsAnswer{}, dnsmessage.RCodeSuccess, 0},
		{"what fits in 512 bytes", dnsmessage.TypeAAAA, 0, dnsAnswer{addrs: many}, dnsmessage.RCodeSuccess, 17},
		{"all with edns", dnsmessage.TypeAAAA, 1232, dnsAnswer{addrs: many}, dnsmessage.RCodeSuccess, MaxAnswers},
		{"blocked", dnsmessage.TypeA, 1232, dnsAnswer{rcode: dnsNXDomain, blocked: true}, dnsmessage.RCodeNameError, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var change func(*dnsmessage.Message)
			if tt.edns > 0 {
				change = withEDNS(tt.edns)
			}
			q, err := parseDNSQuery(dnsQueryBytes(t, "ApI.example.com.", tt.qtype, change))
			if err != nil {
				t.Fatal(err)
			}
			tt.in.ttl = 42 * time.Second
			raw := q.answer(tt.in)
			var m dnsmessage.Message
			if err := m.Unpack(raw); err != nil {
				t.Fatal(err)
			}
			if len(raw) > q.size || m.ID != 0x1234 || !m.Response || m.Truncated || m.RCode != tt.rcode {
				t.Errorf("%d bytes, %+v", len(raw), m.Header)
			}
			if len(m.Questions) != 1 || m.Questions[0].Name.String() != "ApI.example.com." {
				t.Errorf("the question's letters changed: %v", m.Questions)
			}
			if len(m.Answers) != tt.count {
				t.Errorf("%d answers, want %d", len(m.Answers), tt.count)
			}
			for _, a := range m.Answers {
				if a.Header.Type != tt.qtype || a.Header.TTL != 42 || a.Header.Name.String() != "ApI.example.com." {
					t.Errorf("answer %v", a.Header)
				}
			}
			if (tt.edns > 0) != (len(m.Additionals) == 1) {
				t.Errorf("additionals %v", m.Additionals)
			}
			if tt.in.blocked {
				opt := m.Additionals[0].Body.(*dnsmessage.OPTResource)
				if len(opt.Options) != 1 || opt.Options[0].Code != dnsOptionEDE || binary.BigEndian.Uint16(opt.Options[0].Data) != dnsEDEBlocked {
					t.Errorf("options %v", opt.Options)
				}
			}
		})
	}
}

func FuzzDNSMessage(f *testing.F) {
	f.Add(dnsQueryBytes(f, "api.example.com.", dnsmessage.TypeA, nil))
	f.Add(dnsQueryBytes(f, "a.example.", dnsmessage.TypeAAAA, withEDNS(4096, dnsmessage.Option{Code: 8, Data: []byte{1, 2}})))
	f.Add(dnsQueryBytes(f, ".", dnsmessage.TypeALL, withEDNS(0)))
	f.Add(append(dnsQueryBytes(f, "a.example.", dnsmessage.TypeNS, nil), 1, 2, 3))
	f.Fuzz(func(t *testing.T, b []byte) {
		q, err := parseDNSQuery(b)
		if errors.Is(err, errDNSSilent) {
			return
		}
		if err == nil && q.question != nil {
			// Whatever we take, an independent parser takes too, and reads the
			// same name.
			var m dnsmessage.Message
			if err := m.Unpack(b); err != nil {
				t.Fatalf("accepted what another parser refuses: %v", err)
			}
			if got := strings.TrimSuffix(m.Questions[0].Name.String(), "."); got != q.name {
				t.Fatalf("%q here, %q there", q.name, got)
			}
		}
		raw := q.answer(dnsAnswer{addrs: addrs("8.8.8.8", "2606::1"), ttl: time.Minute})
		var m dnsmessage.Message
		if err := m.Unpack(raw); err != nil {
			t.Fatalf("our own answer does not parse: %v", err)
		}
		if len(raw) > q.size || m.ID != q.id || !m.Response {
			t.Fatalf("%d bytes of %d, %+v", len(raw), q.size, m.Header)
		}
	})
}
