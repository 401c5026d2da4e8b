//go:build linux

package container

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
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
