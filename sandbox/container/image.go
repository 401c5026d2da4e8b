//go:build linux

package container

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/sandboxd/sandboxd/sandbox"
)

const (
	snapshotter = "overlayfs"
	// maxBlobs and maxDocument bound an archive's shape: the number of its
	// files, and the size of a manifest or configuration.
	maxBlobs    = 1024
	maxDocument = 4 << 20
)

// importLease is the lease of the one import that can go on at a time.
func (h *host) importLease() string { return "import-" + h.cfg.Instance }

// imageName is an image's name in containerd: its digest, so that no caller
// can give one image another's name.
func imageName(dgst string) string { return "sandboxd.invalid/image@" + dgst }

// HasImage reports whether the image is unpacked and ready to start.
func (h *host) HasImage(ctx context.Context, dgst string) (bool, error) {
	if _, err := parseDigest(dgst); err != nil {
		return false, err
	}
	ctx = h.ctx(ctx)
	img, err := h.cl.GetImage(ctx, imageName(dgst))
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("container: look up image: %w", err)
	}
	ok, err := img.IsUnpacked(ctx, snapshotter)
	if err != nil {
		return false, fmt.Errorf("container: look up image: %w", err)
	}
	return ok, nil
}

func parseDigest(s string) (digest.Digest, error) {
	d, err := digest.Parse(s)
	if err != nil || d.Algorithm() != digest.SHA256 {
		return "", fmt.Errorf("%w: image digest must be sha256:<64 hex>", sandbox.ErrInvalid)
	}
	return d, nil
}

// Import keeps the image under a lease until its record exists; when anything
// is wrong the lease goes, and containerd's collector with it removes every
// blob and layer that nothing else holds.
func (h *host) Import(ctx context.Context, dgst string, archive io.Reader) (err error) {
	want, err := parseDigest(dgst)
	if err != nil {
		return err
	}
	h.importing.Lock() // one at a time: unpacking is bound by disk and CPU anyway
	defer h.importing.Unlock()
	ctx = h.ctx(ctx)
	// One that is there already is of an engine that died.
	if err := h.unlease(ctx, h.importLease()); err != nil {
		return fmt.Errorf("container: import: %w", err)
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupBound)
		defer cancel()
		e := h.unlease(end, h.importLease(), leases.SynchronousDelete)
		if e != nil && h.returns(end) {
			e = h.unlease(end, h.importLease(), leases.SynchronousDelete)
		}
		if e != nil {
			err = errors.Join(err, fmt.Errorf("container: end import: %w", e))
		}
		err = h.translate(sandbox.Container, err)
	}()
	lctx, err := h.lease(ctx, h.importLease())
	if err != nil {
		return fmt.Errorf("container: import: %w", err)
	}
	if err := h.ingest(lctx, io.LimitReader(archive, h.cfg.MaxArchiveBytes+1)); err != nil {
		return fmt.Errorf("container: import archive: %w", err)
	}
	return h.register(lctx, want)
}

// returns waits a while for a containerd that may be about to come back, from
// a crash or an upgrade.
func (h *host) returns(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, cleanupBound/3)
	defer cancel()
	serving, err := h.cl.IsServing(ctx)
	return err == nil && serving
}

// ingest stores each blob of the archive under the digest that its name
// claims. The layout's other files say nothing that the digest doesn't.
func (h *host) ingest(ctx context.Context, archive io.Reader) error {
	tr := tar.NewReader(archive)
	for n, total := 0, int64(0); ; n++ {
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
		}
		if total += hdr.Size; n > maxBlobs || total > h.cfg.MaxArchiveBytes {
			return fmt.Errorf("%w: archive holds too many files or bytes", sandbox.ErrInvalid)
		}
		hexpart, ok := strings.CutPrefix(path.Clean(hdr.Name), "blobs/sha256/")
		if !ok || hdr.Typeflag != tar.TypeReg {
			continue
		}
		dgst, err := parseDigest("sha256:" + hexpart)
		if err != nil {
			return err
		}
		desc := ocispec.Descriptor{Digest: dgst, Size: hdr.Size}
		if err := content.WriteBlob(ctx, h.cl.ContentStore(), "sandboxd-"+h.cfg.Instance+"-"+hexpart, tr, desc); err != nil {
			return fmt.Errorf("blob %s: %w", dgst, err)
		}
	}
}

// register checks the manifest and what it names, unpacks the layers and
// writes the image's record, which is what makes it exist.
func (h *host) register(ctx context.Context, want digest.Digest) error {
	store := h.cl.ContentStore()
	info, err := store.Info(ctx, want)
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("container: import: %w: archive has no manifest %s", sandbox.ErrInvalid, want)
	}
	if err != nil {
		return fmt.Errorf("container: import: %w", err)
	}
	target := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: want, Size: info.Size}
	if err := h.checkManifest(ctx, target); err != nil {
		return fmt.Errorf("container: import: %w", err)
	}
	// Labels on the blobs keep the whole image alive from its record down.
	if err := images.Walk(ctx, images.SetChildrenLabels(store, images.ChildrenHandler(store)), target); err != nil {
		return fmt.Errorf("container: import: %w", err)
	}
	rec := images.Image{Name: imageName(want.String()), Target: target, Labels: h.labels}
	if err := client.NewImage(h.cl, rec).Unpack(ctx, snapshotter); err != nil {
		return fmt.Errorf("container: unpack image: %w", err)
	}
	if _, err := h.cl.ImageService().Create(ctx, rec); err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("container: record image: %w", err)
	}
	return nil
}

// checkManifest refuses an image that is incomplete or that would unpack to
// more than the bound, or to device nodes.
func (h *host) checkManifest(ctx context.Context, target ocispec.Descriptor) error {
	store := h.cl.ContentStore()
	if target.Size > maxDocument {
		return fmt.Errorf("%w: manifest of %d bytes", sandbox.ErrInvalid, target.Size)
	}
	raw, err := content.ReadBlob(ctx, store, target)
	if err != nil {
		return fmt.Errorf("read manifest: %w", err)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(raw, &m); err != nil {
		return fmt.Errorf("%w: manifest: %w", sandbox.ErrInvalid, err)
	}
	if m.MediaType != "" && m.MediaType != ocispec.MediaTypeImageManifest || len(m.Layers) == 0 || m.Config.Size > maxDocument {
		return fmt.Errorf("%w: not a manifest of one image", sandbox.ErrInvalid)
	}
	for _, d := range append([]ocispec.Descriptor{m.Config}, m.Layers...) {
		got, err := store.Info(ctx, d.Digest)
		if err != nil || got.Size != d.Size {
			return fmt.Errorf("%w: blob %s is missing or has another size", sandbox.ErrInvalid, d.Digest)
		}
	}
	left := h.cfg.MaxUnpackedBytes
	for _, d := range m.Layers {
		if left, err = scanLayer(ctx, store, d, left); err != nil {
			return fmt.Errorf("layer %s: %w", d.Digest, err)
		}
	}
	return nil
}
