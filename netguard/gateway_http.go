package netguard

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"time"
)

// bodyReadLimit is how much of a body is read at once, in bytes.
const bodyReadLimit = 16 << 10

// maxInterim is how many interim responses may precede the answer to an
// upgrade.
const maxInterim = 8

// upgradeTimeout bounds the wait for the answer to an upgrade.
const upgradeTimeout = 30 * time.Second

// judgeFirst judges the connection's first head, which ends at n unless err
// says that it never will.
func (s *session) judgeFirst(n int, err error) (match, Target) {
	if err == nil {
		s.head, err = parseHeadLines(s.buf[:n])
	}
	if err != nil {
		return deny(headReason(err), nil), s.a.target
	}
	m, t := s.e.judgeHead(s.p, s.door, s.dst, "", s.head)
	if t == (Target{}) {
		t = s.a.target
	}
	s.headLen = n
	return m, t
}

// serveHTTP passes requests on one by one, each head judged before any byte
// of it leaves.
func (s *session) serveHTTP() (raw bool, err error) {
	for {
		if s.headLen == 0 {
			if end, err := s.nextHead(); end || err != nil {
				return false, err
			}
		}
		switch {
		case s.head.websocket && s.door.raw:
			return s.passAll()
		case s.head.websocket: // only a connection's first request may ask, see upgrade
			return false, s.refuse(deny(ReasonHTTPUpgrade, nil))
		}
		n := s.headLen
		s.headLen = 0
		if err := s.pass(n); err != nil {
			return false, err
		}
		if end, err := s.passBody(); end || err != nil {
			return false, err
		}
	}
}

// nextHead waits for a further head, for as long as it takes until its first
// byte comes, and judges it. end is the orderly end between two requests.
func (s *session) nextHead() (end bool, err error) {
	var scan headScanner
	for {
		n, err := scan.end(s.buf)
		switch {
		case err == nil:
			return false, s.judgeNext(n)
		case !errors.Is(err, errIncomplete):
			return false, s.refuse(deny(headReason(err), nil))
		}
		if len(s.buf) == 0 {
			s.buf = nil // an idle connection holds no buffer
		}
		s.headDeadline()
		err = s.more(maxHTTPHead)
		switch {
		case err == nil:
		case isEnd(err) && len(s.buf) == 0:
			return true, nil
		case isTimeout(err) && len(s.buf) == 0:
			return false, err
		default:
			return false, s.refuse(deny(ReasonHTTPSyntax, nil))
		}
	}
}

// headDeadline bounds the wait for the rest of a head, not the pause before.
func (s *session) headDeadline() {
	if len(s.buf) > 0 {
		_ = s.guest.SetReadDeadline(s.e.gw.helloDeadline())
		return
	}
	_ = s.guest.SetReadDeadline(time.Time{})
	s.relay.progress() // half-closed connections keep their own deadline
}

// judgeNext judges a head that came on an open connection: by the policy in
// force now, and against the address that the connection really went to.
func (s *session) judgeNext(n int) error {
	_ = s.guest.SetReadDeadline(time.Time{})
	s.relay.progress()
	head, err := parseHeadLines(s.buf[:n])
	if err != nil {
		return s.refuse(deny(headReason(err), nil))
	}
	p := s.e.Policy()
	d := s.door
	if !d.named {
		d = s.e.door(p, s.dst)
		if !d.Allow {
			return s.refuse(d.match)
		}
	}
	at := netip.AddrPortFrom(s.a.remote.Addr(), s.dst.Port())
	m, t := s.e.judgeHead(p, d, at, "", head)
	was := s.a.target
	changed := t != was && t != (Target{})
	if changed {
		s.retarget(t, s.a.proto)
	}
	if !m.Allow {
		err := s.refuse(m)
		s.retarget(was, s.a.proto) // the close line is about what was open
		return err
	}
	if changed {
		s.a.allow(m)
	}
	s.head, s.headLen = head, n
	return nil
}

// passBody passes the body of the request whose head just went.
func (s *session) passBody() (end bool, err error) {
	body := newBodyScanner(s.head)
	for {
		n, done, err := body.feed(s.buf)
		if err != nil {
			return false, s.refuse(deny(headReason(err), nil))
		}
		if err := s.pass(n); err != nil || done {
			return false, err
		}
		if err := s.more(bodyReadLimit); isEnd(err) {
			return true, nil // cut off: the origin sees that by the framing
		} else if err != nil {
			return false, err
		}
	}
}

// upgrade passes the one request that asks for WebSocket and the answer to it,
// before a byte of either side is copied unread: what follows is opaque after
// a 101, and after any other answer it is requests, to be judged like all.
func (s *session) upgrade() (switched bool, err error) {
	n := s.headLen
	s.headLen = 0
	if err := s.pass(n); err != nil {
		return false, err
	}
	origin := s.relay.origin
	_ = origin.SetReadDeadline(time.Now().Add(upgradeTimeout))
	defer func() { _ = origin.SetReadDeadline(time.Time{}) }()
	buf := make([]byte, 0, 2*readSize)
	for range maxInterim {
		end := bytes.Index(buf, []byte("\r\n\r\n"))
		for end < 0 {
			if len(buf) == maxHTTPHead {
				return false, errHeadTooLarge
			}
			buf = slices.Grow(buf, min(readSize, maxHTTPHead-len(buf)))
			k, err := origin.Read(buf[len(buf):min(cap(buf), maxHTTPHead)])
			buf = buf[:len(buf)+k]
			end = bytes.Index(buf, []byte("\r\n\r\n"))
			if err != nil && end < 0 {
				return false, err
			}
		}
		code, ok := statusOf(buf)
		if !ok {
			return false, errHeadMalformed
		}
		if code == 101 || code >= 200 {
			return code == 101, s.relay.forward(s.guest, buf, &s.relay.down)
		}
		if err := s.relay.forward(s.guest, buf[:end+4], &s.relay.down); err != nil {
			return false, err
		}
		buf = buf[:copy(buf, buf[end+4:])]
	}
	return false, errHeadMalformed
}

// statusOf reads the status code of a response head's first line.
func statusOf(head []byte) (int, bool) {
	line, _, _ := bytes.Cut(head, []byte("\r\n"))
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.")) || line[8] != ' ' {
		return 0, false
	}
	code := 0
	for _, c := range line[9:12] {
		if c < '0' || c > '9' {
			return 0, false
		}
		code = code*10 + int(c-'0')
	}
	return code, true
}
