//go:build linux

package container

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/sandboxd/sandboxd/sandbox"
)

// blobs lists what containerd's content store holds.
func blobs(t *testing.T, h *host) []string {
	t.Helper()
	var out []string
	err := h.cl.ContentStore().Walk(h.ctx(t.Context()), func(i content.Info) error {
		out = append(out, i.Digest.String())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return out
}

func smallLayer(extra ...tar.Header) []byte {
	return tarOf(append([]tar.Header{{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755}}, extra...), nil)
}

func image(t *testing.T, layer []byte, mediaType, diffID string) ([]byte, string) {
	t.Helper()
	a, d, err := imageOf(layer, mediaType, diffID)
	if err != nil {
		t.Fatal(err)
	}
	return a, d
}

func zipped(t *testing.T, b []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	if _, err := z.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// TestImportKeepsNothingOfAWrongImage: whatever is wrong with it, no blob,
// snapshot or record of the image stays.
func TestImportKeepsNothingOfAWrongImage(t *testing.T) {
	h := newHost(t, func(c *Config) { c.MaxArchiveBytes, c.MaxUnpackedBytes = 64<<20, 32<<20 })
	layer := smallLayer(tar.Header{Name: "wrong", Typeflag: tar.TypeReg, Mode: 0o644})
	good, dgst := image(t, layer, ocispec.MediaTypeImageLayer, sum(layer))
	device := smallLayer(tar.Header{Name: "dev", Typeflag: tar.TypeBlock, Mode: 0o666, Devmajor: 254})
	deviceImage, deviceDigest := image(t, device, ocispec.MediaTypeImageLayer, sum(device))
	bomb := tarOf([]tar.Header{{Name: "zeros", Typeflag: tar.TypeReg}}, map[string][]byte{"zeros": make([]byte, 48<<20)})
	bombImage, bombDigest := image(t, zipped(t, bomb), ocispec.MediaTypeImageLayerGzip, sum(bomb))
	otherDiff, otherDigest := image(t, layer, ocispec.MediaTypeImageLayer, sum([]byte("other")))
	unknown, unknownDigest := image(t, layer, "application/x-unknown", sum(layer))
	swapped := bytes.Replace(good, []byte("wrong"), []byte("WRONG"), 1)
	for name, c := range map[string]struct {
		archive io.Reader
		digest  string
		invalid bool // the caller's fault, by its own name
	}{
		"not a digest":        {bytes.NewReader(good), "latest", true},
		"another digest":      {bytes.NewReader(good), sum([]byte("x")), true},
		"a layer's digest":    {bytes.NewReader(good), sum(layer), true},
		"not a tar":           {strings.NewReader(strings.Repeat("x", 4096)), dgst, true},
		"empty":               {strings.NewReader(""), dgst, true},
		"cut off":             {bytes.NewReader(good[:1200]), dgst, false},
		"changed blob":        {bytes.NewReader(swapped), dgst, false},
		"device node":         {bytes.NewReader(deviceImage), deviceDigest, true},
		"unpacks to too much": {bytes.NewReader(bombImage), bombDigest, true},
		"another layer":       {bytes.NewReader(otherDiff), otherDigest, false},
		"unknown media type":  {bytes.NewReader(unknown), unknownDigest, true},
		"reader fails":        {io.MultiReader(bytes.NewReader(good[:600]), failing{}), dgst, false},
	} {
		t.Run(name, func(t *testing.T) {
			before, snaps := blobs(t, h), trace(t, h).Snapshots
			err := h.Import(t.Context(), c.digest, c.archive)
			if err == nil {
				t.Fatal("imported")
			}
			if errors.Is(err, sandbox.ErrInvalid) != c.invalid {
				t.Errorf("error %v", err)
			}
			if after := blobs(t, h); !slices.Equal(before, after) {
				t.Errorf("blobs before: %q, after: %q", before, after)
			}
			if after := trace(t, h).Snapshots; len(after) != len(snaps) {
				t.Errorf("snapshots before: %q, after: %q", snaps, after)
			}
			if ok, err := h.HasImage(t.Context(), dgst); ok || err != nil {
				t.Errorf("image is there: %t, %v", ok, err)
			}
		})
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("the caller went away") }

func TestImportTwiceAndStop(t *testing.T) {
	h := newHost(t)
	layer := smallLayer(tar.Header{Name: "twice", Typeflag: tar.TypeReg, Mode: 0o644})
	archive, dgst := image(t, zipped(t, layer), ocispec.MediaTypeImageLayerGzip, sum(layer))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.Import(ctx, dgst, bytes.NewReader(archive)); err == nil {
		t.Error("imported with a context that is over")
	}
	for range 2 {
		if err := h.Import(t.Context(), dgst, bytes.NewReader(archive)); err != nil {
			t.Fatal(err)
		}
		if ok, err := h.HasImage(t.Context(), dgst); !ok || err != nil {
			t.Errorf("has image: %t, %v", ok, err)
		}
	}
	// Another engine's Collect leaves images alone: they hold no state.
	if err := h.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ok, err := h.HasImage(t.Context(), dgst); !ok || err != nil {
		t.Errorf("after collecting: %t, %v", ok, err)
	}
}

// parts lists the digests of an archive's blobs, and rebuilds it of some.
func parts(t *testing.T, archive []byte, keep func(digest string, size int64) bool) ([]string, []byte) {
	t.Helper()
	var all []string
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for tr := tar.NewReader(bytes.NewReader(archive)); ; {
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if name, ok := strings.CutPrefix(hdr.Name, "blobs/sha256/"); ok {
			all = append(all, "sha256:"+name)
			if !keep("sha256:"+name, hdr.Size) {
				continue
			}
		}
		if err := w.WriteHeader(hdr); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(w, tr); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return all, out.Bytes()
}

// TestImportOfWhatIsMissing: an archive need not hold what is here already,
// and one that lacks more is refused.
func TestImportOfWhatIsMissing(t *testing.T) {
	h := newHost(t)
	layer := smallLayer(tar.Header{Name: "part", Typeflag: tar.TypeReg, Mode: 0o644})
	archive, dgst := image(t, layer, ocispec.MediaTypeImageLayer, sum(layer))
	all, _ := parts(t, archive, func(string, int64) bool { return true })
	if got, err := h.Missing(t.Context(), all); err != nil || !slices.Equal(got, all) {
		t.Fatalf("missing of a new image: %q, %v", got, err)
	}
	if _, err := h.Missing(t.Context(), []string{"sha256:x"}); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("no digest: %v", err)
	}
	_, cut := parts(t, archive, func(d string, _ int64) bool { return d != sum(layer) })
	if err := h.Import(t.Context(), dgst, bytes.NewReader(cut)); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("an archive without the layer: %v", err)
	}
	if got, err := h.Missing(t.Context(), all); err != nil || !slices.Equal(got, all) {
		t.Errorf("after a refused import are missing %q, %v", got, err)
	}
	// Another image brings the layer.
	zippedArchive, other := image(t, zipped(t, layer), ocispec.MediaTypeImageLayerGzip, sum(layer))
	if err := h.Import(t.Context(), other, bytes.NewReader(zippedArchive)); err != nil {
		t.Fatal(err)
	}
	if err := h.Import(t.Context(), dgst, bytes.NewReader(archive)); err != nil {
		t.Fatal(err)
	}
	if got, err := h.Missing(t.Context(), all); err != nil || len(got) != 0 {
		t.Errorf("missing of an imported image: %q, %v", got, err)
	}
	again := append(bytes.Clone(layer), make([]byte, 512)...) // the same files by another digest
	both, third := image(t, again, ocispec.MediaTypeImageLayer, sum(again))
	_, rest := parts(t, both, func(d string, _ int64) bool { return d != sum(layer) })
	if err := h.Import(t.Context(), third, bytes.NewReader(rest)); err != nil {
		t.Error(err)
	}
	_, nothing := parts(t, archive, func(string, int64) bool { return false })
	if err := h.Import(t.Context(), dgst, bytes.NewReader(nothing)); err != nil {
		t.Errorf("an archive of nothing, where all is here: %v", err)
	}
}

// TestImportsDoNotWaitForOneAnother: a caller that is slow to send holds up
// nobody, and a failed import takes nothing of another's along.
func TestImportsDoNotWaitForOneAnother(t *testing.T) {
	h := newHost(t)
	layer := smallLayer(tar.Header{Name: "side by side", Typeflag: tar.TypeReg, Mode: 0o644})
	archive, dgst := image(t, layer, ocispec.MediaTypeImageLayer, sum(layer))
	r, w := io.Pipe()
	slow := make(chan error, 1)
	go func() { slow <- h.Import(t.Context(), dgst, r) }()
	if _, err := w.Write(archive[:len(archive)/2]); err != nil {
		t.Fatal(err)
	}
	if err := h.Collect(t.Context()); err != nil { // which must leave it alone
		t.Fatal(err)
	}
	if err := h.Import(t.Context(), dgst, bytes.NewReader(archive)); err != nil {
		t.Fatalf("while another import waits: %v", err)
	}
	w.CloseWithError(errors.New("gone"))
	if err := <-slow; err == nil {
		t.Error("half an archive was imported")
	}
	all, _ := parts(t, archive, func(string, int64) bool { return true })
	if got, err := h.Missing(t.Context(), all); err != nil || len(got) != 0 {
		t.Errorf("after the other import failed are missing %q, %v", got, err)
	}
	if list, err := h.cl.ContentStore().ListStatuses(h.ctx(t.Context())); err != nil || len(list) != 0 {
		t.Errorf("writes under way: %+v, %v", list, err)
	}
}

// sparseLayer is a layer of one file that is all hole, in the form that tar
// readers take for an ordinary file.
func sparseLayer(size int64) []byte {
	var records string
	for _, kv := range []string{fmt.Sprintf("GNU.sparse.size=%d", size), "GNU.sparse.numblocks=1", "GNU.sparse.map=0,0"} {
		records += fmt.Sprintf("%02d %s\n", len(kv)+4, kv)
	}
	header := func(typ byte, size int) []byte {
		b := make([]byte, 512)
		copy(b, "hole")
		for at, v := range map[int]string{100: "0000644", 108: "0000000", 116: "0000000", 124: fmt.Sprintf("%011o", size), 136: "00000000000"} {
			copy(b[at:], v)
		}
		b[156] = typ
		copy(b[257:], "ustar\x0000")
		copy(b[148:], "        ")
		total := 0
		for _, x := range b {
			total += int(x)
		}
		copy(b[148:], fmt.Sprintf("%06o\x00 ", total))
		return b
	}
	out := append(header('x', len(records)), records...)
	out = append(out, make([]byte, 1024-len(out))...)
	return append(append(out, header('0', 0)...), make([]byte, 1024)...)
}

// TestImportCountsHoles: a sparse file of a few bytes unpacks to gigabytes.
func TestImportCountsHoles(t *testing.T) {
	h := newHost(t, func(c *Config) { c.MaxUnpackedBytes = 32 << 20 })
	for size, ok := range map[int64]bool{1 << 20: true, 48 << 20: false} {
		layer := sparseLayer(size)
		archive, dgst := image(t, layer, ocispec.MediaTypeImageLayer, sum(layer))
		err := h.Import(t.Context(), dgst, bytes.NewReader(archive))
		if (err == nil) != ok || !ok && !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("a hole of %d bytes: %v", size, err)
		}
	}
}
