package images

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
)

// The one user of every image.
const (
	userID   = 65532
	userName = "mcp"
	userHome = "/home/mcp"
)

// rootfs is a root file system put together in memory, by path without the
// leading slash.
type rootfs struct {
	entries map[string]*entry
	bytes   int64
}

type entry struct {
	typ  byte
	mode int64
	uid  int
	link string
	data []byte
}

const maxRootfs = 1 << 30

func newRootfs() *rootfs { return &rootfs{entries: map[string]*entry{}} }

// merged are the folders that a merged /usr keeps as links.
var merged = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// place maps a path of a distribution package to its place here, or to nothing
// if it has none.
func place(name string) (string, error) {
	p := path.Clean("/" + name)[1:]
	if strings.Contains("/"+name+"/", "/../") {
		return "", fail(ErrRefused, "a distribution package holds the path "+quoted(name), "")
	}
	if first, _, _ := strings.Cut(p, "/"); slices.Contains(merged, first) {
		p = "usr/" + p
	}
	return p, nil
}

// left out: what no server reads. Licences stay.
func leftOut(p string) bool {
	for _, dir := range []string{"usr/share/man", "usr/share/info", "usr/share/locale", "usr/share/lintian", "usr/share/bug", "etc/cron.daily", "etc/init.d"} {
		if p == dir || strings.HasPrefix(p, dir+"/") {
			return true
		}
	}
	return strings.HasPrefix(p, "usr/share/doc/") && path.Base(p) != "copyright"
}

// add merges one package's files.
func (r *rootfs) add(stream io.Reader) error {
	t := tar.NewReader(stream)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		p, err := place(h.Name)
		if err != nil {
			return err
		}
		if p == "" || leftOut(p) {
			continue
		}
		e := &entry{typ: h.Typeflag, mode: h.Mode, link: h.Linkname}
		switch h.Typeflag {
		case tar.TypeDir:
			if old := r.entries[p]; old != nil && (old.typ == tar.TypeDir || old.typ == tar.TypeSymlink) {
				continue
			}
		case tar.TypeSymlink:
			e.mode = 0o777
		case tar.TypeReg:
			if r.bytes += h.Size; r.bytes > maxRootfs {
				return fail(ErrRefused, "the distribution packages hold over 1 GiB", "ask for fewer extra packages")
			}
			if e.data, err = io.ReadAll(t); err != nil {
				return err
			}
		case tar.TypeLink:
			q, err := place(h.Linkname)
			if err != nil {
				return err
			}
			target := r.entries[q]
			if target == nil || target.typ != tar.TypeReg {
				return fail(ErrRefused, "a distribution package holds a hard link to nothing: "+quoted(h.Name), "")
			}
			e = target
		default:
			return fail(ErrRefused, fmt.Sprintf("a distribution package holds %s of type %q", quoted(h.Name), h.Typeflag), "")
		}
		r.entries[p] = e
	}
}

// complete adds what every image has: the links of a merged /usr, the user,
// the certificates as one file, and the folders that a runtime mounts on.
func (r *rootfs) complete() error {
	r.parents()
	for _, m := range merged {
		if m == "bin" || m == "sbin" || m == "lib" || r.entries["usr/"+m] != nil {
			r.entries[m] = &entry{typ: tar.TypeSymlink, link: "usr/" + m}
			r.entries["usr/"+m] = &entry{typ: tar.TypeDir, mode: 0o755}
		}
	}
	if err := r.certificates(); err != nil {
		return err
	}
	files := map[string]string{
		"etc/passwd": fmt.Sprintf("root:x:0:0:root:/root:/usr/sbin/nologin\n%s:x:%d:%d::%s:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
			userName, userID, userID, userHome),
		"etc/group":         fmt.Sprintf("root:x:0:\n%s:x:%d:\nnogroup:x:65534:\n", userName, userID),
		"etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
		"etc/hosts":         "127.0.0.1\tlocalhost\n::1\tlocalhost\n",
		"etc/hostname":      "sandbox\n",
		"etc/resolv.conf":   "",
	}
	for name, text := range files {
		r.entries[name] = &entry{typ: tar.TypeReg, mode: 0o644, data: []byte(text)}
	}
	r.entries["etc/localtime"] = &entry{typ: tar.TypeSymlink, link: "/usr/share/zoneinfo/Etc/UTC"}
	for name, mode := range map[string]int64{"tmp": 0o1777, "proc": 0o555, "dev": 0o755, "sys": 0o555, "run": 0o755, "var/tmp": 0o1777, "app": 0o555} {
		r.entries[name] = &entry{typ: tar.TypeDir, mode: mode}
	}
	r.entries[userHome[1:]] = &entry{typ: tar.TypeDir, mode: 0o700, uid: userID}
	r.parents()
	return nil
}

// certificates joins the distribution's authorities into the one file that
// OpenSSL, GnuTLS, Go and Python look for.
func (r *rootfs) certificates() error {
	const dir = "usr/share/ca-certificates/"
	const bundle = "etc/ssl/certs/ca-certificates.crt"
	var all bytes.Buffer
	if below := r.entries[bundle]; below != nil {
		all.Write(below.data) // joined already, in the base below
	}
	for _, name := range slices.Sorted(maps.Keys(r.entries)) {
		e := r.entries[name]
		if !strings.HasPrefix(name, dir) || e.typ != tar.TypeReg || !strings.HasSuffix(name, ".crt") {
			continue
		}
		all.Write(bytes.TrimRight(e.data, "\n"))
		all.WriteByte('\n')
		delete(r.entries, name)
	}
	if all.Len() == 0 {
		return fail(ErrTool, "the distribution's ca-certificates package holds no certificates", "")
	}
	r.entries[bundle] = &entry{typ: tar.TypeReg, mode: 0o644, data: all.Bytes()}
	return nil
}

// parents adds the folders that entries lie in and no package listed.
func (r *rootfs) parents() {
	for _, name := range slices.Collect(maps.Keys(r.entries)) {
		for d := path.Dir(name); d != "."; d = path.Dir(d) {
			if r.entries[d] == nil {
				r.entries[d] = &entry{typ: tar.TypeDir, mode: 0o755}
			}
		}
	}
}

// write makes the layer, in the order of names.
func (r *rootfs) write(file string) (blob, error) {
	l, err := newLayer(file)
	if err != nil {
		return blob{}, err
	}
	for _, name := range slices.Sorted(maps.Keys(r.entries)) {
		e := r.entries[name]
		switch e.typ {
		case tar.TypeDir:
			err = l.dir(name, e.mode, e.uid)
		case tar.TypeSymlink:
			err = l.symlink(name, e.link)
		default:
			err = l.regular(name, e.mode, int64(len(e.data)), bytes.NewReader(e.data))
		}
		if err != nil {
			l.abandon()
			return blob{}, err
		}
	}
	return l.finish()
}
