package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// pkg is one package of the test's registry.
type pkg struct {
	name, version string
	manifest      map[string]any    // what package.json says beyond name and version
	files         map[string]string // below package/
	raw           []tar.Header      // entries as they are, for hostile tarballs
	zeros         int64             // a file of so many zero bytes
	bulk          int64             // a file of so many bytes that pack well, but not beyond reason
	lie           bool              // the tarball served is not the one promised
	packed        []byte            // the tarball, once it is made
}

// registry is an npm registry on the loopback.
type registry struct {
	*httptest.Server
	mu       sync.Mutex
	pkgs     map[string][]pkg
	token    string                                            // wanted as a bearer token, if set
	answer   func(w http.ResponseWriter, r *http.Request) bool // runs first; true: it has answered
	requests atomic.Int64
	tarballs sync.Map // name -> *atomic.Int64
}

func newRegistry(t *testing.T, pkgs ...pkg) *registry {
	t.Helper()
	r := &registry{pkgs: map[string][]pkg{}}
	for _, p := range append(pkgs, fakeNode()) {
		r.add(p)
	}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *registry) add(p pkg) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.packed = p.tarball()
	r.pkgs[p.name] = append(r.pkgs[p.name], p)
}

const fakeNodeVersion = "99.0.0"

// fakeNode stands for the package of Node's binary, so that tests of
// everything else need not fetch 50 MB.
func fakeNode() pkg {
	return pkg{name: nodePackage(), version: fakeNodeVersion, files: map[string]string{"bin/node": "\x7fELF not really", "LICENSE": "none"}}
}

func (r *registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.requests.Add(1)
	if r.answer != nil && r.answer(w, req) {
		return
	}
	if r.token != "" && req.Header.Get("Authorization") != "Bearer "+r.token {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	path, _ := url.PathUnescape(strings.TrimPrefix(req.URL.EscapedPath(), "/"))
	name, file, isTarball := strings.Cut(path, "/-/")
	r.mu.Lock()
	versions := r.pkgs[name]
	r.mu.Unlock()
	if len(versions) == 0 {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"error":"Not found"}`)
		return
	}
	if isTarball {
		n, _ := r.tarballs.LoadOrStore(name, new(atomic.Int64))
		n.(*atomic.Int64).Add(1)
		for _, p := range versions {
			if file == p.version+".tgz" {
				body := p.packed
				if p.lie {
					p.files = map[string]string{"evil.js": "other bytes"}
					body = p.tarball()
				}
				w.Write(body)
			}
		}
		return
	}
	doc := map[string]any{"name": name, "versions": map[string]any{}, "dist-tags": map[string]string{"latest": versions[len(versions)-1].version}}
	for _, p := range versions {
		m := maps.Clone(p.manifest)
		if m == nil {
			m = map[string]any{}
		}
		m["name"], m["version"] = name, p.version
		sum := sha512.Sum512(p.packed)
		m["dist"] = map[string]string{
			"integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:]),
			"tarball":   r.URL + "/" + name + "/-/" + p.version + ".tgz",
		}
		doc["versions"].(map[string]any)[p.version] = m
	}
	json.NewEncoder(w).Encode(doc)
}

func (r *registry) fetched(name string) int64 {
	n, ok := r.tarballs.Load(name)
	if !ok {
		return 0
	}
	return n.(*atomic.Int64).Load()
}

func (p pkg) tarball() []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	add := func(h tar.Header, body string) {
		h.Size = int64(len(body))
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		w.WriteHeader(&h)
		w.Write([]byte(body))
	}
	m := maps.Clone(p.manifest)
	if m == nil {
		m = map[string]any{}
	}
	if m["name"] == nil {
		m["name"] = p.name
	}
	m["version"] = p.version
	manifest, _ := json.Marshal(m)
	add(tar.Header{Name: "package/package.json"}, string(manifest))
	for _, f := range slices.Sorted(maps.Keys(p.files)) {
		add(tar.Header{Name: "package/" + f}, p.files[f])
	}
	for _, h := range p.raw {
		body := ""
		if h.Typeflag == 0 || h.Typeflag == tar.TypeReg {
			body = "hostile"
		}
		add(h, body)
	}
	block := make([]byte, 1<<20)
	fill := func(name string, size int64) {
		if size == 0 {
			return
		}
		w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size})
		for n := size; n > 0; n -= int64(len(block)) {
			w.Write(block[:min(n, int64(len(block)))])
		}
	}
	fill("package/zeros", p.zeros)
	rand.NewChaCha8([32]byte{}).Read(block[:32<<10])
	fill("package/bulk", p.bulk)
	w.Close()
	z.Close()
	return out.Bytes()
}

// server is a package that passes for an MCP server.
func server(name, version string) pkg {
	return pkg{
		name: name, version: version, manifest: map[string]any{"bin": "cli.js"},
		files: map[string]string{"cli.js": "#!/usr/bin/env node\nconsole.log(1)\n"},
	}
}

// config is a Builder's for the test's registry, with a base layer that is
// there already.
func (r *registry) config(t *testing.T, dir string) Config {
	t.Helper()
	home := t.TempDir()
	host := strings.TrimPrefix(r.URL, "http:")
	rc := "registry=" + r.URL + "\n" + host + "/:_authToken=" + r.token + "\n"
	if err := os.WriteFile(filepath.Join(home, ".npmrc"), []byte(rc), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := Config{CacheDir: dir, Unsandboxed: true, Environ: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home}, Node: NodeRelease{Version: fakeNodeVersion}}
	seedBase(t, dir)
	return cfg
}

func (r *registry) builder(t *testing.T) *Builder {
	t.Helper()
	return must(t)(New(r.config(t, t.TempDir())))
}

func must(t *testing.T) func(*Builder, error) *Builder {
	return func(b *Builder, err error) *Builder {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
}

// seedBase puts a base layer into a cache, so that only the tests of the base
// itself fetch one.
func seedBase(t *testing.T, dir string) {
	t.Helper()
	s, err := openStore(dir, discardLog())
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.shared(t.Context(), baseName(), false, func(w *work) (layerRecord, error) {
		root := newRootfs()
		root.entries["usr/share/ca-certificates/a.crt"] = &entry{typ: tar.TypeReg, data: []byte("A\n")}
		if err := root.complete(); err != nil {
			return layerRecord{}, err
		}
		file := filepath.Join(w.dir, "layer")
		b, err := root.write(file)
		if err != nil {
			return layerRecord{}, err
		}
		debs := []Deb{{Name: "libc6", Version: "1", SHA256: strings.Repeat("0", 64)}}
		return layerRecord{Layer: b, Debs: debs}, s.adopt(file, b)
	})
	if err != nil {
		t.Fatal(err)
	}
}
