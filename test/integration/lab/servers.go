//go:build linux

package lab

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

var ids atomic.Int64

func nextID() int64 { return ids.Add(1) }

// CA is a certificate authority that lives as long as its test.
type CA struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	PEM  string // its certificate, for clients to trust
}

func newCA(t testing.TB) *CA {
	t.Helper()
	key := newKey(t)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "sandboxd lab"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &CA{t: t, cert: cert, key: key, PEM: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))}
}

// Config returns a server's TLS configuration for the names.
func (ca *CA) Config(names ...string) *tls.Config {
	ca.t.Helper()
	key := newKey(ca.t)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(2 + nextID()), Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		ca.t.Fatal(err)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		NextProtos:   []string{"h2", "http/1.1"},
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// HTTPS serves handler at address with a certificate for the names.
func (l *Lab) HTTPS(address string, handler http.Handler, names ...string) {
	l.t.Helper()
	l.serveHTTP(tls.NewListener(l.Listen(address), l.CA.Config(names...)), handler)
}

// HTTP serves handler at address in clear text.
func (l *Lab) HTTP(address string, handler http.Handler) {
	l.t.Helper()
	l.serveHTTP(l.Listen(address), handler)
}

func (l *Lab) serveHTTP(ln net.Listener, handler http.Handler) {
	srv := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	l.t.Cleanup(func() { _ = srv.Close(); <-done })
}

// Echo serves a greeting and then everything back, as raw TCP; the server
// speaks first, as SSH or MySQL do.
func (l *Lab) Echo(address, greeting string) *atomic.Int64 {
	l.t.Helper()
	ln := l.Listen(address)
	var accepted atomic.Int64
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			go func() {
				defer c.Close() //nolint:errcheck // a test's server
				_, _ = io.WriteString(c, greeting)
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return &accepted
}

// DNS is a name server of the test's own.
type DNS struct {
	mu      sync.Mutex
	zone    map[string][]string
	queries []string
}

// DNS serves the zone (name -> addresses, names without the final dot) on
// 127.0.0.1:53 of the namespace, over UDP and TCP.
func (l *Lab) DNS(zone map[string][]string) *DNS {
	l.t.Helper()
	d := &DNS{zone: zone}
	udp := &dns.Server{PacketConn: l.ListenPacket("127.0.0.1:53"), Handler: d}
	tcp := &dns.Server{Listener: l.Listen("127.0.0.1:53"), Handler: d}
	for _, s := range []*dns.Server{udp, tcp} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		done := make(chan error, 1)
		go func() { done <- s.ActivateAndServe() }()
		select {
		case <-started:
		case err := <-done:
			l.t.Fatal(errors.Join(errors.New("dns server"), err))
		}
		l.t.Cleanup(func() {
			_ = s.Shutdown()
			if err := <-done; err != nil {
				l.t.Logf("dns server: %v", err)
			}
		})
	}
	return d
}

// Set replaces a name's addresses.
func (d *DNS) Set(name string, addrs ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.zone[name] = addrs
}

// Queries returns the names asked for so far, lower case, in order.
func (d *DNS) Queries() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.queries...)
}

// ServeDNS answers from the zone.
func (d *DNS) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg)
	m.SetReply(q)
	name := strings.ToLower(strings.TrimSuffix(q.Question[0].Name, "."))
	d.mu.Lock()
	d.queries = append(d.queries, name)
	addrs, ok := d.zone[name]
	d.mu.Unlock()
	if !ok {
		m.Rcode = dns.RcodeNameError
	}
	for _, a := range addrs {
		ip := net.ParseIP(a)
		h := dns.RR_Header{Name: q.Question[0].Name, Class: dns.ClassINET, Ttl: 30}
		if v4 := ip.To4(); v4 != nil && q.Question[0].Qtype == dns.TypeA {
			h.Rrtype = dns.TypeA
			m.Answer = append(m.Answer, &dns.A{Hdr: h, A: v4})
		} else if v4 == nil && q.Question[0].Qtype == dns.TypeAAAA {
			h.Rrtype = dns.TypeAAAA
			m.Answer = append(m.Answer, &dns.AAAA{Hdr: h, AAAA: ip})
		}
	}
	_ = w.WriteMsg(m)
}
