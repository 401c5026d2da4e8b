package images

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
)

// Bounds of one package that is fetched here, in bytes: Node's own is the
// largest. Its description lists every version that there ever was.
const (
	maxTarball  = 256 << 20
	maxUnpacked = 1 << 30
	maxDocument = 64 << 20
)

// npmPin is one package of the npm registry, by its hash.
type npmPin struct {
	name, version string
	integrity     string // sha512-…; empty means: what the registry promises
}

// brokenOff tells a full disk from a registry that stopped sending.
func brokenOff(err error, name string) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fail(ErrTool, "no space left on the disk while fetching "+name, "free some, or move the cache folder with SANDBOXD_CACHE")
	}
	return fail(ErrNetwork, "the configured npm registry broke off while it sent "+name, "try again")
}

// fetchPinned fetches a package without npm, which it may be the first part
// of, checks its hash, and unpacks its files into dir. It returns the hash.
func (b *Builder) fetchPinned(ctx context.Context, w *work, pin npmPin, dir string) (string, error) {
	address, promised, err := b.locate(ctx, pin)
	if err != nil {
		return "", err
	}
	want := pin.integrity
	if want == "" {
		want = promised
	}
	if !sriRE.MatchString(want) {
		return "", fail(ErrRefused, "the configured npm registry promises no sha512 hash of "+pin.name+"@"+pin.version, "")
	}
	body, err := b.cfg.Outlet.Get(ctx, KindNPM, address)
	if err != nil {
		return "", err
	}
	defer body.Close() //nolint:errcheck // only read from
	file, err := os.CreateTemp(w.dir, "tarball-")
	if err != nil {
		return "", err
	}
	defer file.Close() //nolint:errcheck // the work folder goes as a whole
	sum := sha512.New()
	n, err := io.Copy(io.MultiWriter(file, sum), io.LimitReader(body, maxTarball+1))
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err != nil {
		return "", brokenOff(err, pin.name)
	}
	if got := "sha512-" + base64.StdEncoding.EncodeToString(sum.Sum(nil)); n > maxTarball || got != want {
		return "", fail(ErrRefused, "the registry's tarball of "+pin.name+"@"+pin.version+" does not have the pinned hash", "do not use that registry until you know why")
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	return want, unpackPackage(ctx, file, pin.name, dir)
}

// locate asks the registry where a version's tarball is and what its hash is.
func (b *Builder) locate(ctx context.Context, pin npmPin) (address, integrity string, err error) {
	body, err := b.cfg.Outlet.Get(ctx, KindNPM, url.PathEscape(pin.name))
	if err != nil {
		return "", "", err
	}
	defer body.Close() //nolint:errcheck // only read from
	var doc struct {
		Versions map[string]struct {
			Dist struct{ Tarball, Integrity string }
		}
	}
	if err := json.NewDecoder(io.LimitReader(body, maxDocument)).Decode(&doc); err != nil {
		return "", "", fail(ErrNetwork, "the configured npm registry's answer about "+pin.name+" is not readable", npmConfigHint)
	}
	v, ok := doc.Versions[pin.version]
	if !ok || v.Dist.Tarball == "" {
		return "", "", fail(ErrNotFound, "the configured npm registry has no "+pin.name+"@"+pin.version, "")
	}
	return v.Dist.Tarball, v.Dist.Integrity, nil
}

// unpackPackage writes the regular files of an npm tarball below dir, without
// the folder that they all lie in. Anything else in it is a refusal.
func unpackPackage(ctx context.Context, r io.Reader, name, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // every file in it is closed
	broken := func(what string) error {
		return fail(ErrRefused, "the tarball of "+name+" "+what, "")
	}
	z, err := gzip.NewReader(r)
	if err != nil {
		return broken("is not readable")
	}
	var total int64
	for t := tar.NewReader(z); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return broken("is not readable")
		}
		_, file, _ := strings.Cut(h.Name, "/")
		if h.Typeflag == tar.TypeDir {
			continue
		}
		if h.Typeflag != tar.TypeReg || !filepath.IsLocal(file) || path.Clean(file) != file {
			return broken("holds " + quoted(h.Name) + ", which is no file of its own")
		}
		if total += h.Size; total > maxUnpacked {
			return broken("unpacks to over 1 GiB")
		}
		if err := writeBelow(root, file, h, t); err != nil {
			return err
		}
	}
}

func writeBelow(root *os.Root, file string, h *tar.Header, r io.Reader) error {
	if err := root.MkdirAll(path.Dir(file), 0o700); err != nil {
		return err
	}
	f, err := root.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, fs.FileMode(h.Mode&0o100|0o600))
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
