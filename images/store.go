package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// store is the cache folder:
//
//	oci/     one OCI image layout for all images, so that they share blobs
//	refs/    what each reference was built to
//	lock/    the version lock of each image, by its digest; sbom/ its bill of materials
//	shared/  the layers that many images have
//	npm/     npm's cache
//	locks/   files to lock; tmp/ what is not yet whole
//
// Files get to their place whole, by rename, and a reference's record comes
// last: it never names what is not there.
type store struct {
	dir string
	log *slog.Logger
}

// record is a reference's file.
type record struct {
	Ref        Ref       `json:"ref"`
	Digest     string    `json:"digest"`
	Entrypoint []string  `json:"entrypoint"`
	Cmd        []string  `json:"cmd,omitempty"`
	Env        []string  `json:"env"`
	Dir        string    `json:"dir"`
	Blobs      []blob    `json:"blobs"` // manifest, configuration, layers
	Created    time.Time `json:"created"`
}

// size is what the image takes in bytes.
func (r record) size() int64 {
	var n int64
	for _, b := range r.Blobs {
		n += b.Size
	}
	return n
}

func openStore(dir string, log *slog.Logger) (*store, error) {
	s := &store{dir: dir, log: log}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	// Whoever can write here decides what runs, with this user's secrets.
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return nil, err
	case !info.IsDir() || !ours(info):
		return nil, fmt.Errorf("images: cache folder %q is not a folder that only this user can write to: %w", dir, fs.ErrPermission)
	}
	for _, d := range []string{"oci/blobs/sha256", "refs", "lock", "sbom", "shared", "locks", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return nil, err
		}
	}
	if err := sweep(s.path("tmp"), log); err != nil {
		return nil, err
	}
	layout := s.path("oci", v1.ImageLayoutFile)
	if exists(layout) {
		return s, nil
	}
	w, err := newWork(context.Background(), s.path("tmp"))
	if err != nil {
		return nil, err
	}
	_, err = s.putJSON(w, layout, v1.ImageLayout{Version: v1.ImageLayoutVersion})
	return s, errors.Join(err, w.close())
}

func (s *store) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

func (s *store) blobPath(digest string) string {
	return s.path("oci", "blobs", "sha256", strings.TrimPrefix(digest, "sha256:"))
}

// lock takes one of the store's locks by name; the caller closes it.
func (s *store) lock(ctx context.Context, name string, shared bool) (*os.File, error) {
	return lockFile(ctx, s.path("locks", name), shared)
}

// has reports whether the blob is there, by its size. Its hash is checked by
// whoever takes it in to run it.
func (s *store) has(b blob) bool {
	info, err := os.Lstat(s.blobPath(b.Digest))
	return err == nil && info.Mode().IsRegular() && info.Size() == b.Size
}

// adopt moves a finished file to its place among the blobs.
func (s *store) adopt(file string, b blob) error {
	if s.has(b) {
		return os.Remove(file)
	}
	if err := os.Chmod(file, 0o400); err != nil {
		return err
	}
	return os.Rename(file, s.blobPath(b.Digest))
}

