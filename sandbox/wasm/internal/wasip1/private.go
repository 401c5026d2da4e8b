package wasip1

import (
	"strings"
	"time"
)

// PrivateSpec is a folder of the guest's own, in this process's memory: it
// begins empty, nobody else sees it, and it is gone with the guest.
type PrivateSpec struct {
	// Target is the guest's absolute, clean path.
	Target string
	// Bytes bounds what it holds: content by pages, names by entryBytes each.
	Bytes int64
}

const (
	pageBytes  = 4096
	entryBytes = 1024 // what one file or folder counts for, beside its content
	maxName    = 255
)

// privateMount is such a folder. It has no links of either kind: a path means
// what it says. Only the guest's goroutine uses it.
type privateMount struct {
	name    string
	root    *node
	lastIno uint64
	quota
}

// quota counts what a private folder holds. Pages are used again before new
// ones are made, so that what the collector has not seen yet stays bounded too.
type quota struct {
	most, used, peak int64
	spare            []*[pageBytes]byte
}

func (q *quota) take(n int64) bool {
	if n > q.most-q.used {
		return false
	}
	q.used += n
	q.peak = max(q.peak, q.used)
	return true
}

func (q *quota) page() *[pageBytes]byte {
	if !q.take(pageBytes) {
		return nil
	}
	n := len(q.spare)
	if n == 0 {
		return new([pageBytes]byte)
	}
	p := q.spare[n-1]
	q.spare = q.spare[:n-1]
	clear(p[:])
	return p
}

func (q *quota) giveBack(p *[pageBytes]byte) {
	q.used -= pageBytes
	q.spare = append(q.spare, p)
}

// node is a file or a folder.
type node struct {
	ino      uint64
	parent   *node            // nil for the root and for what was removed
	children map[string]*node // nil for a file
	removed  bool
	open     int // handles

	pages             map[int64]*[pageBytes]byte // holes are left out
	size              int64
	atim, mtim, ctime int64
}

func (n *node) isDir() bool { return n.children != nil }

func (n *node) stat() Stat {
	st := Stat{Ino: n.ino, Nlink: 1, Size: uint64(n.size), Kind: typeRegular, Atim: n.atim, Mtim: n.mtim, Ctim: n.ctime}
	if n.isDir() {
		st.Kind = typeDirectory
	}
	if n.removed {
		st.Nlink = 0
	}
	return st
}

// touch notes a change.
func (n *node) touch() { n.mtim = time.Now().UnixNano(); n.ctime = n.mtim }

func newPrivate(spec PrivateSpec) *privateMount {
	root := &node{ino: 1, children: map[string]*node{}}
	root.touch()
	root.atim = root.mtim
	return &privateMount{name: spec.Target, root: root, lastIno: 1, quota: quota{most: spec.Bytes}}
}

// place is where a path leads: a folder, a name in it, and what is there, if
// anything is. The root and what is reached by ".." have no folder.
type place struct {
	dir    *node
	name   string
	node   *node
	folder bool // a slash at the end asks for a folder
}

func (m *privateMount) find(path string) (place, Errno) {
	parts := strings.Split(path, "/")
	n := len(parts)
	for n > 0 && (parts[n-1] == "" || parts[n-1] == ".") {
		n--
	}
	at := place{folder: n < len(parts)}
	cur := m.root
	for i, part := range parts[:n] {
		switch {
		case !cur.isDir():
			return place{}, ENOTDIR
		case part == "" || part == ".":
			continue
		case part == "..":
			if cur.parent == nil {
				return place{}, EPERM
			}
			cur, at.dir = cur.parent, nil
			continue
		case len(part) > maxName:
			return place{}, ENAMETOOLONG
		}
		next := cur.children[part]
		if i == n-1 {
			at.dir, at.name = cur, part
			cur = next
		} else if cur = next; next == nil {
			return place{}, ENOENT
		}
	}
	at.node = cur
	if at.folder && cur != nil && !cur.isDir() {
		return place{}, ENOTDIR
	}
	return at, Success
}

