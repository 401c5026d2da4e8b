package netguard

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// evilDNS is an authoritative server that says what the test wants. It hands
// out an address in whichever family asks for it.
type evilDNS struct {
	mu    sync.Mutex
	sets  map[string][][]string // each query of a family gets the next set
	given map[string]int
	alias map[string]string
	asked map[string]int
}

func startEvilDNS(t *testing.T, at string) *evilDNS {
	var lc net.ListenConfig
	pc, err := lc.ListenPacket(context.Background(), "udp", at)
	if err != nil {
		t.Fatal(err)
	}
	d := &evilDNS{sets: map[string][][]string{}, given: map[string]int{}, alias: map[string]string{}, asked: map[string]int{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 2048)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			if out := d.answer(buf[:n]); out != nil {
				_, _ = pc.WriteTo(out, from)
			}
		}
	}()
	t.Cleanup(func() { _ = pc.Close(); <-done })
	return d
}

func (d *evilDNS) set(name string, ips ...string) { d.alternate(name, ips) }

func (d *evilDNS) alternate(name string, sets ...[]string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sets[name] = sets
}

// chain puts links aliases before ip; -1 makes a loop.
func (d *evilDNS) chain(name string, links int, ip string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if links < 0 {
		d.alias[name], d.alias["back."+name] = "back."+name, name
		return
	}
	at := name
	for i := range links {
		next := fmt.Sprintf("link%d.%s", i, name)
		d.alias[at], at = next, next
	}
	d.sets[at] = [][]string{{ip}}
}

func (d *evilDNS) count(name string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked[name]
}

func (d *evilDNS) answer(query []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(query) != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	at := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked[at]++
	m.Response, m.Additionals = true, nil
	add := func(owner string, body dnsmessage.ResourceBody) {
		m.Answers = append(m.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(owner + "."), Class: dnsmessage.ClassINET, TTL: 1},
			Body:   body,
		})
	}
	for range 12 {
		next, ok := d.alias[at]
		if !ok {
			break
		}
		add(at, &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(next + ".")})
		at = next
	}
	sets := d.sets[at]
	if len(sets) == 0 && d.alias[at] == "" {
		m.RCode = dnsmessage.RCodeNameError
	}
	if len(sets) > 0 {
		key := at + q.Type.String()
		for _, ip := range sets[d.given[key]%len(sets)] {
			a := netip.MustParseAddr(ip)
			switch {
			case a.Is4() && q.Type == dnsmessage.TypeA:
				add(at, &dnsmessage.AResource{A: a.As4()})
			case a.Is6() && q.Type == dnsmessage.TypeAAAA:
				add(at, &dnsmessage.AAAAResource{AAAA: a.As16()})
			}
		}
		d.given[key]++
	}
	out, err := m.Pack()
	if err != nil {
		return nil
	}
	return out
}

func pemPool(t testing.TB, path string) *x509.CertPool {
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(b)
	return pool
}
