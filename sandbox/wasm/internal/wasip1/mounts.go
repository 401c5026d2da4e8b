package wasip1

import (
	"io/fs"
	"os"
)

// Mounts serves operations on paths below mounted folders. One method takes
// them all, so that a guest's process can pass them on to the process that
// owns the folders.
type Mounts interface {
	// Names returns the guest's names of the folders, by index.
	Names() []string
	// Do performs one operation. It follows no path out of its folder.
	Do(op PathOp) PathResult
}

// OpKind names a path operation.
type OpKind uint8

// The operations.
const (
	OpOpen OpKind = iota + 1
	OpStat
	OpSetTimes
	OpMkdir
	OpRmdir
	OpUnlink
	OpRename
	OpLink
	OpSymlink
	OpReadlink
)

// PathOp is one operation. Paths are relative to a mount and "." is the mount
// itself.
type PathOp struct {
	Kind  OpKind
	Mount int
	Path  string
	// NewMount and NewPath are the second path of rename and link. For symlink
	// NewPath is the text of the link.
	NewMount int    `json:",omitempty"`
	NewPath  string `json:",omitempty"`
	// Follow follows a symbolic link at the end of Path.
	Follow bool `json:",omitempty"`
	// Open's flags.
	Read, Write, Create, Exclusive, Truncate, Directory bool `json:",omitempty"`
	// SetTimes' times in nanoseconds since 1970; nil leaves one as it is.
	Atim, Mtim *int64 `json:",omitempty"`
}

// PathResult is an operation's outcome. Only the fields of its kind are set.
type PathResult struct {
	Errno Errno
	// File is what Open opened: a regular file or a folder. It is nil for a
	// folder that exists only for the guest, whose Entries are given instead.
	File *os.File `json:"-"`
	// private is what Open opened in a private folder.
	private *privateFile
	Stat    Stat
	// Entries lists a folder that has no File.
	Entries []Dirent `json:",omitempty"`
	// Target is the text of a symbolic link.
	Target string `json:",omitempty"`
}

// host is the open file, or nil for a folder that exists only for the guest.
func (r PathResult) host() openFile {
	switch {
	case r.private != nil:
		return r.private
	case r.File != nil:
		return r.File
	}
	return nil
}

// Stat is a file's metadata in WASI's terms; times are nanoseconds since 1970.
type Stat struct {
	Dev, Ino, Nlink, Size uint64
	Kind                  uint8
	Atim, Mtim, Ctim      int64
}

// Dirent is one entry of a folder.
type Dirent struct {
	Name string
	Ino  uint64
	Kind uint8
}

// kindOf translates a mode's type.
func kindOf(m fs.FileMode) uint8 {
	switch {
	case m.IsRegular():
		return typeRegular
	case m.IsDir():
		return typeDirectory
	case m&fs.ModeSymlink != 0:
		return typeSymlink
	case m&fs.ModeCharDevice != 0:
		return typeChar
	case m&fs.ModeDevice != 0:
		return typeBlock
	case m&fs.ModeSocket != 0:
		return typeStream
	}
	return typeUnknown
}
