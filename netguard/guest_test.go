package netguard

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestGuestDialIsBoundToItsName holds that a guest which dials an allowed name
// cannot use the connection for another site on the same address.
func TestGuestDialIsBoundToItsName(t *testing.T) {
	l := newLab(t, Config{Mode: ModeAllowlist, Allow: []Rule{{Host: "api.example.com", Ports: []Port{"443", "80"}}}})
	l.names.set("api.example.com", time.Minute, "8.8.8.8")
	received := make(chan []byte, 16)
	sink := func(c net.Conn) {
		b, _ := io.ReadAll(c)
		received <- b
	}
	l.serve("8.8.8.8:443", sink)
	l.serve("8.8.8.8:80", sink)
	ech := helloSpec{names: []string{"api.example.com"}, extensions: [][2]any{{0xfe0d, []byte{0}}}}.bytes()
	for name, tt := range map[string]struct {
		port  string
		bytes []byte
		want  Reason
	}{
		"its own name":    {"443", plainHello(t, "api.example.com"), ""},
		"another name":    {"443", plainHello(t, "evil.example.net"), ReasonNotAllowed},
		"encrypted name":  {"443", ech, ReasonECH},
		"raw bytes":       {"443", []byte("\x00\x00\x00\x08\x04\xd2\x16\x2f"), ReasonProtocol},
		"http on 443":     {"443", []byte("GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n"), ReasonProtocol},
		"its own host":    {"80", []byte("GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n"), ""},
		"another host":    {"80", []byte("GET / HTTP/1.1\r\nHost: evil.example.net\r\n\r\n"), ReasonNotAllowed},
		"a second host":   {"80", []byte("GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\nGET / HTTP/1.1\r\nHost: evil.example.net\r\n\r\n"), ReasonNotAllowed},
		"a nested tunnel": {"80", []byte("CONNECT api.example.com:80 HTTP/1.1\r\nHost: api.example.com:80\r\n\r\n"), ReasonHTTPConnect},
	} {
		c, err := l.egress.DialContext(t.Context(), "tcp", "api.example.com:"+tt.port)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := c.Write(tt.bytes); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
		got := string(<-received)
		d := l.lastDecision()
		switch {
		case tt.want == "" && (got != string(tt.bytes) || !d.Allow):
			t.Errorf("%s: the server got %d of %d bytes, %+v", name, len(got), len(tt.bytes), d)
		case tt.want != "" && d.Reason != tt.want:
			t.Errorf("%s: %+v; want %s", name, d, tt.want)
		case tt.want != "" && strings.Contains(got, "evil"):
			t.Errorf("%s: the server got %q", name, got)
		}
		l.closeRecord(d.ID)
	}
}

// TestGuestTLS runs a real handshake and a real request over a guest's dial.
func TestGuestTLS(t *testing.T) {
	l := newLab(t, Config{Mode: ModeAllowlist, Allow: []Rule{{Host: "api.example.com"}}})
	l.names.set("api.example.com", time.Minute, "8.8.8.8")
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s", r.TLS.ServerName, r.Host)
	}))
	defer srv.Close()
	l.place("8.8.8.8:443", srv.Listener.Addr().String())
	raw, err := l.egress.DialContext(t.Context(), "tcp", "api.example.com:443")
	if err != nil {
		t.Fatal(err)
	}
	c := tls.Client(raw, &tls.Config{ServerName: "api.example.com", InsecureSkipVerify: true})
	defer c.Close()
	for range 2 {
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if string(body) != "api.example.com api.example.com" {
			t.Errorf("%q", body)
		}
	}
}

// TestGuestConnectionEndsWithClose holds that a silent guest's connection ends
// when its Egress does, and that Close waits for it.
func TestGuestConnectionEndsWithClose(t *testing.T) {
	l := newLab(t, Config{Mode: ModeAllowlist, Allow: []Rule{{Host: "api.example.com"}}})
	l.names.set("api.example.com", time.Minute, "8.8.8.8")
	l.serve("8.8.8.8:443", echo)
	c, err := l.egress.DialContext(t.Context(), "tcp", "api.example.com:443")
	if err != nil {
		t.Fatal(err)
	}
	if c.RemoteAddr().String() != "8.8.8.8:443" {
		t.Errorf("remote %v", c.RemoteAddr())
	}
	began := time.Now()
	_ = l.egress.Close()
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("Close took %v", took)
	}
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if n, err := c.Read(make([]byte, 1)); err == nil || n != 0 {
		t.Errorf("%d, %v", n, err)
	}
	_ = c.Close()
}
