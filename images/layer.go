package images

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// blob is content of the store, by its hash.
type blob struct {
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
}

// layerTime is the one time stamp of every file in every layer. It is the one
// that npm itself gives to files, so that tools which mistrust 1970 are happy.
var layerTime = time.Date(1985, 10, 26, 8, 15, 0, 0, time.UTC)

// layerWriter writes one uncompressed layer: the same entries always make the
// same bytes. Layers stay uncompressed because they are made and unpacked on
// one machine, where hashing once beats compressing.
type layerWriter struct {
	file *os.File
	hash *hashWriter
	buf  *bufio.Writer
	tar  *tar.Writer
}

// hashWriter counts and hashes on the way through.
type hashWriter struct {
	w   io.Writer
	sum interface {
		io.Writer
		Sum([]byte) []byte
	}
	n int64
}

func newHashWriter(w io.Writer) *hashWriter { return &hashWriter{w: w, sum: sha256.New()} }

func (h *hashWriter) Write(p []byte) (int, error) {
	n, err := h.w.Write(p)
	h.sum.Write(p[:n]) //nolint:errcheck // a hash's Write never fails
	h.n += int64(n)
	return n, err
}

func (h *hashWriter) blob() blob {
	return blob{Digest: fmt.Sprintf("sha256:%x", h.sum.Sum(nil)), Size: h.n}
}

func newLayer(file string) (*layerWriter, error) {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	l := &layerWriter{file: f, hash: newHashWriter(f)}
	l.buf = bufio.NewWriterSize(l.hash, 1<<20)
	l.tar = tar.NewWriter(l.buf)
	return l, nil
}

// finish completes the layer; abandon closes one that failed.
func (l *layerWriter) finish() (blob, error) {
	err := errors.Join(l.tar.Close(), l.buf.Flush())
	return l.hash.blob(), errors.Join(err, l.file.Close())
}

func (l *layerWriter) abandon() { _ = l.file.Close() }

// header fills in what all entries share. Set-uid, set-gid and, but for
// folders, sticky bits never get into a layer.
func header(typ byte, name string, mode int64) *tar.Header {
	keep := int64(0o777)
	if typ == tar.TypeDir {
		keep = 0o1777
		name += "/"
	}
	return &tar.Header{Typeflag: typ, Name: name, Mode: mode & keep, ModTime: layerTime, Format: tar.FormatPAX}
}

func (l *layerWriter) dir(name string, mode int64, uid int) error {
	h := header(tar.TypeDir, name, mode)
	h.Uid, h.Gid = uid, uid
	return l.tar.WriteHeader(h)
}

func (l *layerWriter) symlink(name, target string) error {
	h := header(tar.TypeSymlink, name, 0o777)
	h.Linkname = target
	return l.tar.WriteHeader(h)
}

func (l *layerWriter) hardlink(name, target string) error {
	h := header(tar.TypeLink, name, 0o444)
	h.Linkname = target
	return l.tar.WriteHeader(h)
}

func (l *layerWriter) regular(name string, mode, size int64, r io.Reader) error {
	h := header(tar.TypeReg, name, mode)
	h.Size = size
	if err := l.tar.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(l.tar, io.LimitReader(r, size))
	if err == nil && n != size {
		err = fmt.Errorf("%s: %d of %d bytes", name, n, size)
	}
	return err
}

// tree adds what lies below dir as the folder at, read-only and owned by root.
// It refuses what has no place in a sealed image: links that leave dir,
// devices, and names that an unpacker would take for a whiteout.
func (l *layerWriter) tree(ctx context.Context, dir, at string, skip func(name string) bool) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // only read from
	return fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil || skip(name) {
			return err
		}
		full := path.Join(at, name)
		if strings.HasPrefix(path.Base(name), ".wh.") {
			return fail(ErrRefused, "the package holds a file named "+quoted(name)+", which would hide files of the image", "")
		}
		switch {
		case e.IsDir():
			return l.dir(full, 0o555, 0)
		case e.Type() == fs.ModeSymlink:
			return l.link(root, name, full)
		case e.Type().IsRegular():
			return l.packFile(root, name, full)
		}
		return fail(ErrRefused, "the package holds "+quoted(name)+", which is neither a file, a folder nor a link", "")
	})
}

func (l *layerWriter) link(root *os.Root, name, full string) error {
	target, err := root.Readlink(name)
	if err != nil {
		return err
	}
	inside := !path.IsAbs(target) && filepath.IsLocal(path.Join(path.Dir(name), target))
	if inside {
		// Links on the way could lead out even so: the root refuses those.
		_, err := root.Stat(name)
		inside = err == nil || errors.Is(err, fs.ErrNotExist)
	}
	if !inside {
		return fail(ErrRefused, "the package holds a link "+quoted(name)+" that leads out of it, to "+quoted(target), "")
	}
	return l.symlink(full, target)
}

func (l *layerWriter) packFile(root *os.Root, name, full string) error {
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read from
	info, err := f.Stat()
	if err != nil {
		return err
	}
	mode := int64(0o444)
	if info.Mode()&0o100 != 0 {
		mode = 0o555
	}
	return l.regular(full, mode, info.Size(), f)
}
