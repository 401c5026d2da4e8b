package wasip1

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"sort"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/internal/hostfs"
)

// MountSpec is one folder or file to show to the guest.
type MountSpec struct {
	// Source is open, O_PATH is enough. It stays the caller's.
	Source *os.File
	// Target is the guest's absolute, clean path.
	Target string
	// ReadWrite allows changes.
	ReadWrite bool
}

// LocalMounts serves mounts from this process, each through an os.Root of its
// own: neither "..", nor a symbolic link, nor a race with either leaves it. A
// file system that is mounted somewhere below is not carried in, and one that
// is an interface to the kernel is refused.
type LocalMounts struct {
	list []mountPoint
}

// mountPoint is one preopened folder: a real one (root), or one that exists
// only to hold files that were mounted one by one.
type mountPoint struct {
	name  string
	write bool
	root  *os.Root
	id    uint64 // of the host's mount that root lies in
	files map[string]mountFile
}

type mountFile struct {
	src   *os.File
	write bool
}

// OpenMounts opens the mounts. The result is safe for concurrent use and must
// be closed.
func OpenMounts(specs []MountSpec) (*LocalMounts, error) {
	m := &LocalMounts{}
	single := map[string]map[string]mountFile{}
	for _, spec := range specs {
		if err := m.openOne(spec, single); err != nil {
			for _, files := range single {
				err = errors.Join(err, closeFiles(files))
			}
			return nil, errors.Join(err, m.Close())
		}
	}
	folders := m.list
	for dir, files := range single {
		m.list = append(m.list, mountPoint{name: dir, files: files})
	}
	for _, p := range folders {
		if single[p.name] != nil {
			return nil, errors.Join(fmt.Errorf("files cannot be mounted into %q, which is itself mounted", p.name), m.Close())
		}
	}
	sort.SliceStable(m.list, func(i, j int) bool { return len(m.list[i].files) < len(m.list[j].files) })
	return m, nil
}

func (m *LocalMounts) openOne(spec MountSpec, single map[string]map[string]mountFile) error {
	info, err := spec.Source.Stat()
	if err != nil {
		return fmt.Errorf("mount %q: %w", spec.Target, err)
	}
	if err := hostfs.HoldsData(int(spec.Source.Fd())); err != nil {
		return fmt.Errorf("mount %q: %w", spec.Target, err)
	}
	switch {
	case info.IsDir():
		root, err := os.OpenRoot(reopenPath(spec.Source))
		if err != nil {
			return fmt.Errorf("mount %q: %w", spec.Target, err)
		}
		id, err := hostfs.MountID(spec.Source)
		if err != nil {
			return errors.Join(fmt.Errorf("mount %q: %w", spec.Target, err), root.Close())
		}
		m.list = append(m.list, mountPoint{name: spec.Target, write: spec.ReadWrite, root: root, id: id})
	case info.Mode().IsRegular():
		src, err := duplicate(spec.Source)
		if err != nil {
			return fmt.Errorf("mount %q: %w", spec.Target, err)
		}
		dir, name := path.Split(spec.Target)
		dir = path.Clean(dir)
		if single[dir] == nil {
			single[dir] = map[string]mountFile{}
		}
		single[dir][name] = mountFile{src: src, write: spec.ReadWrite}
	default:
		return fmt.Errorf("mount %q is neither a folder nor a regular file", spec.Target)
	}
	return nil
}

// Close closes the mounts; files that the guest still has open stay open.
func (m *LocalMounts) Close() error {
	var errs []error
	for _, p := range m.list {
		if p.root != nil {
			errs = append(errs, p.root.Close())
		}
		errs = append(errs, closeFiles(p.files))
	}
	m.list = nil
	return errors.Join(errs...)
}

func closeFiles(files map[string]mountFile) error {
	var errs []error
	for _, f := range files {
		errs = append(errs, f.src.Close())
	}
	return errors.Join(errs...)
}

// Names implements Mounts.
func (m *LocalMounts) Names() []string {
	names := make([]string, 0, len(m.list))
	for _, p := range m.list {
		names = append(names, p.name)
	}
	return names
}

