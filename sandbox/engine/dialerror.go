//go:build linux

package engine

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"syscall"

	"github.com/sandboxd/sandboxd/sandbox"
)

// isGone reports whether an error means that the other side has closed.
func isGone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, errGone)
}

// dialError says what to do about an engine that cannot be reached.
func dialError(socket string, err error) error {
	e := &sandbox.UnavailableError{Tier: sandbox.Container}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		e.What = fmt.Sprintf("no engine is running at %s", socket)
		e.Next = "start it with: sudo sandboxd engine --group GROUP, where GROUP is one of yours"
	case errors.Is(err, fs.ErrPermission):
		e.What = fmt.Sprintf("you may not use the engine at %s", socket)
		e.Next = permissionAdvice(socket)
	case isGone(err):
		e.What, e.Next = "the engine is ending", "try again"
	case errors.Is(err, syscall.EPROTOTYPE):
		e.What = fmt.Sprintf("%s is not an engine's socket", socket)
		e.Next = "check the path"
	case errors.Is(err, syscall.EAGAIN):
		e.What, e.Next = "the engine takes no more connections now", "try again"
	default:
		return fmt.Errorf("engine at %s: %w", socket, err)
	}
	return e
}

// permissionAdvice names the group that the socket lets in.
func permissionAdvice(socket string) string {
	const rootOnly = "it serves root alone: start it with --group GROUP to let a group use it"
	fi, err := os.Stat(socket)
	if err != nil {
		return "its folder cannot be entered: ask the administrator"
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || fi.Mode().Perm()&0o060 != 0o060 {
		return rootOnly
	}
	gid := strconv.FormatUint(uint64(st.Gid), 10)
	if g, err := user.LookupGroupId(gid); err == nil {
		return fmt.Sprintf("join its group and log in again: sudo usermod -aG %s $USER", g.Name)
	}
	return fmt.Sprintf("join its group %s and log in again", gid)
}
