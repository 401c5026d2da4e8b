//go:build linux

package gateway

import (
	"testing"

	"github.com/miekg/dns"
)

func query(t testing.TB, name string, edns bool) []byte {
	t.Helper()
	m := new(dns.Msg).SetQuestion(name, dns.TypeA)
	if edns {
		m.SetEdns0(4096, false)
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// answerOf answers a query with n address records.
func answerOf(q []byte, n int) []byte {
	m := new(dns.Msg)
	if m.Unpack(q) != nil || len(m.Question) != 1 {
		return nil
	}
	r := new(dns.Msg).SetReply(m)
	for i := range n {
		rr := &dns.A{Hdr: dns.RR_Header{Name: m.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: []byte{192, 0, 2, byte(i)}}
		r.Answer = append(r.Answer, rr)
	}
	b, err := r.Pack()
	if err != nil {
		return nil
	}
	return b
}

func TestAnswersFitADatagram(t *testing.T) {
	for name, tc := range map[string]struct {
		edns    bool
		records int
		cut     bool
	}{
		"small": {false, 3, false}, "over 512": {false, 20, true},
		"over 512 with EDNS": {true, 20, false}, "over 1232 with EDNS": {true, 60, true},
	} {
		q := query(t, "example.test.", tc.edns)
		full := answerOf(q, tc.records)
		got := fit(q, full)
		m := new(dns.Msg)
		if err := m.Unpack(got); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if m.Truncated != tc.cut || len(m.Question) != 1 || m.Question[0].Name != "example.test." || tc.cut != (len(m.Answer) == 0) {
			t.Errorf("%s: %v", name, m)
		}
	}
	if fit(nil, make([]byte, 4000)) != nil {
		t.Error("an answer without a question was sent")
	}
}

// FuzzFit: an answer is passed on whole, cut to its question, or not at all.
func FuzzFit(f *testing.F) {
	q := query(f, "example.test.", true)
	f.Add(q, answerOf(q, 100))
	f.Add(q, answerOf(q, 1))
	f.Fuzz(func(t *testing.T, q, a []byte) {
		got := fit(q, a)
		if len(got) > extendedUDP || len(got) < len(a) && len(got) > 0 && got[2]&2 == 0 {
			t.Fatalf("%d bytes of %d", len(got), len(a))
		}
	})
}
