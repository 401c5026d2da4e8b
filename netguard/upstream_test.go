package netguard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/google/go-cmp/cmp"
)

// fakeDNS answers UDP queries on loopback with whatever reply makes of them:
// none, one or several datagrams.
func fakeDNS(t *testing.T, reply func(q dnsmessage.Message) [][]byte) *Upstream {
	t.Helper()
	var lc net.ListenConfig
	pc, err := lc.ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 2048)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			var q dnsmessage.Message
			if err := q.Unpack(buf[:n]); err != nil {
				t.Error(err)
				continue
			}
			for _, msg := range reply(q) {
				_, _ = pc.WriteTo(msg, from)
			}
		}
	}()
	t.Cleanup(func() { _ = pc.Close(); <-done })
	up, err := NewUpstream(pc.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	return up
}

func pack(t testing.TB, m dnsmessage.Message) []byte {
	t.Helper()
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// respond makes the honest answer frame of a query.
func respond(q dnsmessage.Message, answers ...dnsmessage.Resource) dnsmessage.Message {
	return dnsmessage.Message{
		Header:    dnsmessage.Header{ID: q.ID, Response: true, RecursionAvailable: true},
		Questions: q.Questions,
		Answers:   answers,
	}
}

func recordA(owner, ip string, ttl uint32) dnsmessage.Resource {
	return dnsmessage.Resource{
		Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(owner), Class: dnsmessage.ClassINET, TTL: ttl},
		Body:   &dnsmessage.AResource{A: netip.MustParseAddr(ip).As4()},
	}
}

func recordCNAME(owner, to string) dnsmessage.Resource {
	return dnsmessage.Resource{
		Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(owner), Class: dnsmessage.ClassINET, TTL: 300},
		Body:   &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(to)},
	}
}

func onlyA(q dnsmessage.Message) bool { return q.Questions[0].Type == dnsmessage.TypeA }

