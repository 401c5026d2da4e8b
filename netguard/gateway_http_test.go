package netguard

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// httpLab serves HTTP for two names on one shared address.
func httpLab(t *testing.T, handler http.Handler) *lab {
	t.Helper()
	l := newLab(t, Config{Mode: ModeAllowlist, Allow: []Rule{
		allowHost("api.example.com", "", "80"),
		allowHost("www.example.com", "", "80"),
		allowHost("other.example.com", ProtocolHTTP, "8080"),
	}})
	ln := listen(t)
	srv := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	t.Cleanup(func() { _ = srv.Close(); <-done })
	l.place("8.8.8.8:80", ln.Addr().String())
	l.place("8.8.4.4:8080", ln.Addr().String())
	l.names.set("api.example.com", time.Minute, "8.8.8.8")
	l.names.set("www.example.com", time.Minute, "8.8.8.8")
	l.names.set("other.example.com", time.Minute, "8.8.4.4")
	for _, n := range []string{"api.example.com", "www.example.com", "other.example.com"} {
		l.lookUp(n)
	}
	return l
}

// httpClient is an ordinary client whose connections all reach dst through
// the gateway.
func (l *lab) httpClient(dst string) *http.Client {
	at := l.gate(dst)
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", at)
	}}
	l.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

// bodyOf sends one request with the given Host. The URL's host is always the
// same, so that the client keeps using one connection.
func bodyOf(t *testing.T, c *http.Client, method, host, body string, chunked bool) (string, error) {
	t.Helper()
	var r io.Reader = strings.NewReader(body)
	if chunked {
		r = struct{ io.Reader }{r} // hides the length
	}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://guest/", r)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	resp, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

func echoHandler(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s %s %d %.8s", r.Method, r.Host, len(b), b)
}

func TestServeConnHTTPKeepsJudging(t *testing.T) {
	l := httpLab(t, http.HandlerFunc(echoHandler))
	c := l.httpClient("8.8.8.8:80")
	big := strings.Repeat("x", 3<<20)
	for _, tt := range []struct {
		method, host, body string
		chunked            bool
		want               string
	}{
		{"GET", "api.example.com", "", false, "GET api.example.com 0 "},
		{"POST", "api.example.com", "hello", false, "POST api.example.com 5 hello"},
		{"PUT", "www.example.com", big, false, "PUT www.example.com 3145728 xxxxxxxx"},
		{"POST", "API.example.com:80", big, true, "POST API.example.com:80 3145728 xxxxxxxx"},
		{"GET", "www.example.com", "", false, "GET www.example.com 0 "},
	} {
		got, err := bodyOf(t, c, tt.method, tt.host, tt.body, tt.chunked)
		if err != nil || got != tt.want {
			t.Errorf("%s %s: %q, %v", tt.method, tt.host, got, err)
		}
	}
	if n := len(l.dialled); n != 1 {
		t.Errorf("%d connections to the origin; the kept-alive one should do", n)
	}
	for _, host := range []string{"evil.example.net", "other.example.com", "8.8.8.8", "api.example.com:8080", "localhost"} {
		if got, err := bodyOf(t, c, "POST", host, "secret", false); err == nil {
			t.Errorf("%s answered %q", host, got)
		}
	}
}

func TestServeConnHTTPOnItsOwnPort(t *testing.T) {
	l := httpLab(t, http.HandlerFunc(echoHandler))
	c := l.httpClient("8.8.4.4:8080")
	if got, err := bodyOf(t, c, "GET", "other.example.com:8080", "", false); err != nil || got != "GET other.example.com:8080 0 " {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := bodyOf(t, c, "GET", "other.example.com", "", false); err == nil {
		t.Errorf("a Host without the port answered %q", got)
	}
}

// What a refused second request on an open connection carries never leaves.
func TestServeConnHTTPSmuggling(t *testing.T) {
	const ok = "GET /1 HTTP/1.1\r\nHost: api.example.com\r\n\r\n"
	tests := []struct {
		name, then string
		want       Reason
	}{
		{"another host", "GET /2 HTTP/1.1\r\nHost: evil.example.net\r\n\r\n", ReasonNotAllowed},
		{"connect", "CONNECT api.example.com:80 HTTP/1.1\r\nHost: api.example.com:80\r\n\r\n", ReasonHTTPConnect},
		{"http2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ReasonHTTPUpgrade},
		{"late websocket", "GET /2 HTTP/1.1\r\nHost: api.example.com\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n", ReasonHTTPUpgrade},
		{"body that hides a request", "POST /2 HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 4\r\n\r\nbodyGET /3 HTTP/1.1\r\nHost: evil.example.net\r\n\r\n", ReasonNotAllowed},
		{"chunk that hides a request", "POST /2 HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\nGET /3 HTTP/1.1\r\nHost: evil.example.net\r\n\r\n", ReasonNotAllowed},
		{"chunk size that parsers read differently", "POST /2 HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\n\r\n0x4\r\nbody\r\n0\r\n\r\n", ReasonHTTPSyntax},
		{"both framings", "POST /2 HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", ReasonHTTPFraming},
		{"host in a folded line", "GET /2 HTTP/1.1\r\nX: a\r\n Host: evil.example.net\r\nHost: api.example.com\r\n\r\n", ReasonHTTPSyntax},
		{"head that never ends", "GET /2 HTTP/1.1\r\nHost: api.exa", ReasonHTTPSyntax},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := httpLab(t, http.NotFoundHandler())
			l.egress.gw.wait = 200 * time.Millisecond
			got := make(chan string, 1)
			l.serve("8.8.8.8:80", func(c net.Conn) {
				b, _ := io.ReadAll(c)
				got <- string(b)
			})
			c := l.connect("8.8.8.8:80")
			fmt.Fprint(c, ok+tt.then)
			wantReset(t, c)
			seen := <-got
			if !strings.HasPrefix(ok+tt.then, seen) || strings.Contains(seen, "evil") || strings.Contains(seen, "CONNECT") {
				t.Errorf("the origin saw %q", seen)
			}
			d := l.lastDecision()
			if d.Allow || d.Reason != tt.want {
				t.Errorf("decision %+v", d)
			}
			l.closeRecord(d.ID) // the connection had been allowed: one id, to the end
		})
	}
}

func TestServeConnWebSocket(t *testing.T) {
	const ask = "GET /chat HTTP/1.1\r\nHost: api.example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
	const evil = "GET / HTTP/1.1\r\nHost: evil.example.net\r\n\r\n"
	tests := []struct {
		name, answer string
		opaque       bool
	}{
		{"accepted", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\nfirst", true},
		{"accepted after early hints", "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 101 Switching Protocols\r\n\r\nfirst", true},
		{"ignored", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := httpLab(t, http.NotFoundHandler())
			rest := make(chan string, 1)
			l.serve("8.8.8.8:80", func(c net.Conn) {
				r := bufio.NewReader(c)
				if _, err := http.ReadRequest(r); err != nil {
					rest <- err.Error()
					return
				}
				fmt.Fprint(c, tt.answer)
				b, _ := io.ReadAll(r)
				rest <- string(b)
			})
			c := l.connect("8.8.8.8:80")
			fmt.Fprint(c, ask)
			buf := make([]byte, len(tt.answer))
			if _, err := io.ReadFull(c, buf); err != nil || string(buf) != tt.answer {
				t.Fatalf("%q, %v", buf, err)
			}
			fmt.Fprint(c, evil)
			_ = c.CloseWrite()
			if got := <-rest; (got == evil) != tt.opaque || !tt.opaque && got != "" {
				t.Errorf("the origin saw %q", got)
			}
		})
	}
}

// Where a destination is open to any bytes, a deny rule on a name still holds
// wherever the name shows, and a server may still speak first.
func TestServeConnRawStillDeniesNames(t *testing.T) {
	tests := []struct {
		name, send string
		want       Reason
	}{
		{"denied server name", string(helloSpec{names: []string{"x.evil.example.net"}}.bytes()), ReasonDenyRule},
		{"denied server name in two records", string(helloSpec{names: []string{"x.evil.example.net"}, records: 2}.bytes()), ReasonDenyRule},
		{"denied host", "GET / HTTP/1.1\r\nHost: x.evil.example.net\r\n\r\n", ReasonDenyRule},
		{"denied second host", "GET / HTTP/1.1\r\nHost: good.example\r\n\r\nGET / HTTP/1.1\r\nHost: x.evil.example.net\r\n\r\n", ReasonDenyRule},
		{"other server name", string(helloSpec{names: []string{"good.example.net"}}.bytes()), ""},
		{"no name", string(helloSpec{}.bytes()), ""},
		{"other host", "GET / HTTP/1.1\r\nHost: good.example.net\r\n\r\n", ""},
		{"another protocol", "SSH-2.0-client\r\n", ""},
		{"binary", "\x00\x00\x00\x08\x04\xd2\x16\x2f", ""},
		{"short capitals", "GETX", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, Config{Mode: ModePublic, Deny: []Rule{{Host: "*.evil.example.net"}}})
			got := make(chan string, 1)
			l.serve("8.8.8.8:443", func(c net.Conn) {
				fmt.Fprint(c, "banner")
				b, _ := io.ReadAll(c)
				got <- string(b)
			})
			c := l.connect("8.8.8.8:443")
			if _, err := io.ReadFull(c, make([]byte, 6)); err != nil {
				t.Fatal(err)
			}
			fmt.Fprint(c, tt.send)
			_ = c.CloseWrite()
			seen := <-got
			d := l.lastDecision()
			if tt.want == "" {
				if seen != tt.send || !d.Allow {
					t.Errorf("saw %q, decision %+v", seen, d)
				}
			} else if strings.Contains(seen, "evil") || d.Reason != tt.want {
				t.Errorf("saw %q, decision %+v", seen, d)
			}
		})
	}
}

