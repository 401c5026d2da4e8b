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
	if h.known(dgst) {
		h.use(dgst)
		return true, nil
	}
	ok, err := img.IsUnpacked(ctx, snapshotter)
	if err != nil {
		return false, fmt.Errorf("container: look up image: %w", err)
	}
	if ok {
		h.use(dgst)
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

// Missing implements Host. A blob that is here may still be of an import that
// fails: then the archive without it is refused, and a whole one is not.
func (h *host) Missing(ctx context.Context, blobs []string) ([]string, error) {
	ctx = h.ctx(ctx)
	var missing []string
	for _, s := range blobs {
		dgst, err := parseDigest(s)
		if err != nil {
			return nil, err
		}
		_, err = h.cl.ContentStore().Info(ctx, dgst)
		switch {
		case errdefs.IsNotFound(err):
			missing = append(missing, s)
		case err != nil:
			return nil, h.translate(sandbox.Container, fmt.Errorf("container: look up blob: %w", err))
		}
	}
	return missing, nil
}

// Import keeps the image under a lease until its record exists; when anything
// is wrong the lease goes, and containerd's collector with it removes every
// blob and layer that nothing else holds. The lease's name is one that Collect
// takes for live meanwhile.
func (h *host) Import(ctx context.Context, dgst string, archive io.Reader) (err error) {
	want, err := parseDigest(dgst)
	if err != nil {
		return err
	}
	id, err := newID("import-" + h.cfg.Instance)
	if err != nil {
		return fmt.Errorf("container: import: %w", err)
	}
	if err := h.begin(id); err != nil {
		return fmt.Errorf("container: import: %w", err)
	}
	defer h.end(id, nil)
	ctx = h.ctx(ctx)
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupBound)
		defer cancel()
		e := h.unlease(end, id, leases.SynchronousDelete)
		if e != nil && h.returns(end) {
			e = h.unlease(end, id, leases.SynchronousDelete)
		}
		if e != nil {
			err = errors.Join(err, fmt.Errorf("container: end import: %w", e))
		}
		err = h.translate(sandbox.Container, err)
	}()
	h.forgetLayers(dgst) // of an image that was removed
	lctx, err := h.lease(ctx, id)
	if err != nil {
		return fmt.Errorf("container: import: %w", err)
	}
	if err := h.ingest(lctx, id, io.LimitReader(archive, h.cfg.MaxArchiveBytes+1)); err != nil {
		return fmt.Errorf("container: import archive: %w", err)
	}
	return h.register(lctx, id, want)
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
func (h *host) ingest(ctx context.Context, id string, archive io.Reader) error {
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
		if err := content.WriteBlob(ctx, h.cl.ContentStore(), id+"-"+hexpart, tr, desc); err != nil {
			return fmt.Errorf("blob %s: %w", dgst, err)
		}
	}
}

// register checks the manifest and what it names, unpacks the layers and
// writes the image's record, which is what makes it exist.
func (h *host) register(ctx context.Context, lease string, want digest.Digest) error {
	store := h.cl.ContentStore()
	if err := h.hold(ctx, lease, want); err != nil {
		return fmt.Errorf("container: import: %w", err)
	}
	info, err := store.Info(ctx, want)
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("container: import: %w: archive has no manifest %s", sandbox.ErrInvalid, want)
	}
	if err != nil {
		return fmt.Errorf("container: import: %w", err)
	}
	target := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: want, Size: info.Size}
	if err := h.checkManifest(ctx, lease, target); err != nil {
		return fmt.Errorf("container: import: %w", err)
	}
	// Labels on the blobs keep the whole image alive from its record down.
	if err := images.Walk(ctx, images.SetChildrenLabels(store, images.ChildrenHandler(store)), target); err != nil {
		return fmt.Errorf("container: import: %w", err)
	}
	rec := images.Image{Name: imageName(want.String()), Target: target, Labels: h.labels}
	if err := h.unpack(ctx, rec); err != nil {
		return fmt.Errorf("container: unpack image: %w", err)
	}
	if _, err := h.cl.ImageService().Create(ctx, rec); err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("container: record image: %w", err)
	}
	return nil
}

// hold has the lease keep a blob, if it is there.
func (h *host) hold(ctx context.Context, lease string, dgst digest.Digest) error {
	err := h.cl.LeasesService().AddResource(ctx, leases.Lease{ID: lease}, leases.Resource{ID: dgst.String(), Type: "content"})
	if err := ignoreNotFound(err); err != nil {
		return fmt.Errorf("hold blob %s: %w", dgst, err)
	}
	return nil
}

// unpack makes the image's snapshots. Only one goes on at a time: images share
// layers, and it is bound by disk and CPU anyway.
func (h *host) unpack(ctx context.Context, rec images.Image) error {
	h.unpacking.Lock()
	defer h.unpacking.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	return client.NewImage(h.cl, rec).Unpack(ctx, snapshotter)
}

// checkManifest refuses an image that is incomplete or that would unpack to
// more than the bound, or to device nodes.
func (h *host) checkManifest(ctx context.Context, lease string, target ocispec.Descriptor) error {
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
	if m.MediaType != "" && m.MediaType != ocispec.MediaTypeImageManifest || len(m.Layers) == 0 || len(m.Layers) > maxBlobs || m.Config.Size > maxDocument {
		return fmt.Errorf("%w: not a manifest of one image", sandbox.ErrInvalid)
	}
	for _, d := range append([]ocispec.Descriptor{m.Config}, m.Layers...) {
		// Held before it is looked for: it may have come with another import,
		// which may fail.
		if _, err := parseDigest(d.Digest.String()); err != nil {
			return err
		}
		if err := h.hold(ctx, lease, d.Digest); err != nil {
			return err
		}
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