// TestUpstreamTakesOnlyItsAnswer holds that forged, foreign and unrelated
// answers are not believed.
func TestUpstreamTakesOnlyItsAnswer(t *testing.T) {
	up := fakeDNS(t, func(q dnsmessage.Message) [][]byte {
		if !onlyA(q) {
			return [][]byte{pack(t, respond(q))}
		}
		good := respond(q,
			recordA("other.example.com.", "6.6.6.6", 60), // not on the chain
			recordCNAME("A.example.com.", "b.example.com."),
			recordA("b.example.com.", "8.8.8.8", 30),
			recordA("b.example.com.", "8.8.4.4", 60),
		)
		wrongID := good
		wrongID.ID++
		wrongID.Answers = []dnsmessage.Resource{recordA("a.example.com.", "6.6.6.6", 60)}
		wrongName := wrongID
		wrongName.ID = q.ID
		wrongName.Questions = []dnsmessage.Question{{Name: dnsmessage.MustNewName("c.example.com."), Type: q.Questions[0].Type, Class: q.Questions[0].Class}}
		query := respond(q, recordA("a.example.com.", "6.6.6.6", 60))
		query.Response = false
		return [][]byte{[]byte("x"), pack(t, wrongID), pack(t, wrongName), pack(t, query), pack(t, good)}
	})
	ans, err := up.Lookup(t.Context(), "a.example.com")
	if err != nil {
		t.Fatal(err)
	}
	want := Answer{Addrs: addrs("8.8.8.8", "8.8.4.4"), Chain: 1, TTL: 30 * time.Second}
	if d := cmp.Diff(want, ans, cmpAddr); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestUpstreamChains(t *testing.T) {
	chain := func(n int) func(dnsmessage.Message) [][]byte {
		return func(q dnsmessage.Message) [][]byte {
			m := respond(q)
			for i := range n {
				m.Answers = append(m.Answers, recordCNAME(fmt.Sprintf("c%d.example.com.", i), fmt.Sprintf("c%d.example.com.", i+1)))
			}
			if onlyA(q) {
				m.Answers = append(m.Answers, recordA(fmt.Sprintf("c%d.example.com.", n), "8.8.8.8", 5))
			}
			return [][]byte{pack(t, m)}
		}
	}
	ans, err := fakeDNS(t, chain(MaxChain)).Lookup(t.Context(), "c0.example.com")
	if err != nil || ans.Chain != MaxChain || len(ans.Addrs) != 1 {
		t.Errorf("%+v, %v", ans, err)
	}
	if _, err := fakeDNS(t, chain(MaxChain+1)).Lookup(t.Context(), "c0.example.com"); !errors.Is(err, ErrChain) {
		t.Errorf("too long: %v", err)
	}
	loop := func(q dnsmessage.Message) [][]byte {
		return [][]byte{pack(t, respond(q, recordCNAME("a.example.com.", "b.example.com."), recordCNAME("b.example.com.", "a.example.com.")))}
	}
	if _, err := fakeDNS(t, loop).Lookup(t.Context(), "a.example.com"); !errors.Is(err, ErrChain) {
		t.Errorf("loop: %v", err)
	}
}

// TestUpstreamRefusals holds that a refused name has no addresses, and that
// one family's failure does not spoil the other's answer.
func TestUpstreamRefusals(t *testing.T) {
	fail := func(q dnsmessage.Message) [][]byte {
		m := respond(q)
		m.RCode = dnsmessage.RCodeServerFailure
		return [][]byte{pack(t, m)}
	}
	if ans, err := fakeDNS(t, fail).Lookup(t.Context(), "a.example.com"); err == nil {
		t.Errorf("%+v", ans)
	}
	half := func(q dnsmessage.Message) [][]byte {
		if onlyA(q) {
			return [][]byte{pack(t, respond(q, recordA("a.example.com.", "8.8.8.8", 5)))}
		}
		return fail(q)
	}
	if ans, err := fakeDNS(t, half).Lookup(t.Context(), "a.example.com"); err != nil || len(ans.Addrs) != 1 {
		t.Errorf("%+v, %v", ans, err)
	}
	silent := fakeDNS(t, func(dnsmessage.Message) [][]byte { return nil })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := silent.Lookup(ctx, "a.example.com"); err == nil || time.Since(began) > time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

// TestUpstreamKeepsLocalhost holds that localhost never leaves the host.
func TestUpstreamKeepsLocalhost(t *testing.T) {
	up := fakeDNS(t, func(q dnsmessage.Message) [][]byte {
		t.Errorf("asked for %v", q.Questions)
		return nil
	})
	for _, name := range []string{"localhost", "x.localhost"} {
		ans, err := up.Lookup(t.Context(), name)
		if err != nil || fmt.Sprint(ans.Addrs) != "[::1 127.0.0.1]" {
			t.Errorf("%s: %+v, %v", name, ans, err)
		}
	}
}

func TestNewUpstream(t *testing.T) {
	for in, want := range map[string]string{"8.8.8.8": "8.8.8.8:53", "[2606:4700::1]:5353": "[2606:4700::1]:5353", "dns.example.com": "", "8.8.8.8:x": ""} {
		up, err := NewUpstream(in)
		if want == "" {
			if !errors.Is(err, ErrUpstream) {
				t.Errorf("%q: %v", in, err)
			}
		} else if err != nil || up.server.String() != want {
			t.Errorf("%q: %v, %v", in, up, err)
		}
	}
	got, err := firstNameserver(strings.NewReader("# x\nsearch a\nnameserver 10.0.0.2\nnameserver 10.0.0.3\n"))
	if err != nil || got != "10.0.0.2" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := firstNameserver(strings.NewReader("search a\n")); !errors.Is(err, ErrUpstream) {
		t.Error(err)
	}
}

// FuzzReadAnswer holds that no message of an upstream makes the reader fail
// otherwise than with an error, nor yields more than it may.
func FuzzReadAnswer(f *testing.F) {
	q := dnsmessage.Message{Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName("a.example.com."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
	f.Add(pack(f, respond(q, recordCNAME("a.example.com.", "b.example.com."), recordA("b.example.com.", "8.8.8.8", 1))))
	f.Add(pack(f, respond(q, recordCNAME("a.example.com.", "a.example.com."))))
	f.Fuzz(func(t *testing.T, msg []byte) {
		ans, err := readAnswer(msg, "a.example.com", dnsmessage.TypeA)
		if err == nil && (ans.Chain > MaxChain || len(ans.Addrs) > MaxAnswers+MaxChain+16) {
			t.Fatalf("%+v", ans)
		}
		_, _ = answers(msg, 1, msg)
	})
}
