package netguard

import "errors"

// Bounds of what a TLS client may send between its first hello and encrypted
// records.
const (
	maxPlainRecord = 64 // bytes of a change_cipher_spec or an alert record
	maxWatched     = maxHelloWire + tlsRecordHeader + tlsRecordMaxPayload
)

// watchTLS passes the proven hello on and watches the guest's records up to
// the first encrypted one. A server may answer with HelloRetryRequest, to
// which the client sends a second ClientHello in clear, and some servers route
// by that one: it has to carry the same name (RFC 8446, section 4.1.2).
func (s *session) watchTLS() (raw bool, err error) {
	if !s.door.named {
		return s.passAll()
	}
	_, n, err := parseClientHello(s.buf)
	if err != nil {
		return false, err
	}
	if err := s.pass(n); err != nil {
		return false, err
	}
	for {
		n, done, err := s.nextPlainRecord()
		switch {
		case errors.Is(err, errIncomplete):
			if err := s.more(maxWatched); isEnd(err) {
				_, err = s.passAll() // cut off: the server will see that too
				return false, err
			} else if err != nil {
				return false, err
			}
			continue
		case err != nil:
			return false, s.refuse(deny(ReasonTLSMalformed, nil))
		case done:
			return s.passAll()
		}
		if err := s.pass(n); err != nil {
			return false, err
		}
	}
}

// nextPlainRecord judges the record at the start of buf. It returns the bytes
// that may pass, and done once nothing in clear can follow.
func (s *session) nextPlainRecord() (n int, done bool, err error) {
	b := s.buf
	if len(b) < tlsRecordHeader+1 {
		return 0, false, errIncomplete
	}
	size := int(b[3])<<8 | int(b[4])
	switch b[0] {
	case tlsChangeCipherSpec, tlsAlert:
		if size == 0 || size > maxPlainRecord {
			return 0, false, errHelloMalformed
		}
		if len(b) < tlsRecordHeader+size {
			return 0, false, errIncomplete
		}
		return tlsRecordHeader + size, false, nil
	case tlsHandshake:
		if b[tlsRecordHeader] != tlsMsgClientHello {
			return 0, true, nil // TLS 1.2 goes on: no hello in clear can follow
		}
		again, n, err := parseClientHello(b)
		if err == nil && (again.serverName != s.hello.serverName || again.hasSNI != s.hello.hasSNI || again.ech && !s.hello.ech) {
			err = errHelloNames
		}
		return n, false, err
	}
	return 0, true, nil
}

// watchRaw lets bytes pass that no name has to be proven for, unless what the
// guest says first shows a name that a deny rule covers. It never waits for
// the guest before the server may speak: the other direction runs already.
func (s *session) watchRaw() (raw bool, err error) {
	for !looksLikeTLS(s.buf) && !looksLikeHTTP(s.buf) {
		if len(s.buf) >= 8 {
			return s.passAll()
		}
		if len(s.buf) > 0 && !mayBeHTTP(s.buf) {
			return s.passAll()
		}
		if err := s.more(maxHelloWire); isEnd(err) {
			_, err = s.passAll()
			return false, err
		} else if err != nil {
			return false, err
		}
	}
	if !looksLikeTLS(s.buf) {
		s.door.http = true
		return s.serveHTTP()
	}
	for {
		m, _, err := s.e.proveTLS(s.p, s.door, s.dst, s.buf)
		if errors.Is(err, errIncomplete) {
			if err = s.more(maxHelloWire); err == nil {
				continue
			}
		}
		if !m.Allow {
			return false, s.refuse(m)
		}
		return s.passAll()
	}
}

// mayBeHTTP reports whether a method could still be coming.
func mayBeHTTP(b []byte) bool {
	for _, c := range b {
		if c < 'A' || c > 'Z' {
			return false
		}
	}
	return true
}
