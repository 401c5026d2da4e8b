package netguard

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
)

// maxHTTPHead bounds a request head in bytes, its last CRLF included.
const maxHTTPHead = 32 << 10

var (
	errHeadTooLarge  = errors.New("netguard: request head over the size bound")
	errHeadMalformed = errors.New("netguard: malformed request head")
	errHeadHost      = errors.New("netguard: request with other than one Host")
	errHeadTunnel    = errors.New("netguard: CONNECT through the gateway")
	errHeadUpgrade   = errors.New("netguard: protocol change that hides later requests")
	errHeadFraming   = errors.New("netguard: request framed in two ways")
)

// bodyFraming says how the body after a request head is delimited.
type bodyFraming uint8

const (
	bodyNone bodyFraming = iota
	bodyLength
	bodyChunked
)

// httpHead is a parsed HTTP/1 request head (RFC 9112).
type httpHead struct {
	// host is the value of the only Host field, not yet checked.
	host string
	// absolute is set for an absolute-form target; scheme (lower case) and
	// authority are its parts, unchecked.
	absolute          bool
	scheme, authority string
	framing           bodyFraming
	length            int64 // for bodyLength
	// websocket is set by the one protocol change that may pass.
	websocket bool
}

// headScanner finds the end of a head in a growing buffer, looking at each
// byte once.
type headScanner struct{ off, line int }

// end returns the length of the head once b holds all of it. It refuses what
// two parsers may see differently (a CR or LF alone, NUL) as soon as it
// comes, and returns errIncomplete otherwise.
func (s *headScanner) end(b []byte) (int, error) {
	for ; s.off < len(b); s.off++ {
		if s.off >= maxHTTPHead {
			return 0, errHeadTooLarge
		}
		switch c := b[s.off]; {
		case c == '\n':
			if s.off == 0 || b[s.off-1] != '\r' {
				return 0, errHeadMalformed
			}
			if s.off-s.line == 1 { // CRLF alone: the end, if a line came before
				if s.line == 0 {
					return 0, errHeadMalformed
				}
				return s.off + 1, nil
			}
			s.line = s.off + 1
		case s.off > 0 && b[s.off-1] == '\r', c == 0:
			return 0, errHeadMalformed
		case s.line == 0 && (c < ' ' || c >= 0x7f) && c != '\r':
			return 0, errHeadMalformed // no request line: another protocol, not worth waiting for
		}
	}
	if s.off >= maxHTTPHead {
		return 0, errHeadTooLarge
	}
	return 0, errIncomplete
}

// parseHTTPHead parses the request head at the start of b and returns its
// length; errIncomplete asks for more. HTTP/2's connection preface is told
// apart before anything else, since its own "head" is one on purpose.
func parseHTTPHead(b []byte) (httpHead, int, error) {
	var s headScanner
	n, err := s.end(b)
	if err != nil {
		return httpHead{}, 0, err
	}
	head, err := parseHeadLines(b[:n])
	return head, n, err
}

// parseHeadLines parses a head that headScanner found the end of.
func parseHeadLines(b []byte) (httpHead, error) {
	line, rest, _ := bytes.Cut(b, []byte("\r\n"))
	head, oldHTTP, err := parseRequestLine(string(line))
	if err != nil {
		return httpHead{}, err
	}
	f := headFields{}
	for len(rest) > 2 {
		line, rest, _ = bytes.Cut(rest, []byte("\r\n"))
		if err := f.add(line); err != nil {
			return httpHead{}, err
		}
	}
	if f.hosts != 1 {
		return httpHead{}, errHeadHost
	}
	head.host = f.host
	return head, f.apply(&head, oldHTTP)
}