// Do implements Mounts.
func (m *LocalMounts) Do(op PathOp) PathResult {
	if op.Mount < 0 || op.Mount >= len(m.list) || op.NewMount < 0 || op.NewMount >= len(m.list) {
		return failed(EBADF)
	}
	p := m.list[op.Mount]
	changes := op.Write || op.Create || op.Truncate || op.Kind != OpOpen && op.Kind != OpStat && op.Kind != OpReadlink
	switch {
	case p.root == nil:
		return p.doSingle(op)
	case changes && !p.write:
		return failed(EROFS)
	case (op.Kind == OpRename || op.Kind == OpLink) && op.Mount != op.NewMount:
		return failed(EXDEV)
	}
	if op.Kind != OpOpen { // which looks at the file that it opened
		if e := p.within(op.places()...); e != Success {
			return failed(e)
		}
	}
	switch op.Kind {
	case OpOpen:
		return p.open(op)
	case OpStat:
		return p.stat(op)
	case OpSetTimes:
		return failed(p.setTimes(op))
	case OpMkdir:
		return failed(fsErrno(p.root.Mkdir(op.Path, 0o777)))
	case OpRmdir, OpUnlink:
		return failed(p.remove(op))
	case OpRename:
		return failed(fsErrno(renameIn(p.root, op.Path, op.NewPath)))
	case OpLink:
		if info, err := p.root.Lstat(op.Path); op.Follow && err == nil && info.Mode()&fs.ModeSymlink != 0 {
			return failed(EINVAL)
		}
		return failed(fsErrno(p.root.Link(op.Path, op.NewPath)))
	case OpSymlink:
		if leaves(path.Join(path.Dir(op.Path), "x"), op.NewPath) {
			return failed(EPERM) // nothing here would follow it, but the host's programs might
		}
		return failed(fsErrno(p.root.Symlink(op.NewPath, op.Path)))
	case OpReadlink:
		target, err := p.root.Readlink(op.Path)
		return PathResult{Errno: fsErrno(err), Target: target}
	}
	return failed(ENOSYS)
}

func failed(e Errno) PathResult { return PathResult{Errno: e} }

// leaves reports whether a link's text, read from the folder of at, could lead
// out of the mount.
func leaves(at, target string) bool {
	if path.IsAbs(target) {
		return true
	}
	depth := strings.Count(path.Clean(at), "/")
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
		case "..":
			if depth--; depth < 0 {
				return true
			}
		default:
			depth++
		}
	}
	return false
}

func (p mountPoint) open(op PathOp) PathResult {
	if op.Directory && (op.Create || op.Truncate) {
		return failed(EINVAL)
	}
	if !op.Follow {
		if info, err := p.root.Lstat(op.Path); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			return failed(ELOOP)
		}
	}
	if op.Create || op.Truncate {
		// These act at the open itself, before the file could be looked at.
		if e := p.within(op.Path); e != Success {
			return failed(e)
		}
	}
	f, err := p.root.OpenFile(op.Path, op.hostFlags(), 0o666)
	if err != nil {
		return failed(fsErrno(err))
	}
	if e := p.sameMount(f); e != Success {
		_ = f.Close()
		return failed(e)
	}
	return checkOpened(f, op)
}

// hostFlags opens without ever waiting: a named pipe would otherwise block
// here for as long as nobody opens its other end.
func (op PathOp) hostFlags() int {
	flags := os.O_RDONLY | openNoWait
	switch {
	case op.Write && op.Read:
		flags = os.O_RDWR | openNoWait
	case op.Write:
		flags = os.O_WRONLY | openNoWait
	}
	for flag, on := range map[int]bool{os.O_CREATE: op.Create, os.O_EXCL: op.Exclusive, os.O_TRUNC: op.Truncate} {
		if on {
			flags |= flag
		}
	}
	return flags
}

