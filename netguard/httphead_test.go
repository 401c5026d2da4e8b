package netguard

import (
	"bufio"
	"bytes"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseHTTPHead(t *testing.T) {
	const host = "Host: a.example\r\n"
	tests := []struct {
		name, in string
		want     httpHead
		err      error
	}{
		{"plain", "GET / HTTP/1.1\r\n" + host + "\r\n", httpHead{host: "a.example"}, nil},
		{"old version", "GET / HTTP/1.0\r\n" + host + "\r\n", httpHead{host: "a.example"}, nil},
		{"white space around the value", "GET / HTTP/1.1\r\nhOST:\t a.example \t\r\n\r\n", httpHead{host: "a.example"}, nil},
		{"asterisk", "OPTIONS * HTTP/1.1\r\n" + host + "\r\n", httpHead{host: "a.example"}, nil},
		{"absolute", "GET HTTP://b.example:80?x HTTP/1.1\r\n" + host + "\r\n", httpHead{host: "a.example", absolute: true, scheme: "http", authority: "b.example:80"}, nil},
		{"absolute, backslash ends the authority", "GET http://b.example\\@a.example/ HTTP/1.1\r\n" + host + "\r\n", httpHead{host: "a.example", absolute: true, scheme: "http", authority: "b.example"}, nil},
		{"length", "POST / HTTP/1.1\r\n" + host + "Content-Length: 12\r\n\r\n", httpHead{host: "a.example", framing: bodyLength, length: 12}, nil},
		{"chunked", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: Chunked\r\n\r\n", httpHead{host: "a.example", framing: bodyChunked}, nil},
		{"websocket", "GET / HTTP/1.1\r\n" + host + "Upgrade: WebSocket\r\nConnection: Upgrade\r\n\r\n", httpHead{host: "a.example", websocket: true}, nil},
		{"8-bit value", "GET / HTTP/1.1\r\n" + host + "X: \xe9\r\n\r\n", httpHead{host: "a.example"}, nil},

		{"no host", "GET / HTTP/1.1\r\n\r\n", httpHead{}, errHeadHost},
		{"two hosts", "GET / HTTP/1.1\r\n" + host + host + "\r\n", httpHead{}, errHeadHost},
		{"connect", "CONNECT a.example:443 HTTP/1.1\r\n" + host + "\r\n", httpHead{}, errHeadTunnel},
		{"connect in small letters", "connect a.example:443 HTTP/1.1\r\n" + host + "\r\n", httpHead{}, errHeadTunnel},
		{"http2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", httpHead{}, errHeadUpgrade},
		{"h2c", "GET / HTTP/1.1\r\n" + host + "Upgrade: h2c\r\n\r\n", httpHead{}, errHeadUpgrade},
		{"h2c beside websocket", "GET / HTTP/1.1\r\n" + host + "Upgrade: websocket, h2c\r\n\r\n", httpHead{}, errHeadUpgrade},
		{"settings alone", "GET / HTTP/1.1\r\n" + host + "HTTP2-Settings: AAMAAABk\r\n\r\n", httpHead{}, errHeadUpgrade},
		{"websocket with a body", "GET / HTTP/1.1\r\n" + host + "Upgrade: websocket\r\nContent-Length: 4\r\n\r\n", httpHead{}, errHeadUpgrade},
		{"two upgrades", "GET / HTTP/1.1\r\n" + host + "Upgrade: websocket\r\nUpgrade: h2c\r\n\r\n", httpHead{}, errHeadMalformed},
		{"both framings", "POST / HTTP/1.1\r\n" + host + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", httpHead{}, errHeadFraming},
		{"two lengths", "POST / HTTP/1.1\r\n" + host + "Content-Length: 1\r\nContent-Length: 1\r\n\r\n", httpHead{}, errHeadMalformed},
		{"list of lengths", "POST / HTTP/1.1\r\n" + host + "Content-Length: 1, 1\r\n\r\n", httpHead{}, errHeadMalformed},
		{"signed length", "POST / HTTP/1.1\r\n" + host + "Content-Length: +1\r\n\r\n", httpHead{}, errHeadMalformed},
		{"huge length", "POST / HTTP/1.1\r\n" + host + "Content-Length: 9999999999999999999\r\n\r\n", httpHead{}, errHeadMalformed},
		{"two codings", "POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: gzip, chunked\r\n\r\n", httpHead{}, errHeadMalformed},
		{"old version chunked", "POST / HTTP/1.0\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n", httpHead{}, errHeadMalformed},
		{"bare lf", "GET / HTTP/1.1\n" + host + "\r\n", httpHead{}, errHeadMalformed},
		{"bare lf in a value", "GET / HTTP/1.1\r\n" + host + "X: a\nHost: b.example\r\n\r\n", httpHead{}, errHeadMalformed},
		{"bare cr", "GET / HTTP/1.1\r\n" + host + "X: a\rb\r\n\r\n", httpHead{}, errHeadMalformed},
		{"nul", "GET / HTTP/1.1\r\n" + host + "X: a\x00\r\n\r\n", httpHead{}, errHeadMalformed},
		{"folded", "GET / HTTP/1.1\r\n" + host + "X: a\r\n b\r\n\r\n", httpHead{}, errHeadMalformed},
		{"space before the colon", "GET / HTTP/1.1\r\nHost : a.example\r\n\r\n", httpHead{}, errHeadMalformed},
		{"no colon", "GET / HTTP/1.1\r\n" + host + "X\r\n\r\n", httpHead{}, errHeadMalformed},
		{"empty name", "GET / HTTP/1.1\r\n" + host + ": x\r\n\r\n", httpHead{}, errHeadMalformed},
		{"empty line first", "\r\nGET / HTTP/1.1\r\n" + host + "\r\n", httpHead{}, errHeadMalformed},
		{"two spaces", "GET  / HTTP/1.1\r\n" + host + "\r\n", httpHead{}, errHeadMalformed},
		{"tab in the line", "GET\t/ HTTP/1.1\r\n" + host + "\r\n", httpHead{}, errHeadMalformed},
		{"http/0.9", "GET /\r\n\r\n", httpHead{}, errHeadMalformed},
		{"version 1.2", "GET / HTTP/1.2\r\n" + host + "\r\n", httpHead{}, errHeadMalformed},
		{"fourth form", "GET a.example/ HTTP/1.1\r\n" + host + "\r\n", httpHead{}, errHeadMalformed},
		{"asterisk for GET", "GET * HTTP/1.1\r\n" + host + "\r\n", httpHead{}, errHeadMalformed},
		{"tls", "\x16\x03\x01", httpHead{}, errHeadMalformed},
		{"cut", "GET / HTTP/1.1\r\n" + host, httpHead{}, errIncomplete},
		{"endless", "GET / HTTP/1.1\r\nX: " + strings.Repeat("a", maxHTTPHead), httpHead{}, errHeadTooLarge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, n, err := parseHTTPHead([]byte(tt.in))
			if !errors.Is(err, tt.err) {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			if err != nil {
				return
			}
			if d := cmp.Diff(tt.want, got, cmp.AllowUnexported(httpHead{})); d != "" || n != len(tt.in) {
				t.Errorf("took %d of %d\n%s", n, len(tt.in), d)
			}
		})
	}
}

func TestBodyScanner(t *testing.T) {
	chunked := httpHead{framing: bodyChunked}
	tests := []struct {
		name string
		head httpHead
		in   string
		want string // what belongs to the body
		done bool
		bad  bool
	}{
		{name: "none", in: "GET", done: true},
		{name: "length", head: httpHead{framing: bodyLength, length: 3}, in: "abcGET", want: "abc", done: true},
		{name: "length zero", head: httpHead{framing: bodyLength}, in: "GET", done: true},
		{name: "length, short", head: httpHead{framing: bodyLength, length: 5}, in: "abc", want: "abc"},
		{name: "chunks", head: chunked, in: "3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\nGET", want: "3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n", done: true},
		{name: "trailer", head: chunked, in: "0\r\nX: y\r\n\r\nGET", want: "0\r\nX: y\r\n\r\n", done: true},
		{name: "cut", head: chunked, in: "3\r\nab", want: "3\r\nab"},
		{name: "host in the trailer", head: chunked, in: "0\r\nHost: b.example\r\n\r\n", bad: true},
		{name: "bare lf after the size", head: chunked, in: "3\nabc\r\n", bad: true},
		{name: "bare lf in an extension", head: chunked, in: "3;a\nb\r\nabc\r\n", bad: true},
		{name: "data longer than its size", head: chunked, in: "3\r\nabcd\r\n", bad: true},
		{name: "empty size", head: chunked, in: "\r\n", bad: true},
		{name: "prefixed size", head: chunked, in: "0x3\r\nabc\r\n", bad: true},
		{name: "white space before the size", head: chunked, in: " 3\r\nabc\r\n", bad: true},
		{name: "white space behind the size", head: chunked, in: "3 \r\nabc\r\n", bad: true},
		{name: "overflowing size", head: chunked, in: "1000000000000000\r\n", bad: true},
		{name: "endless extension", head: chunked, in: "3;" + strings.Repeat("a", maxChunkLine+1), bad: true},
		{name: "endless trailer", head: chunked, in: "0\r\n" + strings.Repeat("a", maxTrailers+1), bad: true},
		{name: "folded trailer", head: chunked, in: "0\r\nA: b\r\n c\r\n\r\n", bad: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newBodyScanner(tt.head)
			n, done, err := s.feed([]byte(tt.in))
			if (err != nil) != tt.bad || err == nil && (tt.in[:n] != tt.want || done != tt.done) {
				t.Errorf("got %q, %v, %v", tt.in[:n], done, err)
			}
			if got, ok := feedBytes(tt.head, tt.in); ok == tt.bad || ok && got != n {
				t.Errorf("byte by byte: %d, %v; at once: %d", got, ok, n)
			}
		})
	}
}

// feedBytes feeds one byte at a time until the body ends.
func feedBytes(head httpHead, in string) (n int, ok bool) {
	s := newBodyScanner(head)
	for n < len(in) {
		k, done, err := s.feed([]byte(in[n : n+1]))
		if err != nil {
			return n, false
		}
		n += k
		if done {
			break
		}
	}
	return n, true
}

// sameAsServer compares an accepted head with what Go's own server reads.
func sameAsServer(t *testing.T, b []byte, head httpHead) {
	req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(b)))
	if err != nil {
		return
	}
	host := head.host
	if head.absolute {
		host = head.authority
	}
	if _, reason := requestTarget(host, "80"); reason == "" && req.Host != host {
		t.Fatalf("a server sees host %q, the gateway %q", req.Host, host)
	}
	if chunked := len(req.TransferEncoding) > 0; chunked != (head.framing == bodyChunked) {
		t.Fatalf("a server sees coding %v, the gateway %v", req.TransferEncoding, head.framing)
	}
	if head.framing != bodyChunked && req.ContentLength != head.length {
		t.Fatalf("a server sees %d bytes, the gateway %d", req.ContentLength, head.length)
	}
}

