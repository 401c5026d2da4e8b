package wasip1

import (
	"bytes"
	"encoding/binary"
	"os"
	"strings"
)

const maxPath = 4096

// preopen opens the mounts as the descriptors from 3 on.
func (s *System) preopen() {
	for i, name := range s.cfg.Mounts.Names() {
		// The folder itself is opened when it is first listed or asked for its
		// metadata: most guests never do.
		s.files = append(s.files, &file{kind: typeDirectory, rights: rightsDir, mount: i, path: ".", preopen: name})
	}
}

func fdPrestatGet(s *System, m memory, p params) Errno {
	f, e := s.get(p.fd(0))
	switch {
	case e != Success:
		return e
	case f.preopen == "":
		return EBADF
	}
	b, e := m.view(p.u32(1), 8)
	if e != Success {
		return e
	}
	clear(b) // the tag of a folder is 0
	binary.LittleEndian.PutUint32(b[4:], uint32(len(f.preopen)))
	return Success
}

func fdPrestatDirName(s *System, m memory, p params) Errno {
	f, e := s.get(p.fd(0))
	switch {
	case e != Success:
		return e
	case f.preopen == "":
		return EBADF
	case uint64(p.u32(2)) < uint64(len(f.preopen)):
		return ENAMETOOLONG
	}
	b, e := m.view(p.u32(1), uint32(len(f.preopen)))
	if e != Success {
		return e
	}
	copy(b, f.preopen)
	return Success
}

// resolve reads a path argument relative to a folder's descriptor. What would
// climb above that folder is refused here, what a symbolic link would do is
// refused by Mounts.
func (s *System) resolve(m memory, fd int32, ptr, n uint32) (*file, string, Errno) {
	dir, e := s.getDir(fd)
	if e != Success {
		return nil, "", e
	}
	if n > maxPath {
		return nil, "", ENAMETOOLONG
	}
	b, e := m.view(ptr, n)
	switch {
	case e != Success:
		return nil, "", e
	case len(b) == 0:
		return nil, "", ENOENT
	case bytes.IndexByte(b, 0) >= 0:
		return nil, "", EINVAL
	}
	name := string(b)
	if leaves("x", name) {
		return nil, "", EPERM
	}
	if dir.path != "." {
		name = dir.path + "/" + name
	}
	return dir, name, Success
}

// pathOp runs an operation with one path.
func (s *System) pathOp(m memory, op PathOp, fd int32, ptr, n uint32) PathResult {
	dir, name, e := s.resolve(m, fd, ptr, n)
	if e != Success {
		return failed(e)
	}
	op.Mount, op.Path = dir.mount, name
	op.NewMount = dir.mount
	return s.cfg.Mounts.Do(op)
}

func pathCreateDirectory(s *System, m memory, p params) Errno {
	return s.pathOp(m, PathOp{Kind: OpMkdir}, p.fd(0), p.u32(1), p.u32(2)).Errno
}

func pathRemoveDirectory(s *System, m memory, p params) Errno {
	return s.pathOp(m, PathOp{Kind: OpRmdir}, p.fd(0), p.u32(1), p.u32(2)).Errno
}

func pathUnlinkFile(s *System, m memory, p params) Errno {
	return s.pathOp(m, PathOp{Kind: OpUnlink}, p.fd(0), p.u32(1), p.u32(2)).Errno
}

func pathFilestatGet(s *System, m memory, p params) Errno {
	op := PathOp{Kind: OpStat, Follow: p.u32(1)&1 != 0}
	res := s.pathOp(m, op, p.fd(0), p.u32(2), p.u32(3))
	if res.Errno != Success {
		return res.Errno
	}
	return m.putStat(p.u32(4), res.Stat)
}

func pathFilestatSetTimes(s *System, m memory, p params) Errno {
	a, mt, e := times(p.u64(4), p.u64(5), p.u32(6))
	if e != Success {
		return e
	}
	op := PathOp{Kind: OpSetTimes, Follow: p.u32(1)&1 != 0, Atim: a, Mtim: mt}
	return s.pathOp(m, op, p.fd(0), p.u32(2), p.u32(3)).Errno
}

// twoPaths runs an operation from one path to another. The second path's
// three arguments begin at index newAt, right after the first's.
func (s *System) twoPaths(m memory, op PathOp, p params, newAt int) Errno {
	from, old, e := s.resolve(m, p.fd(0), p.u32(newAt-2), p.u32(newAt-1))
	if e != Success {
		return e
	}
	to, name, e := s.resolve(m, p.fd(newAt), p.u32(newAt+1), p.u32(newAt+2))
	if e != Success {
		return e
	}
	op.Mount, op.Path, op.NewMount, op.NewPath = from.mount, old, to.mount, name
	return s.cfg.Mounts.Do(op).Errno
}

func pathRename(s *System, m memory, p params) Errno {
	return s.twoPaths(m, PathOp{Kind: OpRename}, p, 3)
}

func pathLink(s *System, m memory, p params) Errno {
	return s.twoPaths(m, PathOp{Kind: OpLink, Follow: p.u32(1)&1 != 0}, p, 4)
}

