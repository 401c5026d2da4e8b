package wasip1

import (
	"io"
	"math"
)

// privateFile is an open file of a private folder. Its errors are Errnos.
type privateFile struct {
	m    *privateMount
	node *node
	at   int64
}

func (f *privateFile) Read(b []byte) (int, error) {
	n, err := f.ReadAt(b, f.at)
	f.at += int64(n)
	return n, err
}

func (f *privateFile) Write(b []byte) (int, error) {
	n, err := f.WriteAt(b, f.at)
	f.at += int64(n)
	return n, err
}

func (f *privateFile) ReadAt(b []byte, off int64) (int, error) {
	if off >= f.node.size {
		return 0, io.EOF
	}
	b = b[:min(int64(len(b)), f.node.size-off)]
	eachPage(len(b), off, func(index int64, from, to, done int) bool {
		if p := f.node.pages[index]; p != nil {
			copy(b[done:], p[from:to])
		} else {
			clear(b[done : done+to-from])
		}
		return true
	})
	return len(b), nil
}

func (f *privateFile) WriteAt(b []byte, off int64) (int, error) {
	n := f.node
	if off > math.MaxInt64-int64(len(b)) {
		return 0, EFBIG
	}
	if n.pages == nil {
		n.pages = map[int64]*[pageBytes]byte{}
	}
	written := eachPage(len(b), off, func(index int64, from, to, done int) bool {
		p := n.pages[index]
		if p == nil {
			if p = f.m.page(); p == nil {
				return false
			}
			n.pages[index] = p
		}
		copy(p[from:to], b[done:])
		return true
	})
	if written > 0 {
		n.size = max(n.size, off+int64(written))
		n.touch()
	}
	if written < len(b) {
		return written, ENOSPC
	}
	return written, nil
}

// eachPage calls do for each page that n bytes at off lie in, with the range
// inside the page and how many bytes came before, until do is false. It
// returns how many bytes were done.
func eachPage(n int, off int64, do func(index int64, from, to, done int) bool) int {
	done := 0
	for done < n {
		from := int((off + int64(done)) % pageBytes)
		to := min(pageBytes, from+n-done)
		if !do((off+int64(done))/pageBytes, from, to, done) {
			break
		}
		done += to - from
	}
	return done
}

// Seek takes the numbers of io.Seeker, as WASI does.
func (f *privateFile) Seek(off int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		off += f.at
	case io.SeekEnd:
		off += f.node.size
	}
	if off < 0 {
		return 0, EINVAL
	}
	f.at = off
	return off, nil
}

func (f *privateFile) Truncate(size int64) error {
	f.m.truncate(f.node, size)
	f.node.touch()
	return nil
}

// truncate sets a file's size. What is added is a hole, which takes nothing.
func (m *privateMount) truncate(n *node, size int64) {
	if size < n.size {
		for index, p := range n.pages {
			switch at := index * pageBytes; {
			case at >= size:
				m.giveBack(p)
				delete(n.pages, index)
			case at+pageBytes > size:
				clear(p[size-at:])
			}
		}
	}
	n.size = size
}

func (f *privateFile) Sync() error { return nil }

func (f *privateFile) Close() error {
	f.node.open--
	f.m.freeUnused(f.node)
	return nil
}

// withPrivate adds private folders to other mounts, behind them.
type withPrivate struct {
	Mounts
	others  int
	private []*privateMount
}

func addPrivate(to Mounts, specs []PrivateSpec) *withPrivate {
	w := &withPrivate{Mounts: to, others: len(to.Names())}
	for _, spec := range specs {
		w.private = append(w.private, newPrivate(spec))
	}
	return w
}

// Names implements Mounts.
func (w *withPrivate) Names() []string {
	names := append([]string(nil), w.Mounts.Names()...)
	for _, m := range w.private {
		names = append(names, m.name)
	}
	return names
}

// Do implements Mounts.
func (w *withPrivate) Do(op PathOp) PathResult {
	i := op.Mount - w.others
	switch {
	case (op.Kind == OpRename || op.Kind == OpLink) && op.Mount != op.NewMount:
		return failed(EXDEV)
	case i < 0:
		return w.Mounts.Do(op)
	case i >= len(w.private):
		return failed(EBADF)
	}
	return w.private[i].do(op)
}

// peak is the most that all private folders held, each at its own time.
func (w *withPrivate) peak() int64 {
	n := int64(0)
	for _, m := range w.private {
		n += m.peak
	}
	return n
}
