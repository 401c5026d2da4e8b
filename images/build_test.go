package images

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

func parse(t *testing.T, s string) Ref {
	t.Helper()
	r, err := ParseRef(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func build(t *testing.T, b *Builder, ref string) Image {
	t.Helper()
	img, err := b.Build(t.Context(), parse(t, ref))
	if err != nil {
		t.Fatalf("building %s: %v", ref, err)
	}
	return img
}

// checkLayout lets another implementation read the whole layout, and returns
// the files of the image's last layer.
func checkLayout(t *testing.T, img Image) map[string]*tar.Header {
	t.Helper()
	idx, err := layout.ImageIndexFromPath(img.Path)
	if err != nil {
		t.Fatal(err)
	}
	// Fast, since the full check knows gzip only; the hashes are checked below.
	if err := validate.Index(idx, validate.Fast); err != nil {
		t.Fatalf("the layout is not valid: %v", err)
	}
	m, err := idx.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]*tar.Header{}
	for _, d := range m.Manifests {
		if d.Digest.String() != img.Digest {
			continue
		}
		i, err := idx.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		layers, err := i.Layers()
		if err != nil {
			t.Fatal(err)
		}
		checkLayers(t, i, layers)
		r, err := layers[len(layers)-1].Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		tr := tar.NewReader(r)
		for {
			h, err := tr.Next()
			if errors.Is(err, io.EOF) {
				return files
			}
			if err != nil {
				t.Fatal(err)
			}
			files[strings.TrimSuffix(h.Name, "/")] = h
		}
	}
	t.Fatalf("the layout's index does not hold %s", img.Digest)
	return nil
}

// checkLayers hashes every layer, and compares with manifest and configuration.
func checkLayers(t *testing.T, i v1.Image, layers []v1.Layer) {
	t.Helper()
	cfg, err := i.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if cfg.OS != "linux" || cfg.Config.User != "65532:65532" || len(cfg.RootFS.DiffIDs) != len(layers) {
		t.Fatalf("configuration %+v", cfg)
	}
	for n, l := range layers {
		want, err := l.Digest()
		if err != nil {
			t.Fatal(err)
		}
		r, err := l.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		got, size, err := v1.SHA256(r)
		r.Close()
		if wantSize, _ := l.Size(); err != nil || got != want || size != wantSize || cfg.RootFS.DiffIDs[n] != want {
			t.Errorf("layer %d: hash %s of %d bytes, manifest %s of %d, configuration %s, %v", n, got, size, want, wantSize, cfg.RootFS.DiffIDs[n], err)
		}
	}
}

func TestBuildSealsAPackage(t *testing.T) {
	dep := server("dep", "2.0.0")
	dep.manifest["bin"] = map[string]string{"dep-tool": "cli.js"}
	p := server("@scope/main", "1.2.3")
	p.manifest["dependencies"] = map[string]string{"dep": "^2"}
	r := newRegistry(t, p, dep)
	b := r.builder(t)
	img := build(t, b, "npm:@scope/main")
	files := checkLayout(t, img)
	for name, mode := range map[string]int64{
		"app": 0o555, "app/package.json": 0o444, "app/package-lock.json": 0o444,
		"app/node_modules/@scope/main/cli.js": 0o555, "app/node_modules/dep/cli.js": 0o555, "app/node_modules/.bin/dep-tool": 0o777,
	} {
		h := files[name]
		if h == nil || h.Mode != mode || h.Uid != 0 || h.Gid != 0 || !h.ModTime.Equal(layerTime) {
			t.Errorf("%s: %+v", name, h)
		}
	}
	if files["app/node_modules/.package-lock.json"] != nil {
		t.Error("npm's notes, with addresses in them, are in the image")
	}
	want := []string{"/usr/local/bin/node", "/app/node_modules/@scope/main/cli.js"}
	if !cmp.Equal(img.Entrypoint, want) || img.Dir != "/home/mcp" || !slices.Contains(img.Env, "HOME=/home/mcp") {
		t.Errorf("image %+v", img)
	}
	l := img.Lock
	if l.Name != "@scope/main" || l.Version != "1.2.3" || !strings.HasPrefix(l.Integrity, "sha512-") || l.Digest != img.Digest || !sriRE.MatchString(l.Node.Integrity) {
		t.Errorf("lock %+v", l)
	}
	if l.Size != img.Size || l.Built.IsZero() {
		t.Errorf("the lock says %d bytes at %s, the image %d", l.Size, l.Built, img.Size)
	}
	bill, err := b.Bill(img.Ref)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`"CycloneDX"`, `"pkg:npm/%40scope/main@1.2.3"`, `"pkg:npm/dep@2.0.0"`, `"pkg:deb/debian/libc6@1"`, img.Digest[7:]} {
		if !strings.Contains(string(bill), part) {
			t.Errorf("the bill of materials does not name %s:\n%s", part, bill)
		}
	}
	raw, err := os.ReadFile(b.st.lockPath(img.Digest))
	if err != nil || strings.Contains(string(raw), "http") || strings.Contains(string(raw), "127.0.0.1") {
		t.Errorf("the lock holds an address: %s %v", raw, err)
	}
}