func pathSymlink(s *System, m memory, p params) Errno {
	if p.u32(1) > maxPath {
		return ENAMETOOLONG
	}
	text, e := m.view(p.u32(0), p.u32(1))
	switch {
	case e != Success:
		return e
	case len(text) == 0:
		return ENOENT
	case bytes.IndexByte(text, 0) >= 0:
		return EINVAL
	}
	op := PathOp{Kind: OpSymlink, NewPath: string(text)}
	return s.pathOp(m, op, p.fd(2), p.u32(3), p.u32(4)).Errno
}

func pathReadlink(s *System, m memory, p params) Errno {
	b, e := m.view(p.u32(3), p.u32(4))
	if e != Success {
		return e
	}
	if e := m.canPutU32(p.u32(5)); e != Success {
		return e
	}
	res := s.pathOp(m, PathOp{Kind: OpReadlink}, p.fd(0), p.u32(1), p.u32(2))
	if res.Errno != Success {
		return res.Errno
	}
	return m.putU32(p.u32(5), uint32(copy(b, res.Target)))
}

// pathOpen's arguments: folder, look-up flags, path, open flags, rights, rights
// of what is opened below, descriptor flags, where to put the descriptor.
func pathOpen(s *System, m memory, p params) Errno {
	oflags, rights, fdflags := p.u32(4), p.u64(5), p.u32(7)
	if oflags > 15 || fdflags&^uint32(flagsKnown) != 0 {
		return EINVAL
	}
	if e := m.canPutU32(p.u32(8)); e != Success {
		return e
	}
	if e := s.canAdd(); e != Success {
		return e
	}
	op := PathOp{
		Kind: OpOpen, Follow: p.u32(1)&1 != 0,
		Create: oflags&1 != 0, Directory: oflags&2 != 0, Exclusive: oflags&4 != 0, Truncate: oflags&8 != 0,
		Read: rights&rightRead != 0, Write: rights&rightWrite != 0,
	}
	if op.Directory && !op.Read {
		op.Write = false // some ask for every right there is when they only mean to list
	}
	dir, name, e := s.resolve(m, p.fd(0), p.u32(2), p.u32(3))
	switch {
	case e != Success:
		return e
	case op.Create && dir.dropped&rightCreate != 0, op.Truncate && dir.dropped&rightPathSize != 0:
		return ENOTCAPABLE
	}
	op.Mount, op.Path, op.NewMount = dir.mount, name, dir.mount
	res := s.cfg.Mounts.Do(op)
	if res.Errno != Success {
		return res.Errno
	}
	f := &file{
		kind: res.Stat.Kind, flags: uint16(fdflags), rights: rights & rightsFileOnly,
		host: res.host(), mount: dir.mount, path: name,
		read: op.Read || !op.Write, write: op.Write, dropped: dir.below, below: dir.below,
	}
	if f.kind == typeDirectory {
		f.path, f.rights = strings.TrimRight(name, "/"), rights&rightsDir
	}
	fd, e := s.add(f)
	if e != Success {
		return e
	}
	return m.putU32(p.u32(8), uint32(fd))
}

// openDir gives a preopened folder its host file on first use.
func (s *System) openDir(f *file) Errno {
	if f.host != nil || f.listed {
		return Success
	}
	res := s.cfg.Mounts.Do(PathOp{Kind: OpOpen, Mount: f.mount, Path: f.path, NewMount: f.mount, Directory: true, Follow: true})
	if res.Errno != Success {
		return res.Errno
	}
	if f.host = res.host(); f.host != nil {
		return Success
	}
	return s.keepEntries(f, res.Entries)
}

// fdReaddir lists a folder. The cookie is an index: "." and ".." first, then
// the entries as they were when the listing began.
func fdReaddir(s *System, m memory, p params) Errno {
	f, e := s.getDir(p.fd(0))
	if e != Success {
		return e
	}
	buf, e := m.view(p.u32(1), p.u32(2))
	if e != Success {
		return e
	}
	if e := m.canPutU32(p.u32(4)); e != Success {
		return e
	}
	cookie := p.u64(3)
	if cookie == 0 {
		f.listed = false // from its beginning is anew
	}
	if e := s.openDir(f); e != Success {
		return e
	}
	if host, ok := f.host.(*os.File); ok && !f.listed {
		list, err := readDir(host, dirEntriesMost)
		if err != nil {
			return fsErrno(err)
		}
		if e := s.keepEntries(f, list); e != Success {
			return e
		}
	}
	n := 0
	for i := cookie; i < uint64(len(f.entries))+2 && n < len(buf); i++ {
		n += putDirent(buf[n:], i+1, s.direntAt(f, i))
	}
	return m.putU32(p.u32(4), uint32(n))
}

func (s *System) direntAt(f *file, i uint64) Dirent {
	switch i {
	case 0:
		d := Dirent{Name: ".", Kind: typeDirectory}
		if f.host != nil {
			if st, err := statFile(f.host); err == nil {
				d.Ino = st.Ino
			}
		}
		return d
	case 1:
		return Dirent{Name: "..", Kind: typeDirectory}
	}
	return f.entries[i-2]
}

// putDirent writes an entry, cut where the buffer ends: a full buffer tells
// the guest that there is more.
func putDirent(buf []byte, next uint64, d Dirent) int {
	var head [24]byte
	binary.LittleEndian.PutUint64(head[:], next)
	binary.LittleEndian.PutUint64(head[8:], d.Ino)
	binary.LittleEndian.PutUint32(head[16:], uint32(len(d.Name)))
	head[20] = d.Kind
	n := copy(buf, head[:])
	return n + copy(buf[n:], d.Name)
}
