package wasip1

import (
	"encoding/binary"
	"time"
)

func fdClose(s *System, _ memory, p params) Errno { return s.drop(p.fd(0)) }

func fdRenumber(s *System, _ memory, p params) Errno {
	from, to := p.fd(0), p.fd(1)
	f, e := s.get(from)
	if e != Success {
		return e
	}
	g, e := s.get(to)
	switch {
	case e != Success:
		return e
	case from == to:
		return Success
	}
	if err := s.release(g); err != nil {
		return fsErrno(err)
	}
	s.files[to], s.files[from] = f, nil
	s.free = min(s.free, int(from))
	return Success
}

func fdAdvise(s *System, _ memory, p params) Errno {
	f, e := s.get(p.fd(0))
	switch {
	case e != Success:
		return e
	case p.u32(3) > 5 || int64(p.u64(1)) < 0 || int64(p.u64(2)) < 0:
		return EINVAL
	case f.isStream():
		return ESPIPE
	case f.kind == typeDirectory:
		return EBADF
	}
	return Success // advice that is not taken
}

func fdAllocate(s *System, _ memory, p params) Errno {
	f, e := s.getRegular(p.fd(0))
	if e != Success {
		return e
	}
	off, n := int64(p.u64(1)), int64(p.u64(2))
	switch {
	case off < 0 || n <= 0 || off+n < 0:
		return EINVAL
	case !f.write:
		return EBADF
	}
	st, err := statFile(f.host)
	if err != nil {
		return fsErrno(err)
	}
	if st.Size >= uint64(off+n) {
		return Success
	}
	return fsErrno(f.host.Truncate(off + n))
}

func fdSync(s *System, _ memory, p params) Errno {
	f, e := s.get(p.fd(0))
	switch {
	case e != Success:
		return e
	case f.isStream():
		return EINVAL
	case f.host == nil:
		return Success
	}
	return fsErrno(f.host.Sync())
}

func fdFdstatGet(s *System, m memory, p params) Errno {
	f, e := s.get(p.fd(0))
	if e != Success {
		return e
	}
	b, e := m.view(p.u32(1), 24)
	if e != Success {
		return e
	}
	clear(b)
	b[0] = f.kind
	binary.LittleEndian.PutUint16(b[2:], f.flags)
	base, inheriting := f.shownRights()
	binary.LittleEndian.PutUint64(b[8:], base)
	binary.LittleEndian.PutUint64(b[16:], inheriting)
	return Success
}

func fdFdstatSetFlags(s *System, _ memory, p params) Errno {
	f, e := s.get(p.fd(0))
	if e != Success {
		return e
	}
	flags := p.u32(1)
	switch {
	case flags&^uint32(flagsKnown) != 0:
		return EINVAL
	case uint16(flags)&(flagDsync|flagRsync|flagSync) != f.flags&(flagDsync|flagRsync|flagSync):
		return ENOTSUP
	}
	f.flags = uint16(flags)
	return Success
}

func fdFilestatGet(s *System, m memory, p params) Errno {
	f, e := s.get(p.fd(0))
	if e != Success {
		return e
	}
	st := Stat{Kind: f.kind, Nlink: 1}
	if f.kind == typeDirectory {
		if e := s.openDir(f); e != Success {
			return e
		}
	}
	switch {
	case f.host != nil:
		var err error
		if st, err = statFile(f.host); err != nil {
			return fsErrno(err)
		}
	case f.kind == typeDirectory: // one that only exists here
		res := s.cfg.Mounts.Do(PathOp{Kind: OpStat, Mount: f.mount, Path: f.path, NewMount: f.mount})
		if res.Errno != Success {
			return res.Errno
		}
		st = res.Stat
	}
	return m.putStat(p.u32(1), st)
}

func (m memory) putStat(off uint32, st Stat) Errno {
	b, e := m.view(off, 64)
	if e != Success {
		return e
	}
	clear(b)
	binary.LittleEndian.PutUint64(b, st.Dev)
	binary.LittleEndian.PutUint64(b[8:], st.Ino)
	b[16] = st.Kind
	binary.LittleEndian.PutUint64(b[24:], st.Nlink)
	binary.LittleEndian.PutUint64(b[32:], st.Size)
	binary.LittleEndian.PutUint64(b[40:], uint64(st.Atim))
	binary.LittleEndian.PutUint64(b[48:], uint64(st.Mtim))
	binary.LittleEndian.PutUint64(b[56:], uint64(st.Ctim))
	return Success
}

func fdFilestatSetSize(s *System, _ memory, p params) Errno {
	f, e := s.getRegular(p.fd(0))
	if e != Success {
		return e
	}
	size := int64(p.u64(1))
	switch {
	case size < 0:
		return EINVAL
	case !f.write:
		return EBADF
	}
	return fsErrno(f.host.Truncate(size))
}

// times reads the four flags that say which times to set, and to what.
func times(atim, mtim uint64, flags uint32) (a, m *int64, e Errno) {
	now := time.Now().UnixNano()
	pick := func(v uint64, set, setNow bool) (*int64, Errno) {
		switch {
		case set && setNow || set && int64(v) < 0:
			return nil, EINVAL
		case setNow:
			return &now, Success
		case set:
			t := int64(v)
			return &t, Success
		}
		return nil, Success
	}
	if flags > 15 {
		return nil, nil, EINVAL
	}
	if a, e = pick(atim, flags&1 != 0, flags&2 != 0); e != Success {
		return nil, nil, e
	}
	m, e = pick(mtim, flags&4 != 0, flags&8 != 0)
	return a, m, e
}

// fdFilestatSetTimes goes by the path that the descriptor was opened by, so
// that a mount's rules apply in one place.
func fdFilestatSetTimes(s *System, _ memory, p params) Errno {
	f, e := s.get(p.fd(0))
	switch {
	case e != Success:
		return e
	case f.isStream():
		return EINVAL
	}
	a, m, e := times(p.u64(1), p.u64(2), p.u32(3))
	if e != Success {
		return e
	}
	return s.cfg.Mounts.Do(PathOp{Kind: OpSetTimes, Mount: f.mount, Path: f.path, Follow: true, Atim: a, Mtim: m}).Errno
}
