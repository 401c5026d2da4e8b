package netguard

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"testing"
	"time"
)

// testCert is a certificate for names and a pool that trusts it.
func testCert(t testing.TB, names ...string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: names, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// tlsLab has two names on one shared address, one name elsewhere, and an echo
// server behind TLS at each.
func tlsLab(t *testing.T, server *tls.Config) (*lab, *x509.CertPool) {
	t.Helper()
	l := newLab(t, Config{Mode: ModeAllowlist, Allow: []Rule{
		{Host: "api.example.com"},
		{Host: "*.example.org", ECH: "allow"},
		{Host: "plain.example.com", Protocol: ProtocolHTTP},
	}})
	cert, pool := testCert(t, "api.example.com", "a.example.org", "b.example.org", "evil.example.net")
	server.Certificates = []tls.Certificate{cert}
	for _, at := range []string{"8.8.8.8:443", "8.8.4.4:443"} {
		l.serve(at, func(c net.Conn) { echo(tls.Server(c, server)) })
	}
	l.names.set("api.example.com", time.Minute, "8.8.8.8")
	l.names.set("a.example.org", time.Minute, "8.8.8.8")
	l.names.set("b.example.org", time.Minute, "8.8.4.4")
	l.names.set("plain.example.com", time.Minute, "9.9.9.9")
	for _, n := range []string{"api.example.com", "a.example.org", "b.example.org", "plain.example.com"} {
		l.lookUp(n)
	}
	return l, pool
}

func TestServeConnTLSClients(t *testing.T) {
	hrr := &tls.Config{CurvePreferences: []tls.CurveID{tls.CurveP384}} // answers with HelloRetryRequest
	tests := []struct {
		name   string
		server *tls.Config
		client *tls.Config
		dst    string
		want   Reason // empty where the handshake and the data pass
	}{
		{"1.3", &tls.Config{}, &tls.Config{ServerName: "api.example.com"}, "8.8.8.8:443", ""},
		{"1.2", &tls.Config{MaxVersion: tls.VersionTLS12}, &tls.Config{ServerName: "api.example.com"}, "8.8.8.8:443", ""},
		{"hello retry request", hrr, &tls.Config{ServerName: "api.example.com", CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP384}}, "8.8.8.8:443", ""},
		{"second name on the shared address", &tls.Config{}, &tls.Config{ServerName: "a.example.org"}, "8.8.8.8:443", ""},
		{"name of another address", &tls.Config{}, &tls.Config{ServerName: "b.example.org"}, "8.8.8.8:443", ReasonPinMismatch},
		{"name outside the policy", &tls.Config{}, &tls.Config{ServerName: "evil.example.net"}, "8.8.8.8:443", ReasonNotAllowed},
		{"no name", &tls.Config{}, &tls.Config{InsecureSkipVerify: true}, "8.8.8.8:443", ReasonNoSNI},
		{"address that no look-up led to", &tls.Config{}, &tls.Config{ServerName: "api.example.com"}, "1.1.1.1:443", ReasonPin},
		{"other port of a pinned address", &tls.Config{}, &tls.Config{ServerName: "api.example.com"}, "8.8.8.8:8443", ReasonPort},
		{"tls where the rule says http", &tls.Config{}, &tls.Config{ServerName: "plain.example.com"}, "9.9.9.9:443", ReasonProtocol},
		{"metadata", &tls.Config{}, &tls.Config{ServerName: "api.example.com"}, "169.254.169.254:443", ReasonAddress},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l, pool := tlsLab(t, tt.server)
			tt.client.RootCAs = pool
			c := tls.Client(l.connect(tt.dst), tt.client)
			_, err := c.Write([]byte("ping"))
			if tt.want != "" {
				if err == nil {
					_, err = io.ReadAll(c)
				}
				if d := l.lastDecision(); !isReset(err) || d.Allow || d.Reason != tt.want || len(l.dialled) != 0 {
					t.Errorf("%v, decision %+v, dialled %v", err, d, l.dialled)
				}
				return
			}
			buf := make([]byte, 4)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "ping" {
				t.Fatalf("%q, %v", buf, err)
			}
			if d := l.lastDecision(); !d.Allow || d.Host != tt.client.ServerName {
				t.Errorf("decision %+v", d)
			}
		})
	}
}