// checkOpened lets only files and folders through: a device or a pipe in a
// mounted folder would be a way around the poller and the policy.
func checkOpened(f *os.File, op PathOp) PathResult {
	info, err := f.Stat()
	e := fsErrno(err)
	switch {
	case err != nil:
	case op.Directory && !info.IsDir():
		e = ENOTDIR
	case op.Write && info.IsDir():
		e = EISDIR
	case !info.IsDir() && !info.Mode().IsRegular():
		e = ENXIO
	default:
		return PathResult{File: f, Stat: statOf(info)}
	}
	if cerr := f.Close(); e == Success {
		e = fsErrno(cerr)
	}
	return failed(e)
}

func (p mountPoint) stat(op PathOp) PathResult {
	stat := p.root.Lstat
	if op.Follow {
		stat = p.root.Stat
	}
	info, err := stat(op.Path)
	if err != nil {
		return failed(fsErrno(err))
	}
	return PathResult{Stat: statOf(info)}
}

func (p mountPoint) setTimes(op PathOp) Errno {
	info, err := p.root.Lstat(op.Path)
	if err == nil && op.Follow {
		info, err = p.root.Stat(op.Path)
	}
	if err != nil {
		return fsErrno(err)
	}
	a, m := newTimes(statOf(info), op)
	if info.Mode()&fs.ModeSymlink != 0 {
		return fsErrno(setLinkTimes(p.root, op.Path, a.UnixNano(), m.UnixNano()))
	}
	return fsErrno(p.root.Chtimes(op.Path, a, m))
}

func newTimes(st Stat, op PathOp) (a, m time.Time) {
	if op.Atim != nil {
		st.Atim = *op.Atim
	}
	if op.Mtim != nil {
		st.Mtim = *op.Mtim
	}
	return time.Unix(0, st.Atim), time.Unix(0, st.Mtim)
}

func (p mountPoint) remove(op PathOp) Errno {
	info, err := p.root.Lstat(op.Path)
	switch {
	case err != nil:
		return fsErrno(err)
	case op.Kind == OpRmdir && !info.IsDir():
		return ENOTDIR
	case op.Kind == OpUnlink && info.IsDir():
		return EISDIR
	}
	return fsErrno(p.root.Remove(op.Path))
}

// doSingle serves a folder that holds single mounted files.
func (p mountPoint) doSingle(op PathOp) PathResult {
	name := path.Clean(op.Path)
	if name == "." {
		return p.singleDir(op)
	}
	f, ok := p.files[name]
	if !ok && (op.Kind == OpOpen && !op.Create || op.Kind == OpStat || op.Kind == OpReadlink) {
		return failed(ENOENT)
	}
	changes := op.Write || op.Truncate || op.Kind == OpSetTimes
	switch {
	case !ok, changes && !f.write:
		return failed(EROFS)
	case op.Kind == OpOpen && op.Exclusive:
		return failed(EEXIST)
	case op.Kind == OpOpen:
		op.Create = false
		h, err := os.OpenFile(reopenPath(f.src), op.hostFlags(), 0)
		if err != nil {
			return failed(fsErrno(err))
		}
		return checkOpened(h, op)
	case op.Kind == OpStat, op.Kind == OpSetTimes:
		info, err := f.src.Stat()
		if err == nil && op.Kind == OpSetTimes {
			a, m := newTimes(statOf(info), op)
			err = os.Chtimes(reopenPath(f.src), a, m)
		}
		if err != nil {
			return failed(fsErrno(err))
		}
		return PathResult{Stat: statOf(info)}
	case op.Kind == OpReadlink:
		return failed(EINVAL)
	}
	return failed(EROFS)
}

func (p mountPoint) singleDir(op PathOp) PathResult {
	if op.Kind != OpOpen && op.Kind != OpStat || op.Write || op.Create || op.Truncate {
		return failed(EROFS)
	}
	res := PathResult{Stat: Stat{Kind: typeDirectory, Nlink: 1}}
	if op.Kind == OpOpen {
		for name := range p.files {
			res.Entries = append(res.Entries, Dirent{Name: name, Kind: typeRegular})
		}
		sort.Slice(res.Entries, func(i, j int) bool { return res.Entries[i].Name < res.Entries[j].Name })
	}
	return res
}
