//go:build unix

package clients

import (
	"io/fs"
	"os"
	"syscall"
)

// sameOwner gives a file the owner of the one that it replaces, where this user
// may: root edits a user's file without taking it away.
func sameOwner(path string, info fs.FileInfo) {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		_ = os.Chown(path, int(st.Uid), int(st.Gid))
	}
}
