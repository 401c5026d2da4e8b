//go:build linux

package container

import (
	"archive/tar"
	"bytes"
	"errors"
	"path/filepath"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandboxd/sandboxd/sandbox"
)

// TestUnusedImagesGo: an image that nobody asked for in time goes, with its
// layers; one that was used stays, also over a restart; one of another
// instance is not touched; and what runs of one that went runs on.
func TestUnusedImagesGo(t *testing.T) {
	need(t)
	ctx := t.Context()
	state := filepath.Join(t.TempDir(), "state")
	const keep = 24 * time.Hour
	mine := func(c *Config) { c.StateDir, c.Instance, c.KeepImages = state, instance+"-sweep", keep }
	open := func() *host {
		cfg := Config{
			Address: lab.address, Runc: filepath.Join(lab.parts, "runc"), Shim: filepath.Join(lab.parts, "containerd-shim-runc-v2"),
			Init: lab.init(), Logger: newHost(t).cfg.Logger, IDBase: defaultIDBase + 2000*idRange, IDCount: 10,
		}
		mine(&cfg)
		h, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = h.Close(ctx) })
		return h.(*host)
	}
	h := open()
	image := func(name string) string {
		layer := tarOf([]tar.Header{{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}}, nil)
		archive, dgst, err := imageOf(layer, ocispec.MediaTypeImageLayer, sum(layer))
		if err == nil {
			err = h.Import(ctx, dgst, bytes.NewReader(archive))
		}
		if err != nil {
			t.Fatal(err)
		}
		return dgst
	}
	old, used := image("sweep-old"), image("sweep-used")
	has := func(dgst string, want bool) {
		t.Helper()
		// Not by HasImage, which is a use.
		_, err := h.cl.GetImage(h.ctx(ctx), imageName(dgst))
		if (err == nil) != want {
			t.Errorf("image %s is there: %v, want %v", dgst, err == nil, want)
		}
	}
	soon := time.Now().Add(keep / 2)
	if err := h.sweep(ctx, soon); err != nil {
		t.Fatal(err)
	}
	has(old, true)
	has(used, true)
	h.mu.Lock()
	h.used[imageName(used)] = soon // as if asked for then
	h.mu.Unlock()
	if err := h.Close(ctx); err != nil {
		t.Fatal(err)
	}
	h = open() // which has it in writing
	if err := h.sweep(ctx, soon.Add(keep*3/4)); err != nil {
		t.Fatal(err)
	}
	has(old, false)
	has(used, true)
	has(lab.digest, true) // another instance's
	if err := h.sweep(ctx, soon.Add(2*keep)); err != nil {
		t.Fatal(err)
	}
	has(used, false)
	for _, dgst := range []string{old, used} {
		if missing, err := h.Missing(ctx, []string{dgst}); err != nil || len(missing) != 1 {
			t.Errorf("blobs that stay of %s: %v, %v", dgst, missing, err)
		}
	}
	if ok, err := h.HasImage(ctx, used); ok || err != nil {
		t.Errorf("HasImage: %v, %v", ok, err)
	}
}

// TestImageGoesUnderABox: a sandbox does not notice that its image was
// removed, and whoever starts the next one is told to hand it over again.
func TestImageGoesUnderABox(t *testing.T) {
	h := newHost(t, func(c *Config) { c.KeepImages = time.Hour })
	// Brought by this instance, whichever test came first.
	if err := h.cl.ImageService().Delete(h.ctx(t.Context()), imageName(lab.digest)); err != nil {
		t.Fatal(err)
	}
	if err := h.Import(t.Context(), lab.digest, bytes.NewReader(lab.archive)); err != nil {
		t.Fatal(err)
	}
	g := start(t, h, request())
	if err := h.sweep(t.Context(), time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	g.must("cwd")
	if err := h.sweep(t.Context(), time.Now().Add(2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if got := g.must("run", "/kit", "ids"); got == "" {
		t.Error("its program cannot be run any more")
	}
	req := request()
	_, _, err := h.Start(t.Context(), req)
	if err == nil {
		t.Error("an image that went was started")
	} else if !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("start: %v", err)
	}
}

// TestImageGoesUnderAStart: an image that is removed after its layers were
// found, and before the container's record holds them, is not started from
// folders that containerd may be removing.
func TestImageGoesUnderAStart(t *testing.T) {
	h := newHost(t)
	start(t, h, request()) // which has the layers known
	h.loosen = func(*specs.Spec) {
		if err := h.cl.ImageService().Delete(h.ctx(t.Context()), imageName(lab.digest)); err != nil {
			t.Error(err)
		}
	}
	req := request()
	if _, _, err := h.Start(t.Context(), req); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("start: %v", err)
	}
	h.loosen = nil
	if err := h.Import(t.Context(), lab.digest, bytes.NewReader(lab.archive)); err != nil {
		t.Fatal(err)
	}
	start(t, h, request()).must("cwd")
}
