package wasip1

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// statOf reads the parts that Go's FileInfo hides.
func statOf(info fs.FileInfo) Stat {
	st := Stat{Kind: kindOf(info.Mode()), Size: uint64(info.Size()), Nlink: 1, Mtim: info.ModTime().UnixNano()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		st.Dev, st.Ino, st.Nlink = uint64(sys.Dev), sys.Ino, uint64(sys.Nlink) //nolint:unconvert // other sizes on other machines
		st.Atim, st.Ctim = sys.Atim.Nano(), sys.Ctim.Nano()
	}
	return st
}

// direntTypes maps the kernel's entry types (DT_*).
var direntTypes = [...]uint8{1: typeUnknown, 2: typeChar, 4: typeDirectory, 6: typeBlock, 8: typeRegular, 10: typeSymlink, 12: typeStream}

// readDir lists a folder with its inode numbers, which os.File.ReadDir would
// need one more call per entry for. It stops at most entries.
func readDir(f *os.File, most int) ([]Dirent, error) {
	if _, err := f.Seek(0, 0); err != nil {
		return nil, err
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var out []Dirent
	buf := make([]byte, 32<<10)
	for len(out) < most {
		var n int
		var rerr error
		if err := raw.Control(func(fd uintptr) {
			for {
				n, rerr = syscall.ReadDirent(int(fd), buf)
				if !errors.Is(rerr, syscall.EINTR) {
					return
				}
			}
		}); err != nil {
			return nil, err
		}
		if rerr != nil || n <= 0 {
			return out, rerr
		}
		for b := buf[:n]; len(b) > 19; {
			size := int(binary.NativeEndian.Uint16(b[16:]))
			if size < 20 || size > len(b) {
				break
			}
			name := b[19:size]
			for i, c := range name {
				if c == 0 {
					name = name[:i]
					break
				}
			}
			kind := typeUnknown
			if t := int(b[18]); t < len(direntTypes) {
				kind = direntTypes[t]
			}
			if n := string(name); n != "." && n != ".." {
				out = append(out, Dirent{Name: n, Ino: binary.NativeEndian.Uint64(b), Kind: kind})
			}
			b = b[size:]
		}
	}
	return out, nil
}
