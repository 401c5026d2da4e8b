//go:build linux

package engine

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox"
)

const (
	maxManifest    = 1 << 20
	maxLayers      = 256
	layoutFile     = `{"imageLayoutVersion":"1.0.0"}`
	ociManifest    = "application/vnd.oci.image.manifest.v1+json"
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
)

// archive is one image of an OCI layout folder, ready to be streamed as an
// OCI image archive. It holds that image and nothing else of the folder.
type archive struct {
	root  *os.Root
	index []byte
	blobs []blob
	total int64
}

type blob struct {
	name string
	size int64
}

func (b blob) digest() string { return "sha256:" + path.Base(b.name) }

type descriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"`
}

// openArchive finds the image's blobs below the layout folder. It follows no
// link out of the folder. The engine checks every digest, so this does not.
func openArchive(image sandbox.Image) (*archive, error) {
	root, err := os.OpenRoot(image.Path)
	if err != nil {
		return nil, fmt.Errorf("%w: image layout: %w", sandbox.ErrInvalid, err)
	}
	a := &archive{root: root}
	if err := a.collect(image.Digest); err != nil {
		_ = root.Close()
		return nil, fmt.Errorf("%w: image layout %q: %w", sandbox.ErrInvalid, image.Path, err)
	}
	return a, nil
}

func (a *archive) close() { _ = a.root.Close() }

func (a *archive) collect(digest string) error {
	name, size, err := a.add(digest)
	if err != nil {
		return err
	}
	if size > maxManifest {
		return fmt.Errorf("a manifest of %d bytes", size)
	}
	raw, err := a.root.ReadFile(name)
	if err != nil {
		return err
	}
	var m struct {
		MediaType string       `json:"mediaType"`
		Config    descriptor   `json:"config"`
		Layers    []descriptor `json:"layers"`
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	if m.MediaType == "" {
		m.MediaType = ociManifest
	}
	if m.MediaType != ociManifest && m.MediaType != dockerManifest {
		return fmt.Errorf("%q is not an image manifest", printable(m.MediaType, maxName))
	}
	if len(m.Layers) > maxLayers {
		return fmt.Errorf("%d layers, over %d", len(m.Layers), maxLayers)
	}
	for _, d := range append([]descriptor{m.Config}, m.Layers...) {
		if _, _, err := a.add(d.Digest); err != nil {
			return err
		}
	}
	a.index, err = json.Marshal(map[string]any{
		"schemaVersion": 2,
		"manifests":     []descriptor{{MediaType: m.MediaType, Digest: digest, Size: size}},
	})
	return err
}

// add notes a blob once, and gives its name and size.
func (a *archive) add(digest string) (string, int64, error) {
	if err := checkDigest(digest); err != nil {
		return "", 0, fmt.Errorf("digest %q is not sha256:<64 hex>", printable(digest, maxName))
	}
	name := path.Join("blobs", "sha256", strings.TrimPrefix(digest, "sha256:"))
	for _, b := range a.blobs {
		if b.name == name {
			return name, b.size, nil
		}
	}
	fi, err := a.root.Lstat(name)
	if err != nil {
		return "", 0, err
	}
	if !fi.Mode().IsRegular() {
		return "", 0, &fs.PathError{Op: "read", Path: name, Err: fs.ErrInvalid}
	}
	a.blobs = append(a.blobs, blob{name, fi.Size()})
	a.total += fi.Size()
	return name, fi.Size(), nil
}

// digests names the blobs.
func (a *archive) digests() []string {
	var list []string
	for _, b := range a.blobs {
		list = append(list, b.digest())
	}
	return list
}

// only leaves the blobs that are named.
func (a *archive) only(digests []string) {
	a.blobs = slices.DeleteFunc(a.blobs, func(b blob) bool { return !slices.Contains(digests, b.digest()) })
	a.total = 0
	for _, b := range a.blobs {
		a.total += b.size
	}
}

// write streams the archive; progress hears of the blobs' bytes.
func (a *archive) write(w io.Writer, progress func(sent, total int64)) error {
	t := tar.NewWriter(w)
	for _, f := range []struct {
		name string
		data []byte
	}{{"oci-layout", []byte(layoutFile)}, {"index.json", a.index}} {
		if err := writeHeader(t, f.name, int64(len(f.data))); err != nil {
			return err
		}
		if _, err := t.Write(f.data); err != nil {
			return err
		}
	}
	var sent int64
	for _, b := range a.blobs {
		if err := a.writeBlob(t, b, func(n int64) {
			sent += n
			progress(sent, a.total)
		}); err != nil {
			return err
		}
	}
	return t.Close()
}

func (a *archive) writeBlob(t *tar.Writer, b blob, progress func(int64)) error {
	f, err := a.root.Open(b.name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := writeHeader(t, b.name, b.size); err != nil {
		return err
	}
	const step = 1 << 20
	for left := b.size; left > 0; {
		n, err := io.CopyN(t, f, min(left, step))
		left -= n
		progress(n)
		if err != nil {
			return err
		}
	}
	return nil
}

func writeHeader(t *tar.Writer, name string, size int64) error {
	return t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size, Format: tar.FormatPAX})
}