// do performs one operation, as Mounts does.
func (m *privateMount) do(op PathOp) PathResult {
	at, e := m.find(op.Path)
	creates := op.Kind == OpMkdir || op.Kind == OpOpen && op.Create
	switch {
	case e != Success:
		return failed(e)
	case op.Kind == OpLink || op.Kind == OpSymlink:
		return failed(ENOTSUP)
	case at.node == nil && !creates:
		return failed(ENOENT)
	}
	switch op.Kind {
	case OpOpen:
		return m.open(at, op)
	case OpStat:
		return PathResult{Stat: at.node.stat()}
	case OpSetTimes:
		a, mt := newTimes(at.node.stat(), op)
		at.node.atim, at.node.mtim = a.UnixNano(), mt.UnixNano()
		at.node.ctime = time.Now().UnixNano()
		return failed(Success)
	case OpMkdir:
		if at.node != nil {
			return failed(EEXIST)
		}
		_, e = m.add(at, map[string]*node{})
		return failed(e)
	case OpRmdir, OpUnlink:
		return failed(m.remove(at, op.Kind == OpRmdir))
	case OpRename:
		to, e := m.find(op.NewPath)
		if e == Success {
			e = m.rename(at, to)
		}
		return failed(e)
	case OpReadlink:
		return failed(EINVAL)
	case OpLink, OpSymlink:
	}
	return failed(ENOSYS)
}

func (m *privateMount) open(at place, op PathOp) PathResult {
	n := at.node
	switch {
	case op.Directory && (op.Create || op.Truncate):
		return failed(EINVAL)
	case n == nil && at.folder:
		return failed(EISDIR)
	case n == nil:
		var e Errno
		if n, e = m.add(at, nil); e != Success {
			return failed(e)
		}
	case op.Create && op.Exclusive:
		return failed(EEXIST)
	case op.Directory && !n.isDir():
		return failed(ENOTDIR)
	case n.isDir() && (op.Write || op.Create || op.Truncate):
		return failed(EISDIR)
	case n.isDir():
		res := PathResult{Stat: n.stat(), Entries: make([]Dirent, 0, len(n.children))}
		for name, c := range n.children {
			res.Entries = append(res.Entries, Dirent{Name: name, Ino: c.ino, Kind: c.stat().Kind})
		}
		return res
	case op.Truncate:
		m.truncate(n, 0)
	}
	n.open++
	return PathResult{Stat: n.stat(), private: &privateFile{m: m, node: n}}
}

func (m *privateMount) add(at place, children map[string]*node) (*node, Errno) {
	if !m.take(entryBytes) {
		return nil, ENOSPC
	}
	m.lastIno++
	n := &node{ino: m.lastIno, parent: at.dir, children: children}
	n.touch()
	n.atim = n.mtim
	at.dir.children[at.name] = n
	at.dir.touch()
	return n, Success
}

func (m *privateMount) remove(at place, folder bool) Errno {
	switch {
	case at.dir == nil:
		return EBUSY
	case folder && !at.node.isDir():
		return ENOTDIR
	case !folder && at.node.isDir():
		return EISDIR
	case len(at.node.children) > 0:
		return ENOTEMPTY
	}
	m.unhook(at)
	return Success
}

// unhook takes a name away, and frees what it named once nobody has it open.
func (m *privateMount) unhook(at place) {
	delete(at.dir.children, at.name)
	at.dir.touch()
	at.node.parent, at.node.removed = nil, true
	m.freeUnused(at.node)
}

func (m *privateMount) freeUnused(n *node) {
	if n.removed && n.open == 0 {
		m.truncate(n, 0)
		m.used -= entryBytes
	}
}

func (m *privateMount) rename(from, to place) Errno {
	switch {
	case from.dir == nil || to.dir == nil:
		return EBUSY
	case from.node == to.node:
		return Success
	case to.node == nil && to.folder && !from.node.isDir():
		return ENOTDIR
	}
	for d := to.dir; d != nil; d = d.parent {
		if d == from.node {
			return EINVAL // into itself
		}
	}
	if to.node != nil {
		if e := m.remove(to, from.node.isDir()); e != Success {
			return e
		}
	}
	delete(from.dir.children, from.name)
	to.dir.children[to.name] = from.node
	from.node.parent = to.dir
	from.dir.touch()
	to.dir.touch()
	return Success
}
