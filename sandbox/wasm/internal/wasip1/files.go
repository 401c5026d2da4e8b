package wasip1

import (
	"io"
	"os"
)

// openFile is an open file or folder of a mount: an *os.File or a
// *privateFile.
type openFile interface {
	io.ReadWriteSeeker
	io.ReaderAt
	io.WriterAt
	io.Closer
	sizedFile
}

type sizedFile interface {
	Truncate(size int64) error
	Sync() error
}

// statFile reads the metadata of an open file.
func statFile(f openFile) (Stat, error) {
	switch f := f.(type) {
	case *privateFile:
		return f.node.stat(), nil
	case *os.File:
		info, err := f.Stat()
		if err != nil {
			return Stat{}, err
		}
		return statOf(info), nil
	}
	return Stat{}, EBADF
}

// file is one descriptor. Exactly one of its groups is in use: in/out for
// streams and sockets, host for files and folders of a mount.
type file struct {
	kind   uint8
	flags  uint16
	rights uint64
	// dropped and below are what fd_fdstat_set_rights took away, of the
	// descriptor and of what is opened below it.
	dropped, below uint64

	in, out *Pipe
	sock    *socket

	host    openFile // nil for a folder that only exists here
	mount   int      // index into Mounts, with path below it
	path    string
	preopen string // the guest's name of a preopened folder
	entries []Dirent
	listed  bool
	write   bool // opened for writing
	read    bool // opened for reading
}

func (f *file) nonblock() bool { return f.flags&flagNonblock != 0 }
func (f *file) isStream() bool { return f.in != nil || f.out != nil || f.sock != nil }

// get returns an open descriptor.
func (s *System) get(fd int32) (*file, Errno) {
	if fd < 0 || int(fd) >= len(s.files) || s.files[fd] == nil {
		return nil, EBADF
	}
	return s.files[fd], Success
}

// getHost returns a descriptor of a regular file.
func (s *System) getRegular(fd int32) (*file, Errno) {
	f, e := s.get(fd)
	switch {
	case e != Success:
		return nil, e
	case f.isStream():
		return nil, ESPIPE
	case f.kind == typeDirectory:
		return nil, EISDIR
	}
	return f, Success
}

// getDir returns a descriptor of a folder.
func (s *System) getDir(fd int32) (*file, Errno) {
	f, e := s.get(fd)
	if e == Success && f.kind != typeDirectory {
		return nil, ENOTDIR
	}
	return f, e
}

// add gives f the lowest free descriptor.
func (s *System) add(f *file) (int32, Errno) {
	for ; s.free < len(s.files); s.free++ {
		if s.files[s.free] == nil {
			s.files[s.free] = f
			return int32(s.free), Success
		}
	}
	if len(s.files) >= s.cfg.MaxFiles {
		return 0, EMFILE
	}
	s.files = append(s.files, f)
	return int32(len(s.files) - 1), Success
}

// canAdd tells whether add would find a descriptor, before an effect happens.
func (s *System) canAdd() Errno {
	for ; s.free < len(s.files); s.free++ {
		if s.files[s.free] == nil {
			return Success
		}
	}
	if len(s.files) >= s.cfg.MaxFiles {
		return EMFILE
	}
	return Success
}

// drop closes a descriptor and frees its number.
func (s *System) drop(fd int32) Errno {
	f, e := s.get(fd)
	if e != Success {
		return e
	}
	s.files[fd] = nil
	s.free = min(s.free, int(fd))
	return fsErrno(s.release(f))
}

// keepEntries gives a folder's descriptor its listing. All listings of a guest
// together are bounded.
func (s *System) keepEntries(f *file, list []Dirent) Errno {
	total := s.listed - len(f.entries) + len(list)
	if total > dirEntriesMost {
		return ENOMEM
	}
	s.listed = total
	f.entries, f.listed = list, true
	return Success
}

// release frees what a descriptor holds. The standard streams' other side sees
// them end.
func (s *System) release(f *file) error {
	s.listed -= len(f.entries)
	switch {
	case f.sock != nil:
		f.sock.close()
	case f.in != nil:
		f.in.closeRead()
	case f.out != nil:
		f.out.closeWrite(Success)
	case f.host != nil:
		return f.host.Close()
	}
	return nil
}