// A second build needs neither npm, nor a registry, nor anything in PATH.
func TestSecondBuildTouchesNothing(t *testing.T) {
	r := newRegistry(t, server("main", "1.0.0"))
	dir := t.TempDir()
	cfg := r.config(t, dir)
	first := build(t, must(t)(New(cfg)), "npm:main")
	r.add(server("main", "2.0.0"))
	before := r.requests.Load()
	r.Close()
	cfg.Environ, cfg.NPM = []string{}, "/nonexistent/npm"
	again := build(t, must(t)(New(cfg)), "npm:main")
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("not the same image: %s", diff)
	}
	if n := r.requests.Load() - before; n != 0 {
		t.Errorf("%d requests", n)
	}
}

func TestUpdateIsExplicit(t *testing.T) {
	r := newRegistry(t, server("main", "1.0.0"))
	b := r.builder(t)
	first := build(t, b, "npm:main")
	r.add(server("main", "2.0.0"))
	if again := build(t, b, "npm:main"); again.Digest != first.Digest {
		t.Fatal("a build without an update moved the version")
	}
	second, err := b.Update(t.Context(), first.Ref)
	if err != nil || second.Lock.Version != "2.0.0" || second.Digest == first.Digest {
		t.Fatalf("update: %+v %v", second.Lock, err)
	}
	checkLayout(t, second)
	// A failed update leaves what was there.
	r.answer = func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusNotFound); return true }
	if _, err := b.Update(t.Context(), first.Ref); !errors.Is(err, ErrNotFound) {
		t.Fatalf("update of what is gone: %v", err)
	}
	if again := build(t, b, "npm:main"); again.Digest != second.Digest {
		t.Fatal("a failed update changed the image")
	}
}

// Two caches, two registries with other addresses, one lock: one digest, down
// to the last bit of every layer.
func TestSameLockSameDigest(t *testing.T) {
	p := server("main", "1.0.0")
	p.manifest["dependencies"] = map[string]string{"dep": "^1"}
	r1 := newRegistry(t, p, server("dep", "1.0.0"))
	first := build(t, r1.builder(t), "npm:main")
	r2 := newRegistry(t, p, server("dep", "1.0.0"), server("dep", "1.5.0"), server("main", "3.0.0"))
	raw, err := json.Marshal(first.Lock)
	if err != nil {
		t.Fatal(err)
	}
	var lock Lock
	if err := json.Unmarshal(raw, &lock); err != nil {
		t.Fatal(err)
	}
	second, err := r2.builder(t).BuildLocked(t.Context(), lock)
	if err != nil {
		t.Fatal(err)
	}
	if second.Digest != first.Digest {
		t.Errorf("by the lock: %s, at first: %s", second.Digest, first.Digest)
	}
	checkLayout(t, second)
	// Asked for by its exact version, the package is the same image too.
	r3 := newRegistry(t, p, server("dep", "1.0.0"))
	if third := build(t, r3.builder(t), "npm:main@1.0.0"); third.Digest != first.Digest {
		t.Errorf("by its version: %s, at first: %s", third.Digest, first.Digest)
	}
}

func TestConcurrentBuildsShareTheWork(t *testing.T) {
	r := newRegistry(t, server("main", "1.0.0"))
	cfg := r.config(t, t.TempDir())
	var wg sync.WaitGroup
	digests := make([]string, 6)
	for i := range digests {
		b := must(t)(New(cfg)) // one builder each, as in several processes
		wg.Go(func() {
			img, err := b.Build(t.Context(), Ref{Kind: KindNPM, Name: "main"})
			if err != nil {
				t.Error(err)
			}
			digests[i] = img.Digest
		})
	}
	wg.Wait()
	if len(slices.Compact(digests)) != 1 {
		t.Errorf("digests %q", digests)
	}
	if n := r.fetched("main"); n != 1 {
		t.Errorf("the package was fetched %d times", n)
	}
}

func TestCancelledBuildLeavesNothing(t *testing.T) {
	r := newRegistry(t, server("main", "1.0.0"))
	ctx, cancel := context.WithCancel(t.Context())
	r.answer = func(_ http.ResponseWriter, req *http.Request) bool {
		if strings.Contains(req.URL.Path, "main/-/") {
			cancel()
			<-req.Context().Done() // npm is killed, its connection goes
			return true
		}
		return false
	}
	b := r.builder(t)
	if _, err := b.Build(ctx, parse(t, "npm:main")); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	wantClean(t, b)
	if _, err := b.Inspect(parse(t, "npm:main")); !errors.Is(err, ErrNotBuilt) {
		t.Errorf("half an image: %v", err)
	}
	r.answer = nil
	build(t, b, "npm:main")
}

