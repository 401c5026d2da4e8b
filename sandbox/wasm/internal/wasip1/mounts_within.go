package wasip1

import (
	"os"
	"path"

	"github.com/sandboxd/sandboxd/sandbox/internal/hostfs"
)

// places are the paths that an operation acts at; a link's text is not one.
func (op PathOp) places() []string {
	if op.Kind == OpRename || op.Kind == OpLink {
		return []string{op.Path, op.NewPath}
	}
	return []string{op.Path}
}

// within reports EXDEV for a path whose folder lies in another mount of the
// host's than the mount point does: nested mounts are not carried in.
func (p mountPoint) within(paths ...string) Errno {
	for _, at := range paths {
		dir, err := p.root.OpenFile(path.Dir(path.Clean(at)), os.O_RDONLY|openNoWait, 0)
		if err != nil {
			return fsErrno(err)
		}
		e := p.sameMount(dir)
		if err := dir.Close(); e == Success {
			e = fsErrno(err)
		}
		if e != Success {
			return e
		}
	}
	return Success
}

// sameMount reports EXDEV for a file of another mount. The file is open, so no
// change of its path can matter any more.
func (p mountPoint) sameMount(f *os.File) Errno {
	id, err := hostfs.MountID(f)
	switch {
	case err != nil:
		return EIO
	case id != p.id:
		return EXDEV
	}
	return Success
}
