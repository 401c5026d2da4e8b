//go:build linux

package container

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/core/content"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/sandboxd/sandboxd/sandbox"
)

// maxEntries bounds the files of one layer, since inodes run out too.
const maxEntries = 1 << 20

// readAhead is how much of a layer is read at once.
const readAhead = 1 << 20

// scanLayer reads a layer before it is unpacked and returns what is left of
// the bound on unpacked bytes. A small archive can hold a large layer, and
// only this process can stop containerd from writing all of it.
func scanLayer(ctx context.Context, store content.Provider, d ocispec.Descriptor, left int64) (int64, error) {
	ra, err := store.ReaderAt(ctx, d)
	if err != nil {
		return 0, fmt.Errorf("read: %w", err)
	}
	defer ra.Close() //nolint:errcheck // a reader's close loses nothing
	stored := &faultReader{r: io.NewSectionReader(ra, 0, ra.Size())}
	// Each read is a call to containerd.
	var r io.Reader = bufio.NewReaderSize(stored, readAhead)
	switch d.MediaType {
	case ocispec.MediaTypeImageLayer:
	case ocispec.MediaTypeImageLayerGzip:
		z, err := gzip.NewReader(r)
		if err != nil {
			return 0, stored.blame(err)
		}
		r = z
	default:
		return 0, fmt.Errorf("%w: media type %.80q", sandbox.ErrInvalid, d.MediaType)
	}
	// One byte more than the bound tells "too large" from "just fits".
	lr := &io.LimitedReader{R: r, N: left + 1}
	tr := tar.NewReader(lr)
	full := left // files can be sparse, and take more room than their bytes here
	for n := 0; ; n++ {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		hdr, err := tr.Next()
		if lr.N == 0 || n > maxEntries {
			return 0, fmt.Errorf("%w: the image unpacks to too many bytes or files", sandbox.ErrInvalid)
		}
		if errors.Is(err, io.EOF) {
			return min(lr.N-1, full), nil
		}
		if err != nil {
			return 0, stored.blame(err)
		}
		if hdr.Typeflag != tar.TypeLink {
			full -= hdr.Size
		}
		if full < 0 {
			return 0, fmt.Errorf("%w: the image unpacks to too many bytes", sandbox.ErrInvalid)
		}
		if hdr.Typeflag == tar.TypeChar || hdr.Typeflag == tar.TypeBlock {
			return 0, fmt.Errorf("%w: holds a device node", sandbox.ErrInvalid)
		}
	}
}

// faultReader remembers that reading failed, which is no fault of what was
// read.
type faultReader struct {
	r   io.Reader
	err error
}

func (f *faultReader) Read(b []byte) (int, error) {
	n, err := f.r.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		f.err = err
	}
	return n, err
}

// blame says whether an error is the content's or the reader's.
func (f *faultReader) blame(err error) error {
	if f.err != nil {
		return fmt.Errorf("read: %w", f.err)
	}
	return fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
}
