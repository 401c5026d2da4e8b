package images

import (
	"archive/tar"
	"context"
	"encoding/json"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Media types of what an archive carries beside an image, each as the one layer
// of an artifact manifest whose subject is the image (OCI image specification
// 1.1, "Guidelines for Artifact Usage").
const (
	lockType = "application/vnd.sandboxd.lock.v1+json"
	billType = "application/vnd.cyclonedx+json"
)

// Export writes images as one OCI image archive (a tar of an OCI image layout),
// with the version lock and the bill of materials of each: all that another
// host's Import needs. Layers that images share are in it once. The same images
// make the same bytes. It errs with ErrNotBuilt for what is not here.
func (b *Builder) Export(ctx context.Context, to io.Writer, refs ...Ref) error {
	if len(refs) == 0 {
		return fail(ErrReference, "no image is named to be exported", "sandboxd image ls shows their names")
	}
	// Whoever removes blobs waits until nobody reads them.
	reading, err := b.st.lock(ctx, "store", true)
	if err != nil {
		return err
	}
	defer reading.Close() //nolint:errcheck // closing a lock's file loses nothing
	a := &exporter{st: b.st, inline: map[string][]byte{}, files: map[string]blob{}}
	for _, ref := range refs {
		if ref.Kind == KindWASM {
			return fail(ErrReference, ref.String()+" is a file already", "copy it")
		}
		if _, err := b.Inspect(ref); err != nil {
			return err
		}
		if err := a.add(b.key(ref)); err != nil {
			return err
		}
	}
	return a.write(ctx, to)
}

// exporter collects what goes into an archive.
type exporter struct {
	st        *store
	manifests []v1.Descriptor
	inline    map[string][]byte // blobs that are made here, by digest
	files     map[string]blob   // blobs of the store, by digest
}

func (a *exporter) add(key string) error {
	r, err := a.st.record(key)
	if err != nil {
		return err
	}
	image := descriptor(v1.MediaTypeImageManifest, r.Blobs[0])
	for _, x := range r.Blobs {
		a.files[x.Digest] = x
	}
	named := image
	named.Annotations = map[string]string{v1.AnnotationRefName: r.Ref.String()}
	named.Platform = &v1.Platform{}
	*named.Platform = hostPlatform()
	a.manifests = append(a.manifests, named)
	for _, x := range []struct{ kind, path string }{{lockType, a.st.lockPath(r.Digest)}, {billType, a.st.billPath(r.Digest)}} {
		data, err := os.ReadFile(x.path)
		if os.IsNotExist(err) && x.kind == billType {
			continue // an image of an older sandboxd has none
		}
		if err != nil {
			return err
		}
		if err := a.attach(x.kind, data, image); err != nil {
			return err
		}
	}
	return nil
}

// attach adds an artifact that says something of an image.
func (a *exporter) attach(kind string, data []byte, subject v1.Descriptor) error {
	m := v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest, ArtifactType: kind,
		Config:  v1.DescriptorEmptyJSON,
		Layers:  []v1.Descriptor{descriptor(kind, a.put(data))},
		Subject: &subject,
	}
	m.Config.Data = nil
	a.put(v1.DescriptorEmptyJSON.Data)
	raw, err := json.Marshal(m)
	if err != nil {
		return err
	}
	d := descriptor(v1.MediaTypeImageManifest, a.put(raw))
	d.ArtifactType = kind
	if !slices.ContainsFunc(a.manifests, func(have v1.Descriptor) bool { return have.Digest == d.Digest }) {
		a.manifests = append(a.manifests, d)
	}
	return nil
}

func (a *exporter) put(data []byte) blob {
	h := newHashWriter(io.Discard)
	_, _ = h.Write(data) // a hash's Write never fails
	b := h.blob()
	a.inline[b.Digest] = data
	return b
}

func (a *exporter) write(ctx context.Context, to io.Writer) error {
	index, err := json.Marshal(v1.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex, Manifests: a.manifests,
	})
	if err != nil {
		return err
	}
	layout, err := json.Marshal(v1.ImageLayout{Version: v1.ImageLayoutVersion})
	if err != nil {
		return err
	}
	t := tar.NewWriter(to)
	if err := inlineEntry(t, v1.ImageLayoutFile, layout); err != nil {
		return err
	}
	if err := inlineEntry(t, v1.ImageIndexFile, index); err != nil {
		return err
	}
	var digests []string
	for d := range a.inline {
		digests = append(digests, d)
	}
	for d := range a.files {
		if a.inline[d] == nil {
			digests = append(digests, d)
		}
	}
	slices.Sort(digests)
	for _, d := range digests {
		name := blobEntry(d)
		if data := a.inline[d]; data != nil {
			err = inlineEntry(t, name, data)
		} else {
			err = a.fileEntry(ctx, t, name, a.files[d])
		}
		if err != nil {
			return err
		}
	}
	return t.Close()
}

func blobEntry(digest string) string {
	return path.Join("blobs", "sha256", strings.TrimPrefix(digest, "sha256:"))
}

func inlineEntry(t *tar.Writer, name string, data []byte) error {
	if err := t.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o444, Size: int64(len(data)), ModTime: layerTime}); err != nil {
		return err
	}
	_, err := t.Write(data)
	return err
}

func (a *exporter) fileEntry(ctx context.Context, t *tar.Writer, name string, b blob) error {
	f, err := os.Open(a.st.blobPath(b.Digest))
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read from
	if err := t.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o444, Size: b.Size, ModTime: layerTime}); err != nil {
		return err
	}
	h := newHashWriter(t)
	if _, err := io.Copy(h, contextReader{ctx, f}); err != nil {
		return err
	}
	if h.blob() != b {
		return fail(ErrCorrupt, "the image cache holds a part that is not what was stored", "build the image anew")
	}
	return nil
}

// contextReader ends a long copy when ctx does.
type contextReader struct {
	ctx context.Context //nolint:containedctx // it lives for one copy
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(p)
}
