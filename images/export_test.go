package images

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// archived builds two servers and exports them.
func archived(t *testing.T) (*registry, []Image, []byte) {
	t.Helper()
	r := newRegistry(t, server("one", "1.0.0"), server("two", "1.0.0"))
	b := r.builder(t)
	list := []Image{build(t, b, "npm:one"), build(t, b, "npm:two")}
	var out, again bytes.Buffer
	for _, w := range []io.Writer{&out, &again} {
		if err := b.Export(t.Context(), w, list[0].Ref, list[1].Ref); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(out.Bytes(), again.Bytes()) {
		t.Error("two exports of the same images differ")
	}
	return r, list, out.Bytes()
}

// unpacked gives an archive's files.
func unpacked(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	tr := tar.NewReader(bytes.NewReader(archive))
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(tr); err != nil {
			t.Fatal(err)
		}
	}
}

func repacked(t *testing.T, files map[string][]byte, more ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	tw := tar.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := inlineEntry(tw, name, files[name]); err != nil {
			t.Fatal(err)
		}
	}
	for _, h := range more {
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestArchiveGoesToAnotherHost takes two images to a host without a registry:
// they run there without any, and another implementation can read the archive.
func TestArchiveGoesToAnotherHost(t *testing.T) {
	r, list, archive := archived(t)
	dir := t.TempDir()
	for name, data := range unpacked(t, archive) {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	idx, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(idx, validate.Fast); err != nil {
		t.Errorf("the archive is no valid layout: %v", err)
	}
	cfg := r.config(t, t.TempDir())
	r.Close() // nothing can be fetched from here on
	there := must(t)(New(cfg))
	if got, err := there.Import(t.Context(), bytes.NewReader(archive), ImportOptions{Dry: true}); err != nil || len(got) != 2 {
		t.Fatalf("a dry run: %d images, %v", len(got), err)
	}
	if all, err := there.List(); err != nil || len(all) != 0 {
		t.Fatalf("a dry run kept %d images, %v", len(all), err)
	}
	got, err := there.Import(t.Context(), bytes.NewReader(archive), ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range list {
		img := build(t, there, want.Ref.String())
		if img.Digest != want.Digest || got[i].Digest != want.Digest || !slices.Equal(img.Entrypoint, want.Entrypoint) || !slices.Equal(img.Env, want.Env) || img.Dir != want.Dir {
			t.Errorf("there: %+v, here: %+v", img, want)
		}
		checkLayout(t, img)
		if bill, err := there.Bill(want.Ref); err != nil || !bytes.Contains(bill, []byte("CycloneDX")) {
			t.Errorf("the bill of materials of %s: %v", want.Ref, err)
		}
	}
	if _, err := there.Import(t.Context(), bytes.NewReader(archive), ImportOptions{}); err != nil {
		t.Errorf("the same once more: %v", err)
	}
	wantClean(t, there)
}

func TestImportReplacesOnlyWhenTold(t *testing.T) {
	r, list, archive := archived(t)
	r.add(server("one", "2.0.0"))
	there := r.builder(t)
	newer := build(t, there, "npm:one")
	_, err := there.Import(t.Context(), bytes.NewReader(archive), ImportOptions{})
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "--replace") {
		t.Fatalf("another image was replaced: %v", err)
	}
	if img := build(t, there, "npm:one"); img.Digest != newer.Digest {
		t.Error("a refused import changed an image")
	}
	if _, err := there.Import(t.Context(), bytes.NewReader(archive), ImportOptions{Replace: true}); err != nil {
		t.Fatal(err)
	}
	if img := build(t, there, "npm:one"); img.Digest != list[0].Digest {
		t.Error("--replace did not")
	}
}

// TestHostileArchives changes an archive in many ways: each is refused, and
// nothing of it is kept.
func TestHostileArchives(t *testing.T) {
	r, list, archive := archived(t)
	files := func() map[string][]byte { return unpacked(t, archive) }
	// edited changes one document and the names that lead to it.
	index := func(f map[string][]byte, change func(*v1.Index)) []byte {
		var idx v1.Index
		if err := json.Unmarshal(f[v1.ImageIndexFile], &idx); err != nil {
			t.Fatal(err)
		}
		change(&idx)
		raw, err := json.Marshal(idx)
		if err != nil {
			t.Fatal(err)
		}
		f[v1.ImageIndexFile] = raw
		return repacked(t, f)
	}
	layer := list[0].Lock.Digest // its manifest
	m := manifestOf(t, list[0])
	for name, bad := range map[string][]byte{
		"no archive":   []byte("hello"),
		"empty":        repacked(t, nil),
		"cut off":      archive[:len(archive)*2/3],
		"a link":       repacked(t, files(), tar.Header{Name: "blobs/sha256/" + strings.Repeat("a", 64), Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}),
		"a path out":   repacked(t, files(), tar.Header{Name: "../../etc/cron.d/x", Typeflag: tar.TypeReg}),
		"an absolute":  repacked(t, files(), tar.Header{Name: "/etc/cron.d/x", Typeflag: tar.TypeReg}),
		"a device":     repacked(t, files(), tar.Header{Name: "blobs/sha256/x", Typeflag: tar.TypeChar}),
		"twice":        repacked(t, files(), tar.Header{Name: blobEntry(layer), Typeflag: tar.TypeReg}),
		"a lying name": repacked(t, files(), tar.Header{Name: "blobs/sha256/" + strings.Repeat("a", 64), Typeflag: tar.TypeReg}),
		"no index":     func() []byte { f := files(); delete(f, v1.ImageIndexFile); return repacked(t, f) }(),
		"no manifest":  func() []byte { f := files(); delete(f, blobEntry(layer)); return repacked(t, f) }(),
		"a layer less": func() []byte { f := files(); delete(f, blobEntry(m.Layers[2].Digest)); return repacked(t, f) }(),
		"no config":    func() []byte { f := files(); delete(f, blobEntry(m.Config.Digest)); return repacked(t, f) }(),
		"no locks": index(files(), func(i *v1.Index) {
			i.Manifests = slices.DeleteFunc(i.Manifests, func(d v1.Descriptor) bool { return d.ArtifactType == lockType })
		}),
		"another's lock": index(files(), func(i *v1.Index) {
			i.Manifests[0].Annotations, i.Manifests[3].Annotations = i.Manifests[3].Annotations, i.Manifests[0].Annotations
		}),
		"a wrong size": index(files(), func(i *v1.Index) { i.Manifests[0].Size++ }),
		"a bad name":   index(files(), func(i *v1.Index) { i.Manifests[0].Annotations[v1.AnnotationRefName] = "npm:../x" }),
	} {
		there := must(t)(New(r.config(t, t.TempDir())))
		_, err := there.Import(t.Context(), bytes.NewReader(bad), ImportOptions{})
		if !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
		if all, err := there.List(); err != nil || len(all) != 0 {
			t.Errorf("%s: %d images were kept, %v", name, len(all), err)
		}
		wantClean(t, there)
	}
	small := r.config(t, t.TempDir())
	small.MaxBytes = 1000
	if _, err := must(t)(New(small)).Import(t.Context(), bytes.NewReader(archive), ImportOptions{}); !errors.Is(err, ErrRefused) {
		t.Errorf("a huge archive: %v", err)
	}
}

func TestDescribeAndStale(t *testing.T) {
	r := newRegistry(t, server("one", "1.0.0"), server("two", "1.0.0"))
	b := r.builder(t)
	one, two := build(t, b, "npm:one"), build(t, b, "npm:two")
	d, err := b.Describe(one.Ref)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Layers) != 3 || d.Layers[0].SharedBy != 1 || d.Layers[2].SharedBy != 0 || d.Own <= d.Layers[2].Size || d.Own >= d.Size {
		t.Errorf("%+v", d)
	}
	old := time.Now().Add(-48 * time.Hour)
	for _, img := range []Image{one, two} {
		if err := os.Chtimes(b.st.path("refs", b.key(img.Ref)+".json"), old, old); err != nil {
			t.Fatal(err)
		}
	}
	build(t, b, "npm:two") // used now
	before := time.Now().Add(-24 * time.Hour)
	stale, err := b.Stale(before)
	if err != nil || len(stale) != 1 || stale[0].Digest != one.Digest {
		t.Fatalf("stale: %+v, %v", stale, err)
	}
	if n, err := b.RemoveStale(t.Context(), before); err != nil || n < d.Own/2 {
		t.Errorf("freed %d, %v", n, err)
	}
	if _, err := b.Inspect(one.Ref); !errors.Is(err, ErrNotBuilt) {
		t.Errorf("the stale one: %v", err)
	}
	checkLayout(t, build(t, b, "npm:two"))
}

// TestPreviewShowsAndChangesNothing builds the newer version beside the one in
// use, says what differs, and leaves everything as it was.
func TestPreviewShowsAndChangesNothing(t *testing.T) {
	p := server("main", "1.0.0")
	p.manifest["dependencies"] = map[string]string{"dep": "^1", "gone": "^1"}
	r := newRegistry(t, p, server("dep", "1.0.0"), server("gone", "1.0.0"))
	b := r.builder(t)
	old := build(t, b, "npm:main")
	next := server("main", "2.0.0")
	next.manifest["dependencies"] = map[string]string{"dep": "^1", "fresh": "^3"}
	for _, p := range []pkg{next, server("dep", "1.5.0"), server("fresh", "3.1.0")} {
		r.add(p)
	}
	img, drop, err := b.Preview(t.Context(), old.Ref)
	if err != nil {
		t.Fatal(err)
	}
	want := []Change{{"npm", "dep", "1.0.0", "1.5.0"}, {"npm", "fresh", "", "3.1.0"}, {"npm", "gone", "1.0.0", ""}, {"npm", "main", "1.0.0", "2.0.0"}}
	if d := cmp.Diff(want, Changes(old.Lock, img.Lock)); d != "" {
		t.Error(d)
	}
	if err := drop(); err != nil {
		t.Fatal(err)
	}
	if now := build(t, b, "npm:main"); now.Digest != old.Digest || now.Digest == img.Digest {
		t.Error("a preview changed what the reference means")
	}
	if list, err := b.List(); err != nil || len(list) != 1 {
		t.Errorf("%d images, %v", len(list), err)
	}
	checkLayout(t, old)
	if n, err := b.Prune(t.Context(), false); err != nil || n == 0 {
		t.Errorf("what the preview fetched: pruned %d bytes, %v", n, err)
	}
	if updated, err := b.Update(t.Context(), old.Ref); err != nil || updated.Digest != img.Digest {
		t.Errorf("the update: %s, previewed %s, %v", updated.Digest, img.Digest, err)
	}
	if got := Changes(old.Lock, old.Lock); len(got) != 0 {
		t.Errorf("with itself: %v", got)
	}
}

// An archive whose hashes are all right can still hold a layer that sandboxd
// would never have made.
func TestHostileLayersOfArchives(t *testing.T) {
	r := newRegistry(t, server("one", "1.0.0"))
	b := r.builder(t)
	img := build(t, b, "npm:one")
	for name, h := range map[string]tar.Header{
		"device":           {Typeflag: tar.TypeBlock, Name: "app/sda", Devmajor: 8},
		"pipe":             {Typeflag: tar.TypeFifo, Name: "app/p"},
		"set-uid":          {Typeflag: tar.TypeReg, Name: "app/su", Mode: 0o4755},
		"sticky file":      {Typeflag: tar.TypeReg, Name: "app/x", Mode: 0o1755},
		"set-gid folder":   {Typeflag: tar.TypeDir, Name: "app/d/", Mode: 0o2755},
		"another's file":   {Typeflag: tar.TypeReg, Name: "app/x", Uid: 1000, Gid: 1000},
		"another group's":  {Typeflag: tar.TypeReg, Name: "app/x", Gid: 42},
		"climbing":         {Typeflag: tar.TypeReg, Name: "app/../../x"},
		"absolute":         {Typeflag: tar.TypeReg, Name: "/etc/x"},
		"hard link out":    {Typeflag: tar.TypeLink, Name: "app/l", Linkname: "../../etc/shadow"},
		"absolute link":    {Typeflag: tar.TypeLink, Name: "app/l", Linkname: "/etc/shadow"},
		"whiteout":         {Typeflag: tar.TypeReg, Name: "etc/.wh.passwd"},
		"opaque":           {Typeflag: tar.TypeReg, Name: "etc/.wh..wh..opq"},
		"capabilities":     {Typeflag: tar.TypeReg, Name: "app/x", PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "x"}},
		"overlay's marker": {Typeflag: tar.TypeDir, Name: "etc/", PAXRecords: map[string]string{"SCHILY.xattr.trusted.overlay.opaque": "y"}},
		"path too long":    {Typeflag: tar.TypeReg, Name: "app/" + strings.Repeat("x/", 4096)[:8191]},
	} {
		t.Run(name, func(t *testing.T) {
			there := must(t)(New(r.config(t, t.TempDir())))
			_, err := there.Import(t.Context(), bytes.NewReader(sealedWith(t, b, img, repacked(t, nil, h))), ImportOptions{})
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "a layer in it holds") {
				t.Errorf("got %v", err)
			}
			if all, err := there.List(); err != nil || len(all) != 0 {
				t.Errorf("%d images were kept, %v", len(all), err)
			}
			wantClean(t, there)
		})
	}
	there := must(t)(New(r.config(t, t.TempDir())))
	good := sealedWith(t, b, img, repacked(t, nil, tar.Header{Typeflag: tar.TypeDir, Name: "home/mcp/", Mode: 0o700, Uid: userID, Gid: userID}))
	if _, err := there.Import(t.Context(), bytes.NewReader(good), ImportOptions{}); err != nil {
		t.Errorf("a layer of sandboxd's form was refused: %v", err)
	}
}

// sealedWith exports an image that is like img, with this as its only layer.
func sealedWith(t *testing.T, b *Builder, img Image, layer []byte) []byte {
	t.Helper()
	w, err := newWork(t.Context(), b.st.path("tmp"))
	if err != nil {
		t.Fatal(err)
	}
	only, err := b.st.putBlob(w, layer)
	if err == nil {
		err = b.seal(t.Context(), w, img.Ref, b.key(img.Ref), nil, product{
			name: img.Lock.Name, version: img.Lock.Version, integrity: img.Lock.Integrity, layers: []blob{only},
			debs: img.Lock.Base, node: img.Lock.Node, entry: img.Entrypoint, env: img.Env, dir: img.Dir,
			pin: func(l *Lock) { l.NPM = img.Lock.NPM },
		})
	}
	if err := errors.Join(err, w.close()); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := b.Export(t.Context(), &out, img.Ref); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