func FuzzHTTPHead(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"POST http://a.example:80/x HTTP/1.1\r\nHost: a.example:80\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\n",
		"GET / HTTP/1.1\r\nHost: a.example\r\nUpgrade: websocket\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"GET / HTTP/1.1\nHost: a.example\n\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		head, n, err := parseHTTPHead(b)
		var s headScanner
		end, stepErr := 0, errIncomplete
		for i := 1; i <= len(b) && errors.Is(stepErr, errIncomplete); i++ {
			end, stepErr = s.end(b[:i])
		}
		if err != nil {
			return
		}
		if stepErr != nil || end != n {
			t.Fatalf("at once %d, byte by byte %d, %v", n, end, stepErr)
		}
		text := string(b[:n])
		if n > maxHTTPHead || strings.Count(text, "\r\n\r\n") != 1 || strings.Count(text, "\r") != strings.Count(text, "\n") {
			t.Fatalf("accepted %q", text)
		}
		if c := strings.Count(strings.ToLower(text), "\r\nhost:"); c != 1 {
			t.Fatalf("%d hosts in %q", c, text)
		}
		sameAsServer(t, b, head)
		bs := newBodyScanner(head)
		k, done, err := bs.feed(b[n:])
		if k > len(b)-n {
			t.Fatal("body beyond the buffer")
		}
		if m, ok := feedBytes(head, string(b[n:])); ok != (err == nil) || ok && done && m != k {
			t.Fatalf("body at once %d, %v; byte by byte %d, %v", k, err, m, ok)
		}
	})
}