// parseRequestLine parses method, target and version (RFC 9112, section 3).
func parseRequestLine(line string) (head httpHead, oldHTTP bool, err error) {
	method, rest, ok := strings.Cut(line, " ")
	target, version, ok2 := strings.Cut(rest, " ")
	if !ok || !ok2 || !isToken(method) || target == "" || !isVisible(target) {
		return head, false, errHeadMalformed
	}
	switch {
	case method == "PRI" && version == "HTTP/2.0":
		return head, false, errHeadUpgrade
	case version == "HTTP/1.0":
		oldHTTP = true
	case version != "HTTP/1.1":
		return head, false, errHeadMalformed
	}
	switch {
	case strings.EqualFold(method, "CONNECT"):
		return head, false, errHeadTunnel
	case target[0] == '/', target == "*" && method == "OPTIONS":
		return head, oldHTTP, nil
	}
	scheme, after, ok := strings.Cut(target, "://")
	if !ok || !isScheme(scheme) {
		return head, false, errHeadMalformed
	}
	head.absolute, head.scheme, head.authority = true, strings.ToLower(scheme), after
	if i := strings.IndexAny(after, "/?#\\"); i >= 0 {
		head.authority = after[:i]
	}
	return head, oldHTTP, nil
}

// headFields collects what decides a request's routing and framing.
type headFields struct {
	hosts, lengths, codings int
	host, length, coding    string
	upgrades                []string
	settings                bool
}

// add takes one field line without its CRLF (RFC 9112, section 5). A folded
// line starts with white space, so its "name" is no token.
func (f *headFields) add(line []byte) error {
	name, value, ok := strings.Cut(string(line), ":")
	if !ok || !isToken(name) || !isFieldValue(value) {
		return errHeadMalformed
	}
	value = strings.Trim(value, " \t")
	switch strings.ToLower(name) {
	case "host":
		f.hosts++
		f.host = value
	case "content-length":
		f.lengths++
		f.length = value
	case "transfer-encoding":
		f.codings++
		f.coding = value
	case "upgrade":
		f.upgrades = append(f.upgrades, value)
	case "http2-settings":
		f.settings = true
	}
	return nil
}

// apply settles framing (RFC 9112, section 6) and protocol changes. One
// coding, one length and never both: everything else is where two parsers
// disagree about the next request's first byte.
func (f *headFields) apply(head *httpHead, oldHTTP bool) error {
	if f.lengths > 0 && f.codings > 0 {
		return errHeadFraming
	}
	if f.lengths > 1 || f.codings > 1 || len(f.upgrades) > 1 {
		return errHeadMalformed
	}
	if f.lengths == 1 {
		n, err := parseDigits(f.length)
		if err != nil {
			return err
		}
		head.framing, head.length = bodyLength, n
	}
	if f.codings == 1 {
		if oldHTTP || !strings.EqualFold(f.coding, "chunked") {
			return errHeadMalformed
		}
		head.framing = bodyChunked
	}
	if f.settings {
		return errHeadUpgrade
	}
	if len(f.upgrades) == 1 {
		if oldHTTP || head.framing == bodyChunked || head.length > 0 || !strings.EqualFold(f.upgrades[0], "websocket") {
			return errHeadUpgrade
		}
		head.websocket = true
	}
	return nil
}

// parseDigits parses a non-empty run of at most 18 decimal digits.
func parseDigits(s string) (int64, error) {
	if s == "" || len(s) > 18 || strings.Trim(s, "0123456789") != "" {
		return 0, errHeadMalformed
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, errHeadMalformed
	}
	return n, nil
}

// isToken reports a non-empty token (RFC 9110, section 5.6.2).
func isToken(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; !isAlnum(c) && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

// isScheme reports a URI scheme (RFC 3986, section 3.1).
func isScheme(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; !isAlnum(c) && strings.IndexByte("+-.", c) < 0 {
			return false
		}
	}
	return s != "" && (s[0] < '0' || s[0] > '9')
}

// isVisible reports visible ASCII only: no white space, control or 8-bit byte.
func isVisible(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return true
}

// isFieldValue reports bytes that a field value may hold (RFC 9110, section
// 5.5): visible ASCII, space, tab and 8-bit text.
func isFieldValue(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

func isAlnum(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}
