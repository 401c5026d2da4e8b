//go:build unix

package images

import (
	"io/fs"
	"os"
	"syscall"
)

// ours reports whether the folder is this user's, and nobody else can write
// to it.
func ours(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int64(st.Uid) == int64(os.Geteuid()) && info.Mode().Perm()&0o022 == 0
}