// A server's HelloRetryRequest makes the client send a second hello, and some
// servers route by that one.
func TestServeConnSecondHelloKeepsTheName(t *testing.T) {
	l, _ := tlsLab(t, &tls.Config{})
	got := make(chan []byte, 1)
	first := helloSpec{names: []string{"api.example.com"}}.bytes()
	l.serve("8.8.8.8:443", func(c net.Conn) {
		buf := make([]byte, len(first))
		_, _ = io.ReadFull(c, buf)
		fmt.Fprint(c, "retry")
		rest, _ := io.ReadAll(c)
		got <- rest
	})
	c := l.connect("8.8.8.8:443")
	_, _ = c.Write(first)
	_, _ = io.ReadFull(c, make([]byte, 5))
	_, _ = c.Write([]byte{tlsChangeCipherSpec, 3, 3, 0, 1, 1})
	_, _ = c.Write(helloSpec{names: []string{"evil.example.net"}, records: 3}.bytes())
	wantReset(t, c)
	if rest := <-got; bytes.Contains(rest, []byte("evil")) {
		t.Errorf("the second name reached the server: %q", rest)
	}
	if d := l.lastDecision(); d.Allow || d.Reason != ReasonTLSMalformed {
		t.Errorf("decision %+v", d)
	}
}

func TestServeConnECH(t *testing.T) {
	for _, tt := range []struct {
		name string
		want Reason
	}{
		{"api.example.com", ReasonECH},
		{"a.example.org", ""}, // its rule says ech: allow
	} {
		l, _ := tlsLab(t, &tls.Config{})
		c := l.connect("8.8.8.8:443")
		spec := helloSpec{names: []string{tt.name}, extensions: [][2]any{{tlsExtECH, []byte{0, 0, 1, 0, 1, 7, 0, 0, 0, 0}}}}
		_, _ = c.Write(spec.bytes())
		_, _ = io.ReadAll(c) // the server's alert, or a reset
		if d := l.lastDecision(); d.Allow != (tt.want == "") || d.Reason != tt.want {
			t.Errorf("%s: decision %+v", tt.name, d)
		}
	}
}

func TestServeConnHelloByteByByte(t *testing.T) {
	l, _ := tlsLab(t, &tls.Config{})
	want := helloSpec{names: []string{"api.example.com"}, records: 4}.bytes()
	got := make(chan []byte, 1)
	l.serve("8.8.8.8:443", func(c net.Conn) {
		b, _ := io.ReadAll(c)
		got <- b
	})
	c := l.connect("8.8.8.8:443")
	_ = c.SetNoDelay(true)
	for i := range want {
		if _, err := c.Write(want[i : i+1]); err != nil {
			t.Fatal(err)
		}
	}
	_ = c.CloseWrite()
	if b := <-got; !bytes.Equal(b, want) {
		t.Errorf("got %d bytes, want %d", len(b), len(want))
	}
}

func TestServeConnRefusesWhatProvesNoName(t *testing.T) {
	hello := helloSpec{names: []string{"api.example.com"}}.bytes()
	tests := []struct {
		name string
		send []byte
		end  bool
		want Reason
	}{
		{"ssh", []byte("SSH-2.0-x\r\n"), false, ReasonProtocol},
		{"http on a tls rule", []byte("GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n"), false, ReasonProtocol},
		{"half a hello, then silence", hello[:len(hello)-1], false, ReasonTLSTruncated},
		{"half a hello, then the end", hello[:len(hello)-1], true, ReasonTLSTruncated},
		{"silence", nil, false, ReasonTLSTruncated},
		{"endless hello", bytes.Repeat([]byte{22, 3, 1, 0, 1, 1}, 200), false, ReasonTLSTruncated},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l, _ := tlsLab(t, &tls.Config{})
			l.egress.gw.wait = 100 * time.Millisecond
			c := l.connect("8.8.8.8:443")
			_, _ = c.Write(tt.send)
			if tt.end {
				_ = c.CloseWrite()
			}
			wantReset(t, c)
			if d := l.lastDecision(); d.Allow || d.Reason != tt.want || len(l.dialled) != 0 {
				t.Errorf("decision %+v, dialled %v", d, l.dialled)
			}
		})
	}
}

func TestServeConnFallsBackToAnotherPinnedAddress(t *testing.T) {
	l, pool := tlsLab(t, &tls.Config{})
	l.names.set("api.example.com", time.Minute, "1.1.1.1", "8.8.4.4")
	l.lookUp("api.example.com")
	c := tls.Client(l.connect("1.1.1.1:443"), &tls.Config{ServerName: "api.example.com", RootCAs: pool})
	if err := c.Handshake(); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(l.dialled); got != "[1.1.1.1:443 8.8.4.4:443]" {
		t.Errorf("dialled %s", got)
	}
}

func TestServeConnFailedDial(t *testing.T) {
	l, pool := tlsLab(t, &tls.Config{})
	l.names.set("down.example.org", time.Minute, "1.1.1.1")
	l.lookUp("down.example.org")
	c := tls.Client(l.connect("1.1.1.1:443"), &tls.Config{ServerName: "down.example.org", RootCAs: pool})
	if err := c.Handshake(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("handshake: %v", err)
	}
	d := l.lastDecision()
	if r := l.closeRecord(d.ID); !d.Allow || r.Reason != ReasonDial {
		t.Errorf("decision %+v, close %+v", d, r)
	}
}
