//go:build !linux

package wasip1

import (
	"io/fs"
	"os"
)

// statOf has no portable way to the inode and the other times.
func statOf(info fs.FileInfo) Stat {
	t := info.ModTime().UnixNano()
	return Stat{Kind: kindOf(info.Mode()), Size: uint64(info.Size()), Nlink: 1, Atim: t, Mtim: t, Ctim: t} //nolint:gosec // sizes are not negative
}

// readDir lists a folder, at most so many entries.
func readDir(f *os.File, most int) ([]Dirent, error) {
	if _, err := f.Seek(0, 0); err != nil {
		return nil, err
	}
	list, err := f.ReadDir(most)
	if err != nil && len(list) == 0 {
		return nil, nil //nolint:nilerr // the end of an empty folder is an error to ReadDir
	}
	out := make([]Dirent, 0, len(list))
	for _, e := range list {
		out = append(out, Dirent{Name: e.Name(), Kind: kindOf(e.Type())})
	}
	return out, nil
}
