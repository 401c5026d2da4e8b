package wasip1

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func (m *privateMount) mustOpen(t *testing.T, path string) *privateFile {
	t.Helper()
	res := m.do(PathOp{Kind: OpOpen, Path: path, Create: true, Read: true, Write: true})
	if res.Errno != Success || res.private == nil {
		t.Fatalf("%s: %v", path, res.Errno)
	}
	return res.private
}

// TestPrivateFileHoldsWhatWasWritten compares a file with plain memory under
// random writes, cuts and reads across page borders.
func TestPrivateFileHoldsWhatWasWritten(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	m := newPrivate(PrivateSpec{Bytes: 1 << 20})
	f := m.mustOpen(t, "a")
	var want []byte
	for range 2000 {
		off := rnd.IntN(20_000)
		switch rnd.IntN(3) {
		case 0:
			b := bytes.Repeat([]byte{byte(rnd.Uint32())}, rnd.IntN(9000))
			if n, err := f.WriteAt(b, int64(off)); n != len(b) || err != nil {
				t.Fatal(n, err)
			}
			if len(b) > 0 && off+len(b) > len(want) {
				want = append(want, make([]byte, off+len(b)-len(want))...)
			}
			copy(want[min(off, len(want)):], b)
		case 1:
			if err := f.Truncate(int64(off)); err != nil {
				t.Fatal(err)
			}
			want = append(want, make([]byte, max(0, off-len(want)))...)[:off]
		case 2:
			got := make([]byte, rnd.IntN(9000))
			n, err := f.ReadAt(got, int64(off))
			if off >= len(want) {
				if n != 0 || !errors.Is(err, io.EOF) {
					t.Fatal(n, err)
				}
			} else if d := cmp.Diff(want[off:min(len(want), off+len(got))], got[:n]); d != "" || err != nil {
				t.Fatal(err, d)
			}
		}
		if m.used > 1<<20 || m.used != int64(entryBytes+pageBytes*len(f.node.pages)) {
			t.Fatalf("%d bytes counted for %d pages", m.used, len(f.node.pages))
		}
	}
}

// TestPrivateBounds: neither content, nor names, nor holes, nor files without a
// name take more than the folder may hold, and all of it comes back.
func TestPrivateBounds(t *testing.T) {
	m := newPrivate(PrivateSpec{Bytes: 64 << 10})
	f := m.mustOpen(t, "a")
	if n, err := f.WriteAt(make([]byte, 1<<20), 0); n != 15*pageBytes || !errors.Is(err, ENOSPC) {
		t.Errorf("%d bytes, %v", n, err)
	}
	if _, err := f.WriteAt([]byte("x"), math.MaxInt64); !errors.Is(err, EFBIG) {
		t.Error(err)
	}
	if err := f.Truncate(math.MaxInt64); err != nil || m.used > m.most {
		t.Error(err, m.used)
	}
	if _, err := f.WriteAt([]byte("x"), math.MaxInt64-1); !errors.Is(err, ENOSPC) {
		t.Error(err)
	}
	if _, err := f.Seek(math.MaxInt64, io.SeekEnd); !errors.Is(err, EINVAL) {
		t.Error(err)
	}
	if e := m.do(PathOp{Kind: OpUnlink, Path: "a"}).Errno; e != Success || m.used < 15*pageBytes {
		t.Errorf("%v: %d bytes while it is open", e, m.used)
	}
	if err := f.Close(); err != nil || m.used != 0 {
		t.Errorf("%v: %d bytes left", err, m.used)
	}
	made := 0
	for ; ; made++ {
		if e := m.do(PathOp{Kind: OpMkdir, Path: fmt.Sprintf("d%d", made)}).Errno; e != Success {
			if e != ENOSPC {
				t.Error(e)
			}
			break
		}
	}
	if made != 64 {
		t.Errorf("%d folders", made)
	}
	for i := range made {
		if e := m.do(PathOp{Kind: OpRmdir, Path: fmt.Sprintf("d%d", i)}).Errno; e != Success {
			t.Error(e)
		}
	}
	if m.used != 0 || len(m.spare)*pageBytes > int(m.most) {
		t.Errorf("%d bytes left, %d pages kept", m.used, len(m.spare))
	}
}

// FuzzPrivatePaths holds that no path leaves a private folder or breaks its
// count.
func FuzzPrivatePaths(f *testing.F) {
	for _, p := range []string{"a", "d/..", "..", "../x", "/", "a/b/../../..", "d/./x/", "."} {
		f.Add(p, "d/y")
		f.Add("d", p)
	}
	f.Fuzz(func(t *testing.T, from, to string) {
		m := newPrivate(PrivateSpec{Bytes: 1 << 20})
		m.do(PathOp{Kind: OpMkdir, Path: "d"})
		m.do(PathOp{Kind: OpMkdir, Path: "d/e"})
		for kind := OpOpen; kind <= OpReadlink; kind++ {
			res := m.do(PathOp{Kind: kind, Path: from, NewPath: to, Create: true, Read: true, Write: true})
			if res.private != nil {
				if err := res.private.Close(); err != nil {
					t.Error(err)
				}
			}
		}
		var count func(n *node, depth int) int64
		count = func(n *node, depth int) int64 {
			total := int64(0)
			for name, c := range n.children {
				if c.parent != n || name == "" || name == "." || name == ".." || depth > 100 {
					t.Fatalf("%q is in a wrong place", name)
				}
				total += entryBytes + int64(len(c.pages))*pageBytes + count(c, depth+1)
			}
			return total
		}
		if got := count(m.root, 0); got != m.used {
			t.Errorf("%d bytes counted, %d there", m.used, got)
		}
	})
}
