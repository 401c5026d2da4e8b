//go:build unix

package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// ownersOnly refuses a file of another user, or with one of the permissions
// in mask.
func ownersOnly(info fs.FileInfo, mask fs.FileMode) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("has no owner that could be checked")
	}
	if uid := int(st.Uid); uid != 0 && uid != os.Geteuid() {
		return fmt.Errorf("belongs to user %d, neither this user nor root", uid)
	}
	if info.Mode().Perm()&mask != 0 {
		return fmt.Errorf("has mode %04o, which lets others in", info.Mode().Perm())
	}
	return nil
}
