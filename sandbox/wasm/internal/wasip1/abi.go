package wasip1

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"strconv"
	"syscall"
)

// Errno is a WASI preview 1 error number. It is not the host's numbering.
type Errno uint16

// Error implements error, for errors that cross from one process to another.
func (e Errno) Error() string { return "WASI error " + strconv.Itoa(int(e)) }

// The error numbers that this package returns, as the WASI preview 1
// specification numbers them.
const (
	Success         Errno = 0
	E2BIG           Errno = 1
	EACCES          Errno = 2
	EAFNOSUPPORT    Errno = 5
	EAGAIN          Errno = 6
	EALREADY        Errno = 7
	EBADF           Errno = 8
	EBUSY           Errno = 10
	ECONNABORTED    Errno = 13
	ECONNREFUSED    Errno = 14
	ECONNRESET      Errno = 15
	EDQUOT          Errno = 19
	EEXIST          Errno = 20
	EFAULT          Errno = 21
	EFBIG           Errno = 22
	EHOSTUNREACH    Errno = 23
	EILSEQ          Errno = 25
	EINPROGRESS     Errno = 26
	EINVAL          Errno = 28
	EIO             Errno = 29
	EISCONN         Errno = 30
	EISDIR          Errno = 31
	ELOOP           Errno = 32
	EMFILE          Errno = 33
	EMLINK          Errno = 34
	ENAMETOOLONG    Errno = 37
	ENETUNREACH     Errno = 40
	ENFILE          Errno = 41
	ENOENT          Errno = 44
	ENOMEM          Errno = 48
	ENOPROTOOPT     Errno = 50
	ENOSPC          Errno = 51
	ENOSYS          Errno = 52
	ENOTCONN        Errno = 53
	ENOTDIR         Errno = 54
	ENOTEMPTY       Errno = 55
	ENOTSOCK        Errno = 57
	ENOTSUP         Errno = 58
	ENXIO           Errno = 60
	EOVERFLOW       Errno = 61
	EPERM           Errno = 63
	EPIPE           Errno = 64
	EPROTONOSUPPORT Errno = 66
	EROFS           Errno = 69
	ESPIPE          Errno = 70
	ETIMEDOUT       Errno = 73
	ETXTBSY         Errno = 74
	EXDEV           Errno = 75
	ENOTCAPABLE     Errno = 76
)

// File types of fdstat, filestat and dirent.
const (
	typeUnknown   uint8 = 0
	typeBlock     uint8 = 1
	typeChar      uint8 = 2
	typeDirectory uint8 = 3
	typeRegular   uint8 = 4
	typeStream    uint8 = 6
	typeSymlink   uint8 = 7
)

// Descriptor flags.
const (
	flagAppend   uint16 = 1 << 0
	flagDsync    uint16 = 1 << 1
	flagNonblock uint16 = 1 << 2
	flagRsync    uint16 = 1 << 3
	flagSync     uint16 = 1 << 4
	flagsKnown          = flagAppend | flagDsync | flagNonblock | flagRsync | flagSync
)

// hostErrnos maps the errors of the host's kernel by name, since their numbers
// differ from one system to the next.
func hostErrno(e syscall.Errno) Errno {
	switch e { //nolint:exhaustive // the rest is EIO
	case syscall.EACCES:
		return EACCES
	case syscall.EAGAIN:
		return EAGAIN
	case syscall.EBADF:
		return EBADF
	case syscall.EBUSY:
		return EBUSY
	case syscall.ECONNREFUSED:
		return ECONNREFUSED
	case syscall.ECONNRESET:
		return ECONNRESET
	case syscall.ECONNABORTED:
		return ECONNABORTED
	case syscall.EDQUOT:
		return EDQUOT
	case syscall.EEXIST:
		return EEXIST
	case syscall.EFBIG:
		return EFBIG
	case syscall.EHOSTUNREACH:
		return EHOSTUNREACH
	case syscall.EINVAL:
		return EINVAL
	case syscall.EISDIR:
		return EISDIR
	case syscall.ELOOP:
		return ELOOP
	case syscall.EMFILE, syscall.ENFILE:
		return ENFILE
	case syscall.EMLINK:
		return EMLINK
	case syscall.ENAMETOOLONG:
		return ENAMETOOLONG
	case syscall.ENETUNREACH:
		return ENETUNREACH
	case syscall.ENOENT:
		return ENOENT
	case syscall.ENOMEM:
		return ENOMEM
	case syscall.ENOSPC:
		return ENOSPC
	case syscall.ENOTDIR:
		return ENOTDIR
	case syscall.ENOTEMPTY:
		return ENOTEMPTY
	case syscall.ENXIO, syscall.ENODEV:
		return ENXIO
	case syscall.EPERM:
		return EPERM
	case syscall.EPIPE:
		return EPIPE
	case syscall.EROFS:
		return EROFS
	case syscall.ESPIPE:
		return ESPIPE
	case syscall.ETIMEDOUT:
		return ETIMEDOUT
	case syscall.ETXTBSY:
		return ETXTBSY
	case syscall.EXDEV:
		return EXDEV
	}
	return EIO
}

// fsErrno translates an error of a file operation. What os.Root refuses
// because the path would leave its root has no type of its own, so that
// whatever stays unknown reads as "not permitted".
func fsErrno(err error) Errno {
	var own Errno
	var e syscall.Errno
	switch {
	case err == nil:
		return Success
	case errors.As(err, &own):
		return own
	case errors.As(err, &e):
		return hostErrno(e)
	case errors.Is(err, io.EOF):
		return Success
	case errors.Is(err, fs.ErrNotExist):
		return ENOENT
	case errors.Is(err, fs.ErrExist):
		return EEXIST
	case errors.Is(err, os.ErrClosed):
		return EBADF
	case errors.Is(err, fs.ErrInvalid):
		return EINVAL
	}
	return EPERM
}

// DialErrno translates what Config.Dial returned. A refusal by policy has no
// kernel error below it and reads as a refused connection.
func DialErrno(err error) Errno {
	var own Errno
	var e syscall.Errno
	var ne net.Error
	switch {
	case err == nil:
		return Success
	case errors.As(err, &own):
		return own
	case errors.As(err, &e):
		if n := hostErrno(e); n != EIO {
			return n
		}
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &ne) && ne.Timeout():
		return ETIMEDOUT
	}
	return ECONNREFUSED
}
