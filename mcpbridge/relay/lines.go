package relay

import (
	"bytes"
	"errors"
	"io"
)

// DefaultMaxLine bounds a line, in bytes. The longest honest one seen among 46
// real servers was 1.03 MB.
const DefaultMaxLine = 16 << 20

const minRead = 64 << 10

// ErrEndless ends a Reader whose source sent a line of more than 64 times the
// bound: it speaks no line protocol any more.
var ErrEndless = errors.New("line without an end")

// errNoProgress ends a Reader whose source keeps returning nothing.
var errNoProgress = errors.New("source returns no bytes and no error")

// Line is one line. Its Text is valid until the Reader's next call, unless
// taken with Reader.Take.
type Line struct {
	// Text is the line without its newline (a carriage return stays: it is
	// white space to JSON). For an oversize line it is a skeleton instead: the
	// outermost members with every nested value replaced by null, so that the
	// id can still be found.
	Text []byte
	// Newline says that a newline ended the line; only the last can lack it.
	Newline bool
	// Oversize is the line's length where it was over the bound, else 0.
	Oversize int64
}

// Reader splits a stream into lines in linear time and bounded memory: a line
// over the bound is skipped as it comes in. It reads straight into its line
// buffer, so that a line is copied once when it arrives and, amortised, once
// more as the buffer grows.
type Reader struct {
	src     io.Reader
	max     int
	buf     []byte
	r, w    int // unread bytes are buf[r:w]
	scanned int // buf[r:scanned] holds no newline
	err     error
}

// NewReader reads lines of at most maxLine bytes; 0 means DefaultMaxLine.
func NewReader(src io.Reader, maxLine int) *Reader {
	if maxLine <= 0 {
		maxLine = DefaultMaxLine
	}
	return &Reader{src: src, max: maxLine}
}

// Next returns the next line, or the source's error (io.EOF at its end).
func (r *Reader) Next() (Line, error) {
	r.scanned = max(r.scanned, r.r)
	for {
		if i := bytes.IndexByte(r.buf[r.scanned:r.w], '\n'); i >= 0 {
			start, end := r.r, r.scanned+i
			r.r, r.scanned = end+1, end+1
			if end-start > r.max {
				sk := new(skeleton)
				sk.feed(r.buf[start:end])
				return Line{Text: sk.bytes(), Newline: true, Oversize: int64(end - start)}, nil
			}
			return Line{Text: r.buf[start:end], Newline: true}, nil
		}
		r.scanned = r.w
		if r.w-r.r > r.max {
			return r.skip()
		}
		if r.err != nil {
			if r.r == r.w {
				return Line{}, r.err
			}
			l := Line{Text: r.buf[r.r:r.w]}
			r.r = r.w
			return l, nil
		}
		r.fill()
	}
}

// Take returns the text of the line that Next gave last in memory that stays
// the caller's. A line that fills most of the buffer is handed over with it.
func (r *Reader) Take(l Line) []byte {
	if l.Oversize > 0 {
		return l.Text
	}
	if len(l.Text) < minRead || len(l.Text) < len(r.buf)/3 {
		return bytes.Clone(l.Text)
	}
	rest := r.buf[r.r:r.w]
	r.buf = append(make([]byte, 0, max(minRead, len(rest))), rest...)
	r.buf = r.buf[:cap(r.buf)]
	r.r, r.w, r.scanned = 0, len(rest), 0
	return l.Text
}

// Raw returns the line's bytes with its newline, without a copy.
func (l Line) Raw() []byte {
	if l.Newline && l.Oversize == 0 {
		return l.Text[:len(l.Text)+1]
	}
	return l.Text
}

func (r *Reader) fill() {
	if r.r == r.w {
		r.r, r.w, r.scanned = 0, 0, 0
		if len(r.buf) > 16*minRead { // one large line must not pin its buffer
			r.buf = nil
		}
	}
	if len(r.buf)-r.w < minRead/2 {
		if r.r > len(r.buf)/2 {
			copy(r.buf, r.buf[r.r:r.w])
			r.w, r.scanned, r.r = r.w-r.r, r.scanned-r.r, 0
		} else {
			grown := make([]byte, max(minRead, 2*len(r.buf)))
			r.w = copy(grown, r.buf[r.r:r.w])
			r.scanned -= r.r
			r.buf, r.r = grown, 0
		}
	}
	for range 100 {
		n, err := r.src.Read(r.buf[r.w:])
		r.w += n
		r.err = err
		if n > 0 || err != nil {
			return
		}
	}
	r.err = errNoProgress
}

// skip drops the rest of an oversize line as it comes in.
func (r *Reader) skip() (Line, error) {
	sk := new(skeleton)
	var n int64
	for {
		part := r.buf[r.r:r.w]
		i := bytes.IndexByte(part, '\n')
		if i >= 0 {
			part = part[:i]
		}
		sk.feed(part)
		n += int64(len(part))
		if i >= 0 {
			r.r += i + 1
			r.scanned = r.r
			return Line{Text: sk.bytes(), Newline: true, Oversize: n}, nil
		}
		r.r, r.w, r.scanned = 0, 0, 0
		if n > 64*int64(r.max) {
			r.err = ErrEndless
		}
		if r.err != nil {
			return Line{Text: sk.bytes(), Oversize: n}, nil
		}
		r.fill()
	}
}

const skeletonMax = 64 << 10

// skeleton keeps the outermost level of a JSON text that is too long to keep.
type skeleton struct {
	out    []byte
	depth  int
	quoted bool
	esc    bool
	full   bool
	str    int // bytes of the current string so far
}

func (s *skeleton) feed(b []byte) {
	for _, c := range b {
		switch {
		case s.quoted:
			s.str++
			end := c == '"' && !s.esc
			s.esc = c == '\\' && !s.esc
			if s.depth == 1 && (end || s.str <= 1024) {
				s.put(c)
			}
			s.quoted = !end
		case c == '"':
			s.quoted, s.str = true, 0
			if s.depth == 1 {
				s.put(c)
			}
		case c == '{' || c == '[':
			switch s.depth {
			case 0:
				s.put(c)
			case 1:
				s.put([]byte("null")...)
			}
			s.depth++
		case c == '}' || c == ']':
			s.depth--
			if s.depth == 0 {
				s.put(c)
			}
		default:
			if s.depth == 1 {
				s.put(c)
			}
		}
	}
}

func (s *skeleton) put(b ...byte) {
	if len(s.out) < skeletonMax {
		s.out = append(s.out, b...)
	} else {
		s.full = true
	}
}

// bytes returns the skeleton, or nil where even that was too long.
func (s *skeleton) bytes() []byte {
	if s.full {
		return nil
	}
	return s.out
}
