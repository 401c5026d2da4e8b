package casefile

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// dnsServer serves a case's zone on loopback, over UDP and TCP, as a recursive
// resolver does: with the whole chain in one answer.
type dnsServer struct {
	addr string
	zone *zone
	udp  net.PacketConn
	tcp  net.Listener
	wg   sync.WaitGroup

	mu    sync.Mutex
	asked map[dnsmessage.Question]int
}

func newDNSServer(t testing.TB, z *zone) *dnsServer {
	t.Helper()
	s := &dnsServer{zone: z, asked: map[dnsmessage.Question]int{}, tcp: listen(t)}
	s.addr = s.tcp.Addr().String()
	var lc net.ListenConfig
	var err error
	if s.udp, err = lc.ListenPacket(t.Context(), "udp", s.addr); err != nil {
		t.Fatal(err)
	}
	s.wg.Go(func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := s.udp.ReadFrom(buf)
			if err != nil {
				return
			}
			msg := s.answer(t, buf[:n])
			if len(msg) > 512 { // small on purpose: large answers go over TCP
				msg = append(msg[:12:12], msg[12:]...)
				msg = truncate(t, msg)
			}
			_, _ = s.udp.WriteTo(msg, from)
		}
	})
	s.wg.Go(func() {
		for {
			c, err := s.tcp.Accept()
			if err != nil {
				return
			}
			var size [2]byte
			if _, err := io.ReadFull(c, size[:]); err == nil {
				q := make([]byte, binary.BigEndian.Uint16(size[:]))
				if _, err := io.ReadFull(c, q); err == nil {
					msg := s.answer(t, q)
					_, _ = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...))
				}
			}
			_ = c.Close()
		}
	})
	return s
}

func (s *dnsServer) close() {
	_ = s.udp.Close()
	_ = s.tcp.Close()
	s.wg.Wait()
}

func truncate(t testing.TB, msg []byte) []byte {
	var m dnsmessage.Message
	if err := m.Unpack(msg); err != nil {
		t.Error(err)
		return nil
	}
	m.Truncated, m.Answers = true, nil
	out, err := m.Pack()
	if err != nil {
		t.Error(err)
	}
	return out
}

// answer builds the response; the n-th resolution of a name sees its n-th set
// in both families.
func (s *dnsServer) answer(t testing.TB, query []byte) []byte {
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil {
		t.Error(err)
		return nil
	}
	if len(m.Additionals) != 1 || len(m.Additionals[0].Body.(*dnsmessage.OPTResource).Options) != 0 {
		t.Errorf("the query carries %v", m.Additionals)
	}
	q := m.Questions[0]
	m.Response, m.Additionals = true, nil
	s.mu.Lock()
	n := s.asked[q]
	s.asked[q]++
	s.mu.Unlock()
	at := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	for range 20 {
		node, ok := s.zone.names[at]
		if !ok {
			if node, ok = s.zone.names["*"]; !ok {
				m.RCode = dnsmessage.RCodeNameError
				break
			}
		}
		owner := dnsmessage.MustNewName(at + ".")
		if node.cname == "" {
			if len(node.sets) > 0 {
				m.Answers = append(m.Answers, records(owner, q.Type, node.sets[min(n, len(node.sets)-1)])...)
			}
			break
		}
		m.Answers = append(m.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: owner, Class: dnsmessage.ClassINET, TTL: 60},
			Body:   &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(node.cname + ".")},
		})
		at = node.cname
	}
	out, err := m.Pack()
	if err != nil {
		t.Error(err)
	}
	return out
}

func records(owner dnsmessage.Name, typ dnsmessage.Type, set []netip.Addr) (out []dnsmessage.Resource) {
	for _, a := range set {
		r := dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: owner, Class: dnsmessage.ClassINET, TTL: 60}}
		switch {
		case a.Is4() && typ == dnsmessage.TypeA:
			r.Body = &dnsmessage.AResource{A: a.As4()}
		case a.Is6() && typ == dnsmessage.TypeAAAA:
			r.Body = &dnsmessage.AAAAResource{AAAA: a.As16()}
		default:
			continue
		}
		out = append(out, r)
	}
	return out
}
