package casefile

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/netguard"
)

// Here the same cases travel as real bytes over loopback sockets, and both
// ways have to agree.

// site is a web server for every name on one listener, TLS or not.
type site struct {
	ln    net.Listener
	roots *x509.CertPool
	cert  tls.Certificate
	wg    sync.WaitGroup

	mu    sync.Mutex
	chain chain
	sent  []*http.Request
}

func newSite(t *testing.T) *site {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
		DNSNames: []string{
			"a.example.com", "b.example.com", "sub.a.example.com", "c.example.net",
			"rebind.example.net", "priv.example.net", "mixed.example.net", "localhost",
		},
		IPAddresses: []net.IP{net.ParseIP("127.0.0.1"), net.ParseIP("1.1.1.1")},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{roots: x509.NewCertPool(), cert: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}}
	s.roots.AddCert(parsed)
	s.ln = listen(t)
	s.wg.Go(func() {
		for {
			c, err := s.ln.Accept()
			if err != nil {
				return
			}
			s.wg.Go(func() { s.serve(c) })
		}
	})
	t.Cleanup(func() { _ = s.ln.Close(); s.wg.Wait() })
	return s
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// serve answers one connection's requests with the chain's responses, written
// by hand: a library would not send what some cases need.
func (s *site) serve(c net.Conn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	br := bufio.NewReader(c)
	scheme, conn := "http", io.ReadWriter(struct {
		io.Reader
		io.Writer
	}{br, c})
	if first, err := br.Peek(1); err != nil {
		return
	} else if first[0] == 22 {
		scheme = "https"
		t := tls.Server(peeked{c, br}, &tls.Config{Certificates: []tls.Certificate{s.cert}, MinVersion: tls.VersionTLS12})
		conn, br = t, bufio.NewReader(t)
	}
	for {
		req, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		req.URL.Scheme, req.URL.Host = scheme, req.Host
		if _, err := io.WriteString(conn, s.answer(req)); err != nil {
			return
		}
	}
}

func (s *site) answer(req *http.Request) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.sent)
	s.sent = append(s.sent, req)
	if n >= len(s.chain.Responses) {
		return "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
	}
	r := s.chain.Responses[n]
	var b strings.Builder
	fmt.Fprintf(&b, "HTTP/1.1 %d X\r\n", r.Status)
	for _, l := range r.Location {
		fmt.Fprintf(&b, "Location: %s\r\n", l)
	}
	b.WriteString("Content-Length: 0\r\n\r\n")
	return b.String()
}

// peeked is a connection some of whose bytes lie in a buffer.
type peeked struct {
	net.Conn
	r io.Reader
}

func (p peeked) Read(b []byte) (int, error) { return p.r.Read(b) }

// unsendable reports whether HTTP cannot carry the case's Location: framing
// ends it at a CR or LF, and strips white space around it, so that another
// Location would arrive.
func (c chain) unsendable() bool {
	for _, r := range c.Responses {
		for _, l := range r.Location {
			if strings.ContainsAny(l, "\r\n") || strings.TrimSpace(l) != l {
				return true
			}
		}
	}
	return false
}

// named is a connection that says it leads to the address that was dialled.
type named struct {
	*net.TCPConn
	remote net.Addr
}

func (n named) RemoteAddr() net.Addr { return n.remote }

// leadTo makes every vetted dial end at one loopback server.
func leadTo(ln net.Listener) func(context.Context, netip.AddrPort) (net.Conn, error) {
	return func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", ln.Addr().String())
		if err != nil {
			return nil, err
		}
		return named{c.(*net.TCPConn), net.TCPAddrFromAddrPort(addr)}, nil
	}
}

func TestRedirectCasesAsBytes(t *testing.T) {
	s := newSite(t)
	ran := 0
	for _, c := range shippedCases(t, "redirect_chain") {
		var in chain
		if err := decode(c.Input, &in); err != nil {
			t.Fatal(err)
		}
		if in.unsendable() {
			t.Logf("%s cannot be sent: %s", c.ID, c.Reason)
			continue
		}
		ran++
		s.mu.Lock()
		s.chain, s.sent = in, nil
		s.mu.Unlock()
		dry, err := run(c)
		if err != nil {
			t.Fatal(err)
		}
		wet := s.run(t, c, in)
		if wet.Outcome != dry.Outcome || wet.Reason != dry.Reason {
			t.Errorf("%s: %s as bytes, %s dry", c.ID, wet, dry)
		}
		if d := cmp.Diff(dry.detail, wet.detail); d != "" && dry.Outcome == Allow {
			t.Errorf("%s: details (-dry +bytes):\n%s", c.ID, d)
		}
	}
	if ran < 80 {
		t.Errorf("only %d cases ran", ran)
	}
}

// run runs one case through the HTTP client and the site.
func (s *site) run(t *testing.T, c Case, in chain) got {
	t.Helper()
	b, _, err := newBench(c)
	if err != nil {
		t.Fatal(err)
	}
	defer b.egress.Close()
	b.answer = leadTo(s.ln)
	req, err := in.request(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	client := b.egress.HTTPClient(netguard.HTTPOptions{TLS: &tls.Config{RootCAs: s.roots, MinVersion: tls.VersionTLS12}})
	resp, err := client.Do(req)
	if err != nil {
		return refusal(b, err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.decision().Outcome != Allow {
		t.Errorf("%s: answered, and yet the last decision is %s", c.ID, b.decision())
	}
	last := s.sent[len(s.sent)-1]
	for k := range last.Header {
		switch k {
		case "Accept-Encoding", "User-Agent", "Connection", "Content-Length": // net/http's own
			continue
		}
		if _, ok := in.Request.Headers[k]; !ok {
			t.Errorf("%s: the server was sent %s, which the caller never set", c.ID, k)
		}
	}
	return in.followed(last, len(s.sent)-1)
}

// TestConnectCasesAsBytes asks a real DNS server, over UDP and TCP, what the
// dry run was told by a table.
func TestConnectCasesAsBytes(t *testing.T) {
	ran := 0
	for _, c := range shippedCases(t, "policy", "dns", "host") {
		if c.ID == "pol-068" {
			// The built-in resolver answers localhost itself, so the poisoned
			// answer of this case can never arrive.
			continue
		}
		z, err := newZone(c.Resolver)
		if err != nil {
			t.Fatal(err)
		}
		srv := newDNSServer(t, z)
		up, err := netguard.NewUpstream(srv.addr)
		if err != nil {
			t.Fatal(err)
		}
		b, refused, err := newBenchOn(c, z, up)
		if err != nil {
			t.Fatal(err)
		}
		wet := refused
		if refused.Outcome != Invalid {
			if c.Kind == "host" {
				wet, err = runHost(b, c.Input)
			} else {
				wet, err = runConnect(b, c)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		_ = b.egress.Close()
		srv.close()
		dry, err := run(c)
		if err != nil {
			t.Fatal(err)
		}
		ran++
		if wet.Outcome != dry.Outcome || wet.Reason != dry.Reason {
			t.Errorf("%s: %s as bytes, %s dry", c.ID, wet, dry)
		}
		if c.Detail != nil && c.Detail.Dial != nil && cmp.Diff(c.Detail.Dial, wet.detail.Dial) != "" {
			t.Errorf("%s: dialled %v; want %v", c.ID, wet.detail.Dial, c.Detail.Dial)
		}
	}
	if ran != 290 {
		t.Errorf("%d cases ran", ran)
	}
}