// wantClean checks that nothing unfinished is in the cache.
func wantClean(t *testing.T, b *Builder) {
	t.Helper()
	entries, err := os.ReadDir(b.st.path("tmp"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != guardName {
			t.Errorf("left in tmp: %s", e.Name())
		}
	}
}

func TestDamagedCacheIsBuiltAgainByItsLock(t *testing.T) {
	r := newRegistry(t, server("main", "1.0.0"))
	b := r.builder(t)
	img := build(t, b, "npm:main")
	r.add(server("main", "2.0.0"))
	m := manifestOf(t, img)
	layer := b.st.blobPath(m.Layers[2].Digest)
	if err := os.Remove(layer); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Inspect(img.Ref); !errors.Is(err, ErrCorrupt) {
		t.Errorf("inspect: %v", err)
	}
	again := build(t, b, "npm:main")
	if again.Digest != img.Digest || again.Lock.Version != "1.0.0" {
		t.Errorf("built %s, not %s", again.Lock.Version, img.Lock.Version)
	}
	checkLayout(t, again)
}

type ociManifest struct {
	Config blob
	Layers []blob
}

func manifestOf(t *testing.T, img Image) ociManifest {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(img.Path, "blobs", "sha256", strings.TrimPrefix(img.Digest, "sha256:")))
	if err != nil {
		t.Fatal(err)
	}
	var m ociManifest
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestListRemovePrune(t *testing.T) {
	r := newRegistry(t, server("one", "1.0.0"), server("two", "1.0.0"))
	b := r.builder(t)
	one, two := build(t, b, "npm:one"), build(t, b, "npm:two")
	m1, m2 := manifestOf(t, one), manifestOf(t, two)
	if m1.Layers[0] != m2.Layers[0] || m1.Layers[1] != m2.Layers[1] {
		t.Error("two servers do not share base and node")
	}
	list, err := b.List()
	if err != nil || len(list) != 2 || list[0].Digest != one.Digest || list[1].Digest != two.Digest {
		t.Fatalf("list: %+v %v", list, err)
	}
	if err := b.Remove(t.Context(), one.Ref); err != nil {
		t.Fatal(err)
	}
	if b.st.has(m1.Layers[2]) || b.st.has(m1.Config) || exists(b.st.blobPath(one.Digest)) || exists(b.st.lockPath(one.Digest)) {
		t.Error("the removed image's own blobs are still there")
	}
	checkLayout(t, two)
	if err := b.Remove(t.Context(), one.Ref); !errors.Is(err, ErrNotBuilt) {
		t.Errorf("removed twice: %v", err)
	}
	r.add(server("two", "2.0.0"))
	if _, err := b.Update(t.Context(), two.Ref); err != nil {
		t.Fatal(err)
	}
	would, err := b.Prune(t.Context(), true)
	if err != nil || would == 0 || !b.st.has(m2.Layers[2]) {
		t.Fatalf("a dry run counted %d, %v, or removed something", would, err)
	}
	if n, err := b.Prune(t.Context(), false); err != nil || n == 0 || b.st.has(m2.Layers[2]) {
		t.Errorf("pruned %d bytes, %v", n, err)
	}
	checkLayout(t, build(t, b, "npm:two"))
}

func TestProgressAndConfig(t *testing.T) {
	r := newRegistry(t, server("main", "1.0.0"))
	cfg := r.config(t, t.TempDir())
	var done []string
	cfg.Progress = func(s Step) {
		if s.Done {
			done = append(done, s.Name)
		}
	}
	build(t, must(t)(New(cfg)), "npm:main")
	slices.Sort(done)
	if !cmp.Equal(done, []string{"node", "package", "seal"}) {
		t.Errorf("steps %q", done)
	}
	for name, bad := range map[string]Config{
		"relative": {CacheDir: "x"}, "node": {CacheDir: t.TempDir(), Node: NodeRelease{Version: "latest"}},
		"extra": {CacheDir: t.TempDir(), ExtraPackages: []string{"-o=x"}}, "bytes": {CacheDir: t.TempDir(), MaxBytes: -1},
	} {
		if _, err := New(bad); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestWASM(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		p := path.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	img, err := WASM(write("ok.wasm", "\x00asm\x01\x00\x00\x00rest"))
	if err != nil || !digestRE.MatchString(img.Digest) || img.Size != 12 || !cmp.Equal(img.Entrypoint, []string{"ok"}) || !filepath.IsAbs(img.Path) {
		t.Errorf("%+v %v", img, err)
	}
	sum, err := hashFile(img.Path)
	if err != nil || "sha256:"+sum != img.Digest {
		t.Errorf("digest %s, hash %s", img.Digest, sum)
	}
	for name, p := range map[string]string{
		"component": write("c.wasm", "\x00asm\x0d\x00\x01\x00"), "text": write("t.wasm", "(module)"),
		"short": write("s.wasm", "\x00asm"), "folder": dir,
	} {
		if _, err := WASM(p); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := WASM(filepath.Join(dir, "none.wasm")); !errors.Is(err, ErrNotFound) {
		t.Errorf("missing: %v", err)
	}
}
