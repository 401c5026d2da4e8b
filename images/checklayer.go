package images

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// layers checks what each layer of the images holds, once.
func (im *importer) layers(ctx context.Context, list []incoming) error {
	done := map[string]bool{}
	for _, in := range list {
		for _, l := range in.rec.Blobs[2:] {
			if done[l.Digest] {
				continue
			}
			done[l.Digest] = true
			err := checkLayer(ctx, filepath.Join(im.w.dir, strings.TrimPrefix(l.Digest, "sha256:")), l.Size)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// checkLayer holds a layer that comes from elsewhere to the form that
// layerWriter gives: no device, no owner but root and the one user, no set-uid
// bit, no attribute, no whiteout, no path that climbs, and no file that unpacks
// to more than the layer is long. size is the layer's, in bytes.
func checkLayer(ctx context.Context, file string, size int64) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read from
	left := size
	t := tar.NewReader(contextReader{ctx, f})
	for n := 0; ; n++ {
		h, err := t.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return notArchive("a layer in it is no tar file")
		case n > maxFiles:
			return notArchive("a layer in it holds over %d files", maxFiles)
		}
		if what := wrongEntry(h); what != "" {
			return notArchive("a layer in it holds %s, %s", quoted(h.Name), what)
		}
		if left -= h.Size; left < 0 {
			return notArchive("a layer in it holds %s, which unpacks to more than is there", quoted(h.Name))
		}
	}
}

// wrongEntry says what no layer of sandboxd's has, or nothing.
func wrongEntry(h *tar.Header) string {
	keep, name := int64(0o777), h.Name
	switch h.Typeflag {
	case tar.TypeDir:
		keep, name = 0o1777, strings.TrimSuffix(name, "/")
	case tar.TypeReg, tar.TypeSymlink:
	case tar.TypeLink:
		if !filepath.IsLocal(h.Linkname) {
			return "a link that leads out of it"
		}
	default:
		return "which is neither a file, a folder nor a link"
	}
	switch {
	case !filepath.IsLocal(name) || len(name) > maxPath || len(h.Linkname) > maxPath:
		return "whose path leads out of it"
	case strings.HasPrefix(path.Base(name), ".wh."):
		return "which would hide files of the image"
	case h.Mode&^keep != 0:
		return "which has more rights than a file of an image"
	case h.Uid != h.Gid || h.Uid != 0 && h.Uid != userID:
		return "which belongs to somebody else"
	}
	for k := range h.PAXRecords {
		if strings.HasPrefix(k, "SCHILY.xattr.") || strings.HasPrefix(k, "GNU.sparse.") {
			return "which has attributes"
		}
	}
	return ""
}
