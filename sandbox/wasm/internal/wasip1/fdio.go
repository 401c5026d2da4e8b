package wasip1

import (
	"errors"
	"io"
	"time"
)

// readStream reads what is there, waiting for the first byte unless the
// descriptor is non-blocking.
func (s *System) readStream(f *file, bufs [][]byte, peek bool) (int, Errno) {
	read := f.in.tryRead
	if peek {
		read = f.in.tryPeek
	}
	for {
		n := 0
		var e Errno
		for _, b := range bufs {
			var k int
			k, e = read(b)
			n += k
			if e != Success || k < len(b) || peek {
				break
			}
		}
		switch {
		case n > 0:
			return n, Success
		case e == EAGAIN && !f.nonblock():
			s.wait(time.Time{})
		default:
			return 0, e
		}
	}
}

// writeStream writes what fits; all of it, waiting, unless the descriptor is
// non-blocking.
func (s *System) writeStream(f *file, bufs [][]byte) (int, Errno) {
	n := 0
	for _, b := range bufs {
		for len(b) > 0 {
			k, e := f.out.tryWrite(b)
			n, b = n+k, b[k:]
			switch {
			case e == EAGAIN && !f.nonblock():
				s.wait(time.Time{})
			case e == EAGAIN && n > 0:
				return n, Success
			case e != Success:
				return n, e
			case len(b) > 0 && f.nonblock():
				return n, Success
			}
		}
	}
	return n, Success
}

func fdRead(s *System, m memory, p params) Errno {
	f, e := s.get(p.fd(0))
	if e != Success {
		return e
	}
	bufs, e := m.iovecs(p.u32(1), p.u32(2))
	if e != Success {
		return e
	}
	if e := m.canPutU32(p.u32(3)); e != Success {
		return e
	}
	var n int
	switch {
	case f.sock != nil:
		n, e = s.recv(f, bufs, false)
	case f.in != nil:
		n, e = s.readStream(f, bufs, false)
	case f.kind == typeDirectory:
		return EISDIR
	case f.host == nil || !f.read:
		return EBADF
	default:
		n, e = eachBuf(bufs, f.host.Read)
	}
	if e != Success {
		return e
	}
	return m.putU32(p.u32(3), uint32(n))
}

func fdWrite(s *System, m memory, p params) Errno {
	f, e := s.get(p.fd(0))
	if e != Success {
		return e
	}
	bufs, e := m.iovecs(p.u32(1), p.u32(2))
	if e != Success {
		return e
	}
	if e := m.canPutU32(p.u32(3)); e != Success {
		return e
	}
	var n int
	switch {
	case f.sock != nil:
		n, e = s.send(f, bufs)
	case f.out != nil:
		n, e = s.writeStream(f, bufs)
	case f.kind == typeDirectory:
		return EISDIR
	case f.host == nil || !f.write:
		return EBADF
	default:
		if f.flags&flagAppend != 0 {
			if _, err := f.host.Seek(0, io.SeekEnd); err != nil {
				return fsErrno(err)
			}
		}
		n, e = eachBuf(bufs, f.host.Write)
		if e == Success && f.flags&(flagSync|flagDsync) != 0 {
			e = fsErrno(f.host.Sync())
		}
	}
	if e != Success {
		return e
	}
	return m.putU32(p.u32(3), uint32(n))
}

// eachBuf applies a host file's Read or Write to buffers in turn, up to the
// first short count.
func eachBuf(bufs [][]byte, op func([]byte) (int, error)) (int, Errno) {
	n := 0
	for _, b := range bufs {
		if len(b) == 0 {
			continue
		}
		k, err := op(b)
		n += k
		if err != nil && !errors.Is(err, io.EOF) && n == 0 {
			return 0, fsErrno(err)
		}
		if err != nil || k < len(b) {
			break
		}
	}
	return n, Success
}

// offsetIO is a positioned read or write: all but which of the two it is.
func (s *System) offsetIO(m memory, p params, may func(*file) bool, op func(openFile, []byte, int64) (int, error)) Errno {
	f, e := s.getRegular(p.fd(0))
	if e != Success {
		return e
	}
	bufs, e := m.iovecs(p.u32(1), p.u32(2))
	if e != Success {
		return e
	}
	off := int64(p.u64(3))
	if off < 0 {
		return EINVAL
	}
	if e := m.canPutU32(p.u32(4)); e != Success {
		return e
	}
	if !may(f) {
		return EBADF
	}
	n, e := eachBuf(bufs, func(b []byte) (int, error) {
		k, err := op(f.host, b, off)
		off += int64(k)
		return k, err
	})
	if e != Success {
		return e
	}
	return m.putU32(p.u32(4), uint32(n))
}

func fdPread(s *System, m memory, p params) Errno {
	return s.offsetIO(m, p, func(f *file) bool { return f.read }, openFile.ReadAt)
}

func fdPwrite(s *System, m memory, p params) Errno {
	return s.offsetIO(m, p, func(f *file) bool { return f.write }, openFile.WriteAt)
}

func fdSeek(s *System, m memory, p params) Errno {
	f, e := s.get(p.fd(0))
	switch {
	case e != Success:
		return e
	case f.isStream():
		return ESPIPE
	case f.kind == typeDirectory:
		return EBADF
	}
	whence := p.u32(2)
	if whence > 2 { // set, current, end: the numbers of io.Seeker
		return EINVAL
	}
	if e := m.canPutU64(p.u32(3)); e != Success {
		return e
	}
	n, err := f.host.Seek(int64(p.u64(1)), int(whence))
	if err != nil {
		return fsErrno(err)
	}
	return m.putU64(p.u32(3), uint64(n))
}

func fdTell(s *System, m memory, p params) Errno {
	f, e := s.get(p.fd(0))
	switch {
	case e != Success:
		return e
	case f.isStream():
		return ESPIPE
	case f.kind == typeDirectory:
		return EBADF
	}
	n, err := f.host.Seek(0, io.SeekCurrent)
	if err != nil {
		return fsErrno(err)
	}
	return m.putU64(p.u32(1), uint64(n))
}
