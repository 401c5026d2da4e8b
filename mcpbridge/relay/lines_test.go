package relay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

func readAll(t *testing.T, r *Reader) (lines []string, sizes []int64) {
	t.Helper()
	for {
		l, err := r.Next()
		if errors.Is(err, io.EOF) {
			return lines, sizes
		}
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, string(l.Text))
		sizes = append(sizes, l.Oversize)
	}
}

func TestReader(t *testing.T) {
	long := `{"result":{"deep":[1,2,{"id":"no"}],"s":"\"}"},"jsonrpc":"2.0","id":77}`
	in := "one\r\n\ntwo\n" + long + "\n" + strings.Repeat("x", 16) + "\nlast"
	want := []string{"one\r", "", "two", `{"result":null,"jsonrpc":"2.0","id":77}`, strings.Repeat("x", 16), "last"}
	for name, src := range map[string]io.Reader{
		"whole": strings.NewReader(in), "bytes": iotest.OneByteReader(strings.NewReader(in)),
		"halves": iotest.HalfReader(strings.NewReader(in)), "with EOF": iotest.DataErrReader(strings.NewReader(in)),
	} {
		lines, sizes := readAll(t, NewReader(src, 16))
		if diff := cmp.Diff(want, lines); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if diff := cmp.Diff([]int64{0, 0, 0, int64(len(long)), 0, 0}, sizes); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestReaderTake(t *testing.T) {
	var in bytes.Buffer
	var want []string
	for i := range 50 {
		s := fmt.Sprintf("%d-%s", i, strings.Repeat(string(rune('a'+i%26)), i*i*997%400_000))
		want = append(want, s)
		in.WriteString(s + "\n")
	}
	r := NewReader(&in, 0)
	var got [][]byte
	for range want {
		l, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, r.Take(l))
	}
	for i := range want {
		if string(got[i]) != want[i] {
			t.Errorf("line %d changed after it was taken", i)
		}
	}
}

// zeros is a line that never ends.
type zeros struct{ n int64 }

func (z *zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	z.n += int64(len(p))
	return len(p), nil
}

func TestReaderEndlessLine(t *testing.T) {
	z := &zeros{}
	r := NewReader(z, 1<<20)
	l, err := r.Next()
	if err != nil || l.Oversize <= 64<<20 {
		t.Fatalf("%d bytes, %v", l.Oversize, err)
	}
	if _, err := r.Next(); !errors.Is(err, ErrEndless) {
		t.Errorf("got %v", err)
	}
	if z.n > 66<<20 || cap(r.buf) > 4<<20 {
		t.Errorf("read %d bytes into a buffer of %d", z.n, cap(r.buf))
	}
}

func TestReaderNoProgress(t *testing.T) {
	if _, err := NewReader(iotest.ErrReader(nil), 0).Next(); err == nil {
		t.Error("a source that gives nothing was read for ever")
	}
}

func TestCopyLines(t *testing.T) {
	in := "short\n\xff\xfe binary\n" + strings.Repeat("y", 30) + "\nend"
	for name, src := range map[string]io.Reader{"whole": strings.NewReader(in), "bytes": iotest.OneByteReader(strings.NewReader(in))} {
		var out bytes.Buffer
		CopyLines(&out, src, 10)
		if want := "short\n\xff\xfe binary\n" + strings.Repeat("y", 10) + "\nend"; out.String() != want {
			t.Errorf("%s: %q, want %q", name, out.String(), want)
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte("a\nbb\n\nccc"), uint8(2), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, bound, step uint8) {
		r := NewReader(&stepReader{b, int(step%7) + 1}, int(bound)+1)
		want := bytes.Split(b, []byte("\n"))
		if len(want[len(want)-1]) == 0 {
			want = want[:len(want)-1]
		}
		for i, w := range want {
			l, err := r.Next()
			if err != nil {
				t.Fatalf("line %d: %v", i, err)
			}
			if len(w) > 64*(int(bound)+1) {
				return // endless
			}
			if len(w) > int(bound)+1 {
				if l.Oversize != int64(len(w)) {
					t.Fatalf("line %d: oversize %d, want %d", i, l.Oversize, len(w))
				}
			} else if !bytes.Equal(r.Take(l), w) || l.Oversize != 0 {
				t.Fatalf("line %d: %q, want %q", i, l.Text, w)
			}
		}
		if _, err := r.Next(); !errors.Is(err, io.EOF) {
			t.Fatalf("after the last line: %v", err)
		}
	})
}

type stepReader struct {
	b []byte
	n int
}

func (s *stepReader) Read(p []byte) (int, error) {
	if len(s.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), s.n)], s.b)
	s.b = s.b[n:]
	return n, nil
}