// The policy's schemes hold at the gateway as in the HTTP client.
func TestServeConnSchemes(t *testing.T) {
	const get = "GET / HTTP/1.1\r\nHost: a.example.com\r\n"
	hello := string(helloSpec{names: []string{"a.example.com"}}.bytes())
	for _, tt := range []struct {
		schemes []string
		send    string
		want    Reason
	}{
		{nil, get + "\r\n", ""},
		{[]string{"https"}, get + "\r\n", ReasonScheme},
		{[]string{"http"}, get + "Upgrade: websocket\r\n\r\n", ReasonScheme},
		{[]string{"http", "ws"}, get + "Upgrade: websocket\r\n\r\n", ""},
		{[]string{"http"}, hello, ReasonScheme},
		{[]string{"wss"}, hello, ""},
	} {
		l := newLab(t, Config{Mode: ModeAllowlist, Allow: []Rule{{Host: "a.example.com", Ports: []Port{"80"}}}, Schemes: tt.schemes})
		l.names.set("a.example.com", time.Minute, "8.8.8.8")
		l.lookUp("a.example.com")
		if v := l.egress.JudgeStream("tcp", netip.MustParseAddrPort("8.8.8.8:80"), []byte(tt.send)); v.Reason != tt.want {
			t.Errorf("%v %.20q: %+v", tt.schemes, tt.send, v)
		}
	}
}
