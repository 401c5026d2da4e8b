package netguard

import "strings"

// Bounds of a chunked body's parts, in bytes.
const (
	maxChunkDigits = 15
	maxChunkLine   = 1 << 10
	maxTrailers    = 8 << 10
)

type chunkState uint8

const (
	chunkSize chunkState = iota
	chunkExtension
	chunkSizeLF
	chunkData
	chunkDataCR
	chunkDataLF
	chunkTrailer
	chunkDone
)

// bodyScanner finds where a request's body ends, so that the next head is
// judged and not taken for a body (RFC 9112, sections 6 and 7.1). It holds no
// more than one trailer line.
type bodyScanner struct {
	framing bodyFraming
	left    int64 // bytes left of the length or of the chunk
	state   chunkState
	digits  int
	line    int    // bytes of the chunk's first line so far
	total   int    // bytes of all trailers so far
	trailer []byte // the trailer line being read
}

// newBodyScanner starts behind head.
func newBodyScanner(head httpHead) bodyScanner {
	return bodyScanner{framing: head.framing, left: head.length}
}

// feed returns how many bytes of b belong to the body and whether it ended
// there. An error means that nothing of b may be forwarded.
func (s *bodyScanner) feed(b []byte) (n int, done bool, err error) {
	switch s.framing {
	case bodyNone:
		return 0, true, nil
	case bodyLength:
		n = int(min(s.left, int64(len(b))))
		s.left -= int64(n)
		return n, s.left == 0, nil
	case bodyChunked:
	}
	for n < len(b) && s.state != chunkDone {
		if s.state == chunkData {
			k := int(min(s.left, int64(len(b)-n)))
			n, s.left = n+k, s.left-int64(k)
			if s.left == 0 {
				s.state = chunkDataCR
			}
			continue
		}
		if err := s.step(b[n]); err != nil {
			return 0, false, err
		}
		n++
	}
	return n, s.state == chunkDone, nil
}

// step takes one byte outside chunk data.
func (s *bodyScanner) step(c byte) error {
	switch s.state {
	case chunkSize:
		return s.sizeByte(c)
	case chunkExtension:
		if s.line++; s.line > maxChunkLine || c < ' ' && c != '\t' && c != '\r' || c == 0x7f {
			return errHeadMalformed
		}
		if c == '\r' {
			s.state = chunkSizeLF
		}
	case chunkSizeLF:
		if c != '\n' {
			return errHeadMalformed
		}
		s.state = chunkData
		if s.left == 0 {
			s.state = chunkTrailer
		}
	case chunkDataCR:
		if c != '\r' {
			return errHeadMalformed
		}
		s.state = chunkDataLF
	case chunkDataLF:
		if c != '\n' {
			return errHeadMalformed
		}
		s.state, s.digits, s.line = chunkSize, 0, 0
	case chunkTrailer:
		return s.trailerByte(c)
	case chunkData, chunkDone:
	}
	return nil
}

// sizeByte takes a byte of a chunk's size: hexadecimal digits only, no sign,
// no prefix, no white space.
func (s *bodyScanner) sizeByte(c byte) error {
	var v int64
	switch {
	case '0' <= c && c <= '9':
		v = int64(c - '0')
	case 'a' <= c && c <= 'f':
		v = int64(c-'a') + 10
	case 'A' <= c && c <= 'F':
		v = int64(c-'A') + 10
	case c == ';' && s.digits > 0:
		s.state = chunkExtension
		return nil
	case c == '\r' && s.digits > 0:
		s.state = chunkSizeLF
		return nil
	default:
		return errHeadMalformed
	}
	if s.digits++; s.digits > maxChunkDigits {
		return errHeadMalformed
	}
	s.left = s.left<<4 | v
	return nil
}

// trailerByte takes a byte of the trailer section, whose fields may not
// change what the head said about routing and framing.
func (s *bodyScanner) trailerByte(c byte) error {
	if s.total++; s.total > maxTrailers {
		return errHeadTooLarge
	}
	k := len(s.trailer)
	afterCR := k > 0 && s.trailer[k-1] == '\r'
	if afterCR != (c == '\n') {
		return errHeadMalformed
	}
	if c != '\n' {
		s.trailer = append(s.trailer, c)
		return nil
	}
	line := s.trailer[:k-1]
	s.trailer = s.trailer[:0]
	if len(line) == 0 {
		s.state, s.trailer = chunkDone, nil
		return nil
	}
	name, value, ok := strings.Cut(string(line), ":")
	if !ok || !isToken(name) || !isFieldValue(value) {
		return errHeadMalformed
	}
	switch strings.ToLower(name) {
	case "host", "content-length", "transfer-encoding", "upgrade":
		return errHeadMalformed
	}
	return nil
}