// put writes a file whole: in the work folder first, then by rename.
func (s *store) put(w *work, path string, data []byte) error {
	tmp, err := os.CreateTemp(w.dir, "file-")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	if err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

func (s *store) putJSON(w *work, path string, v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return data, s.put(w, path, data)
}

// putBlob stores bytes by their hash.
func (s *store) putBlob(w *work, data []byte) (blob, error) {
	h := newHashWriter(io.Discard)
	if _, err := h.Write(data); err != nil {
		return blob{}, err
	}
	b := h.blob()
	if s.has(b) {
		return b, nil
	}
	return b, s.put(w, s.blobPath(b.Digest), data)
}

// shared returns a layer that is remembered by name, or makes it, once for all
// who ask at the same time. fresh makes it anew in any case.
func (s *store) shared(ctx context.Context, name string, fresh bool, make func(*work) (layerRecord, error)) (layerRecord, error) {
	path := s.path("shared", name+".json")
	lookup := func() (r layerRecord, ok bool) {
		ok = !fresh && readJSON(path, &r) == nil && s.has(r.Layer)
		return r, ok
	}
	if r, ok := lookup(); ok {
		return r, nil
	}
	lock, err := s.lock(ctx, name, false)
	if err != nil {
		return layerRecord{}, err
	}
	defer lock.Close() //nolint:errcheck // closing a lock's file loses nothing
	if r, ok := lookup(); ok {
		return r, nil
	}
	w, err := newWork(ctx, s.path("tmp"))
	if err != nil {
		return layerRecord{}, err
	}
	r, err := make(w)
	if err == nil {
		_, err = s.putJSON(w, path, r)
	}
	return r, errors.Join(err, w.close())
}

// record reads a reference's record. It errs with ErrNotBuilt or ErrCorrupt.
func (s *store) record(key string) (r record, err error) {
	err = readJSON(s.path("refs", key+".json"), &r)
	if errors.Is(err, fs.ErrNotExist) {
		return r, ErrNotBuilt
	}
	if err != nil || !digestRE.MatchString(r.Digest) || len(r.Blobs) < 2 {
		return r, fail(ErrCorrupt, "the image cache has an unreadable record", "")
	}
	return r, nil
}

func (r record) image(s *store, lock *Lock) Image {
	return Image{
		Ref: r.Ref, Digest: r.Digest, Path: s.path("oci"), Entrypoint: r.Entrypoint, Cmd: r.Cmd, Env: r.Env, Dir: r.Dir, Created: r.Created,
		Size: r.size(), Lock: lock,
	}
}

// image reads what a reference was built to. It errs with ErrNotBuilt, or with
// ErrCorrupt and the lock to build it again by.
func (s *store) image(key string) (Image, error) {
	r, err := s.record(key)
	if err != nil {
		return Image{}, err
	}
	img := r.image(s, &Lock{})
	if err := readJSON(s.lockPath(r.Digest), img.Lock); err != nil {
		return Image{}, fail(ErrCorrupt, "the image cache has lost the lock of "+r.Ref.String(), "")
	}
	// Two references can mean one image, whose lock then has the other's name.
	img.Lock.Ref = r.Ref.String()
	for _, b := range r.Blobs {
		if !s.has(b) {
			return img, fail(ErrCorrupt, "the image cache has lost a part of "+r.Ref.String(), "")
		}
	}
	return img, nil
}

func (s *store) lockPath(digest string) string {
	return s.path("lock", strings.TrimPrefix(digest, "sha256:")+".json")
}

func (s *store) billPath(digest string) string {
	return s.path("sbom", strings.TrimPrefix(digest, "sha256:")+".json")
}

// index adds a manifest under its reference to the layout's index, or, with an
// empty descriptor, takes the reference out.
func (s *store) index(ctx context.Context, w *work, ref string, d v1.Descriptor) error {
	lock, err := s.lock(ctx, "index", false)
	if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // closing a lock's file loses nothing
	path := s.path("oci", v1.ImageIndexFile)
	var idx v1.Index
	if err := readJSON(path, &idx); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("writing the layout's damaged index anew", "error", err)
		idx = v1.Index{}
	}
	idx.Versioned, idx.MediaType = specs.Versioned{SchemaVersion: 2}, v1.MediaTypeImageIndex
	idx.Manifests = slices.DeleteFunc(idx.Manifests, func(m v1.Descriptor) bool { return m.Annotations[v1.AnnotationRefName] == ref })
	if d.Digest != "" {
		d.Annotations = map[string]string{v1.AnnotationRefName: ref}
		p := hostPlatform()
		d.Platform = &p
		idx.Manifests = append(idx.Manifests, d)
	}
	_, err = s.putJSON(w, path, idx)
	return err
}

func readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return nil
}
