package images

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	gcrreg "github.com/google/go-containerregistry/pkg/registry"
	gcr "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/sandboxd/sandboxd/sandbox"
)

// tarLayer is a layer of these entries; regular ones hold their own name.
func tarLayer(t *testing.T, entries ...tar.Header) gcr.Layer {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range entries {
		body := ""
		if h.Typeflag == 0 || h.Typeflag == tar.TypeReg {
			h.Typeflag, body = tar.TypeReg, h.Name
		}
		h.Size = int64(len(body))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func ociImage(t *testing.T, layers ...gcr.Layer) gcr.Image {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err == nil {
		img, err = mutate.ConfigFile(img, withLayers(t, img, &gcr.ConfigFile{
			OS: "linux", Architecture: runtime.GOARCH,
			Config: gcr.Config{Entrypoint: []string{"/srv"}, Cmd: []string{"--stdio"}, Env: []string{"A=b", "HOME=/root", "PATH=/bin"}, WorkingDir: "/work", User: "1000"},
		}))
	}
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func withLayers(t *testing.T, img gcr.Image, conf *gcr.ConfigFile) *gcr.ConfigFile {
	t.Helper()
	have, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	conf.RootFS = have.RootFS
	return conf
}

func saveLayout(t *testing.T, imgs ...gcr.Image) string {
	t.Helper()
	dir := t.TempDir()
	p, err := layout.Write(dir, empty.Index)
	for _, img := range imgs {
		if err == nil {
			err = p.AppendImage(img)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func plainBuilder(t *testing.T, out Outlet) *Builder {
	t.Helper()
	dir := t.TempDir()
	seedBase(t, dir)
	return must(t)(New(Config{CacheDir: dir, Outlet: out, MaxBytes: 1 << 20, Environ: []string{"PATH=/nonexistent"}}))
}

// A container image comes in flat: deleted files are gone, nothing is owned by
// anybody, privileged or a device, and how it starts is as its author said.
func TestContainerImageIsSealed(t *testing.T) {
	img := ociImage(t,
		tarLayer(t, tar.Header{Name: "srv", Mode: 0o6755, Uid: 1000}, tar.Header{Name: "gone", Mode: 0o644}, tar.Header{Name: "etc/passwd", Mode: 0o600},
			tar.Header{Name: "dev/mem", Typeflag: tar.TypeChar}, tar.Header{Name: "private/", Typeflag: tar.TypeDir, Mode: 0o700}, tar.Header{Name: "private/key", Mode: 0o600, Uid: 1000}),
		tarLayer(t, tar.Header{Name: ".wh.gone"}, tar.Header{Name: "hard", Typeflag: tar.TypeLink, Linkname: "srv"}, tar.Header{Name: "abs", Typeflag: tar.TypeSymlink, Linkname: "/srv"}),
	)
	dir := saveLayout(t, img)
	got := build(t, plainBuilder(t, nil), "oci:"+dir)
	files := checkLayout(t, got)
	for name, h := range files {
		if h.Uid != 0 || h.Mode&0o6222 != 0 && h.Typeflag == tar.TypeReg || h.Typeflag == tar.TypeChar || h.Mode&0o444 == 0 {
			t.Errorf("%s: %+v", name, h)
		}
	}
	if files["gone"] != nil || files["srv"] == nil || files["srv"].Mode != 0o555 || files["private"].Mode&0o555 != 0o555 {
		t.Errorf("files %v", slices.Collect(mapsKeys(files)))
	}
	if d := cmp.Diff([]string{"/srv"}, got.Entrypoint); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"HOME=/home/mcp", "A=b", "PATH=/bin"}, got.Env); d != "" || got.Dir != "/work" || !slices.Equal(got.Cmd, []string{"--stdio"}) {
		t.Errorf("%s %s %q", d, got.Dir, got.Cmd)
	}
	if again := build(t, plainBuilder(t, nil), "oci:"+saveLayout(t, img)); again.Lock.Integrity != got.Lock.Integrity {
		t.Error("another digest of the source")
	}
}

func mapsKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func TestHostileContainerImages(t *testing.T) {
	huge := tar.Header{Name: "huge", Mode: 0o644}
	for name, c := range map[string]struct {
		img  gcr.Image
		word string
	}{
		"link to none": {ociImage(t, tarLayer(t, tar.Header{Name: "l", Typeflag: tar.TypeLink, Linkname: "etc/shadow"})), "hard link to nothing"},
		"huge":         {ociImage(t, bombLayer(t, huge, 4<<20)), "unpacks to over"},
		"long path":    {ociImage(t, tarLayer(t, tar.Header{Name: strings.Repeat("x", maxPath+1)})), "longer than any"},
		// Of a file that an upper layer deletes, nothing gets into the image.
		"huge and deleted": {ociImage(t, bombLayer(t, huge, 4<<20), tarLayer(t, tar.Header{Name: ".wh.huge"})), "layers unpack to more"},
		"platform": {func() gcr.Image {
			i := ociImage(t, tarLayer(t, tar.Header{Name: "srv"}))
			out, _ := mutate.ConfigFile(i, withLayers(t, i, &gcr.ConfigFile{OS: "linux", Architecture: "s390x"}))
			return out
		}(), "is made for"},
	} {
		t.Run(name, func(t *testing.T) {
			b := plainBuilder(t, nil)
			ref := parse(t, "oci:"+saveLayout(t, c.img))
			if _, err := b.Build(t.Context(), ref); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.word) {
				t.Errorf("got %v", err)
			}
			wantClean(t, b)
		})
	}
}

// Whatever of a climbing path the library lets through, the layer refuses.
func TestFlattenerRefusesWhatClimbs(t *testing.T) {
	for _, name := range []string{"../../etc/cron.d/x", "a/../../x", "a/.wh.b"} {
		layer := tarLayer(t, tar.Header{Name: name, Mode: 0o644})
		r, err := layer.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		l, err := newLayer(filepath.Join(t.TempDir(), "layer"))
		if err != nil {
			t.Fatal(err)
		}
		f := flattener{l: l, most: 1 << 20, seen: map[string]byte{}}
		if err := f.copy(t.Context(), tar.NewReader(r)); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
		l.abandon()
	}
	// The library drops such a path; either way it is not in the image.
	img := ociImage(t, tarLayer(t, tar.Header{Name: "../../etc/cron.d/x", Mode: 0o644}, tar.Header{Name: "srv", Mode: 0o755}))
	got, err := plainBuilder(t, nil).Build(t.Context(), parse(t, "oci:"+saveLayout(t, img)))
	if errors.Is(err, ErrRefused) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	for name := range checkLayout(t, got) {
		if strings.Contains(name, "..") || strings.HasPrefix(name, "/") {
			t.Errorf("a path that climbs: %q", name)
		}
	}
}

func bombLayer(t *testing.T, h tar.Header, size int64) gcr.Layer {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	h.Typeflag, h.Size = tar.TypeReg, size
	if err := errors.Join(w.WriteHeader(&h), func() error { _, err := w.Write(make([]byte, size)); return err }(), w.Close()); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// openOutlet reaches container registries from the test itself.
type openOutlet struct{ Outlet }

func (openOutlet) Images(context.Context, string) ([]remote.Option, error) { return nil, nil }

func (openOutlet) Start(context.Context, Kind, sandbox.Spec) (sandbox.Sandbox, error) {
	return nil, sandbox.ErrUnavailable
}

// From a registry, the tag of the first build is what stays, and a lock builds
// that again where the tag has moved.
func TestContainerImageFromARegistry(t *testing.T) {
	srv := httptest.NewServer(gcrreg.New(gcrreg.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(srv.Close)
	at, err := name.ParseReference(strings.TrimPrefix(srv.URL, "http://") + "/team/server:1")
	if err != nil {
		t.Fatal(err)
	}
	push := func(file string) {
		if err := remote.Write(at, ociImage(t, tarLayer(t, tar.Header{Name: "srv", Mode: 0o755}, tar.Header{Name: file, Mode: 0o644}))); err != nil {
			t.Fatal(err)
		}
	}
	push("first")
	b := plainBuilder(t, openOutlet{})
	ref := "oci:" + at.Name()
	first := build(t, b, ref)
	push("second")
	if again := build(t, b, ref); again.Digest != first.Digest {
		t.Error("the tag was followed without an update")
	}
	second, err := b.Update(t.Context(), parse(t, ref))
	if err != nil || second.Digest == first.Digest {
		t.Fatalf("update: %v", err)
	}
	other := plainBuilder(t, openOutlet{})
	locked, err := other.BuildLocked(t.Context(), *first.Lock)
	if err != nil || locked.Digest != first.Digest {
		t.Errorf("by the lock %s, at first %s, %v", locked.Digest, first.Digest, err)
	}
	if _, err := b.Build(t.Context(), parse(t, "oci:"+strings.Replace(at.Name(), "team", "none", 1))); !errors.Is(err, ErrNotFound) {
		t.Errorf("an image that is not there: %v", err)
	}
}

// A folder is sealed without its history and secrets, and anew when it changes.
func TestFolderIsSealed(t *testing.T) {
	r := newRegistry(t)
	b := r.builder(t)
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		p := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o700), os.WriteFile(p, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	write("package.json", `{"name":"x","main":"build/index.js"}`)
	write("build/index.js", "1")
	write("node_modules/dep/index.js", "1")
	write(".git/config", "token")
	write(".env", "SECRET=1")
	first := build(t, b, "dir:"+dir)
	files := checkLayout(t, first)
	if files["app/build/index.js"] == nil || files["app/node_modules/dep/index.js"] == nil || files["app/.git"] != nil || files["app/.env"] != nil {
		t.Errorf("files %v", slices.Collect(mapsKeys(files)))
	}
	if d := cmp.Diff([]string{nodeBin, "/app/build/index.js"}, first.Entrypoint); d != "" {
		t.Error(d)
	}
	if again := build(t, b, "dir:"+dir); again.Digest != first.Digest {
		t.Error("an unchanged folder has another digest")
	}
	write("build/index.js", "2")
	if again := build(t, b, "dir:"+dir+"#build/index.js"); again.Digest == first.Digest {
		t.Error("a changed folder has the same digest")
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Build(t.Context(), parse(t, "dir:"+dir)); !errors.Is(err, ErrRefused) {
		t.Errorf("a link that leads out: %v", err)
	}
	_ = os.Remove(filepath.Join(dir, "out"))
	write("s.py", "1")
	write("requirements.txt", "-r /etc/passwd\n")
	if _, err := b.Build(t.Context(), parse(t, "dir:"+dir+"#s.py")); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "no package of the index") {
		t.Errorf("requirements that name a file: %v", err)
	}
	wantClean(t, b)
}

type member struct {
	name, text string
	mode       os.FileMode
}

func writeWheel(t *testing.T, dir, file string, members ...member) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, file))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z := zip.NewWriter(f)
	for _, m := range members {
		h := &zip.FileHeader{Name: m.name, Method: zip.Deflate}
		h.SetMode(m.mode | 0o644)
		w, err := z.CreateHeader(h)
		if err == nil {
			_, err = io.WriteString(w, m.text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestHostileWheels(t *testing.T) {
	meta := member{name: "a-1.dist-info/METADATA", text: "Name: A\nVersion: 1\n"}
	for name, c := range map[string]struct {
		file    string
		members []member
		word    string
	}{
		"climbing":       {"a-1-py3-none-any.whl", []member{meta, {name: "../../x.py"}}, "holds the path"},
		"absolute":       {"a-1-py3-none-any.whl", []member{meta, {name: "/etc/x"}}, "holds the path"},
		"link":           {"a-1-py3-none-any.whl", []member{meta, {name: "l", text: "/etc/passwd", mode: os.ModeSymlink}}, "no plain file"},
		"data climbs":    {"a-1-py3-none-any.whl", []member{meta, {name: "a-1.data/data/../../../x"}}, "holds the path"},
		"another's name": {"a-1-py3-none-any.whl", []member{{name: "a-1.dist-info/METADATA", text: "Name: b\n"}}, "calls itself"},
		"nobody's":       {"a-1-py3-none-any.whl", []member{{name: "a.py"}}, "does not say whose"},
		"code as entry":  {"a-1-py3-none-any.whl", []member{meta, {name: "a-1.dist-info/entry_points.txt", text: "[console_scripts]\na = a:main();evil\n"}}, "entry point"},
		"bomb":           {"a-1-py3-none-any.whl", []member{meta, {name: "z", text: strings.Repeat("\x00", 4<<20)}}, "unpacks to over"},
		"no wheel":       {"a-1.tar.gz", nil, "no wheel"},
		"another one":    {"b-1-py3-none-any.whl", []member{{name: "b-1.dist-info/METADATA", text: "Name: b\n"}}, "no wheel of a"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			writeWheel(t, dir, c.file, c.members...)
			b := plainBuilder(t, nil)
			wheels, err := readWheels(dir, "a", nil)
			if err == nil {
				w, workErr := newWork(t.Context(), b.st.path("tmp"))
				if workErr != nil {
					t.Fatal(workErr)
				}
				_, err = b.packWheels(t.Context(), w, wheels, "3.11")
				err = errors.Join(err, w.close())
			}
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.word) {
				t.Errorf("got %v", err)
			}
		})
	}
	for from, want := range map[string]string{"a-1.data/scripts": "", "a-1.data/data": "", "a-1.data/purelib": "", "a-1.data/headers/x": "", "a-1.data/scripts/x": "app/bin/x", "a/b.py": "site/a/b.py"} {
		if got := (&unpacker{site: "site"}).place(from); got != want {
			t.Errorf("%s goes to %q, want %q", from, got, want)
		}
	}
	// A lock that names other hashes.
	dir := t.TempDir()
	writeWheel(t, dir, "a-1-py3-none-any.whl", meta)
	lock := &Lock{Wheels: []Wheel{{File: "a-1-py3-none-any.whl", SHA256: strings.Repeat("0", 64)}}}
	if _, err := readWheels(dir, "a", lock); !errors.Is(err, ErrRefused) {
		t.Errorf("a lying lock: %v", err)
	}
}

// Without a sandbox to fetch in, nothing is fetched.
func TestNothingIsFetchedWithoutASandbox(t *testing.T) {
	b := plainBuilder(t, nil)
	for _, ref := range []string{"npm:main", "pypi:main", "go:example.com/x@v1.0.0", "oci:example.com/x"} {
		if _, err := b.Build(t.Context(), parse(t, ref)); !errors.Is(err, ErrUnconfined) && !errors.Is(err, ErrTool) {
			t.Errorf("%s: %v", ref, err)
		}
	}
	wantClean(t, b)
}

// A pipe blocks whoever opens it: neither a folder's program nor an image on
// the disk may be one.
func TestPipesAreNotOpened(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "index.js"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"dir:" + dir + "#index.js", "oci:" + filepath.Join(dir, "index.js")} {
		_, err := plainBuilder(t, nil).Build(t.Context(), parse(t, ref))
		if !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", ref, err)
		}
	}
}
