package images

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// hostile returns a server with another manifest.
func hostile(manifest map[string]any) pkg {
	p := server("main", "1.0.0")
	for k, v := range manifest {
		p.manifest[k] = v
	}
	return p
}

func TestRefusedPackages(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside.js")
	if err := os.WriteFile(outside, []byte("#!/usr/bin/env node\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	lying := server("main", "1.0.0")
	lying.lie = true
	bun := server("main", "1.0.0")
	bun.files["cli.js"] = "#!/usr/bin/env bun\n"
	big := server("main", "1.0.0")
	big.bulk = 64 << 20
	bomb := server("main", "1.0.0")
	bomb.zeros = 64 << 20
	whiteout := server("main", "1.0.0")
	whiteout.files[".wh..wh..opq"] = "x"
	link := server("main", "1.0.0")
	delete(link.files, "cli.js")
	link.raw = []tar.Header{{Name: "package/cli.js", Typeflag: tar.TypeSymlink, Linkname: outside}}
	for name, c := range map[string]struct {
		p    pkg
		ref  string
		kind error
		word string
	}{
		"bin climbs out":         {hostile(map[string]any{"bin": "../../../../etc/passwd"}), "", ErrRefused, "outside the package"},
		"bin is absolute":        {hostile(map[string]any{"bin": map[string]string{"main": outside}}), "", ErrRefused, "outside the package"},
		"bin is a folder":        {hostile(map[string]any{"bin": "."}), "", ErrRefused, "not a file"},
		"bin is missing":         {hostile(map[string]any{"bin": "none.js"}), "", ErrRefused, "not a file"},
		"bin is a link":          {link, "", ErrRefused, "not a file"},
		"no bin":                 {hostile(map[string]any{"bin": nil}), "", ErrRefused, "no command to run"},
		"bins of other names":    {hostile(map[string]any{"bin": map[string]string{"a": "cli.js", "b": "package.json"}}), "", ErrRefused, "several commands"},
		"unknown command":        {hostile(nil), "npm:main#other", ErrRefused, "no command"},
		"other interpreter":      {bun, "", ErrRefused, "another interpreter"},
		"another's name":         {hostile(map[string]any{"name": "express"}), "", ErrRefused, "calls itself"},
		"other bytes":            {lying, "", ErrRefused, "does not have the hash"},
		"too big":                {big, "", ErrRefused, "unpacks to over"},
		"bomb":                   {bomb, "", ErrRefused, ""},
		"whiteout":               {whiteout, "", ErrRefused, "hide files"},
		"git dependency":         {hostile(map[string]any{"dependencies": map[string]string{"x": "git+file:///nonexistent/x.git"}}), "", ErrRefused, "outside the registry"},
		"URL dependency":         {hostile(map[string]any{"dependencies": map[string]string{"x": "http://127.0.0.1:1/x.tgz"}}), "", ErrRefused, "outside the registry"},
		"folder dependency":      {hostile(map[string]any{"dependencies": map[string]string{"x": "file:/etc"}}), "", ErrRefused, "outside the registry"},
		"other platform":         {hostile(map[string]any{"os": []string{"darwin"}}), "", ErrRefused, "not made for"},
		"unknown version":        {hostile(nil), "npm:main@9.9.9", ErrNotFound, "no version"},
		"unknown package":        {hostile(nil), "npm:nothing", ErrNotFound, "package nothing not found in the configured npm registry"},
		"unknown scoped package": {hostile(nil), "npm:@no/thing", ErrNotFound, "package @no/thing not found"},
		"unknown dependency":     {hostile(map[string]any{"dependencies": map[string]string{"@no/dep": "^1"}}), "", ErrNotFound, `needs "@no/dep"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRegistry(t, c.p)
			cfg := r.config(t, t.TempDir())
			cfg.MaxBytes = 32 << 20
			b := must(t)(New(cfg))
			if c.ref == "" {
				c.ref = "npm:main"
			}
			_, err := b.Build(t.Context(), parse(t, c.ref))
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.word) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v; want one line that says %q", err, c.word)
			}
			wantClean(t, b)
			if list, err := b.List(); err != nil || len(list) != 0 {
				t.Errorf("left an image: %+v %v", list, err)
			}
		})
	}
}

// Install scripts of the package and of what it depends on never run, however
// the user's own configuration has it.
func TestScriptsDoNotRun(t *testing.T) {
	marker := filepath.Join(t.TempDir(), "ran")
	scripts := map[string]string{}
	for _, s := range []string{"preinstall", "install", "postinstall", "prepare", "preprepare", "postprepare"} {
		scripts[s] = "touch " + marker
	}
	dep := server("dep", "1.0.0")
	dep.manifest["scripts"], dep.manifest["hasInstallScript"] = scripts, true
	dep.files["binding.gyp"] = "{}"
	p := hostile(map[string]any{"scripts": scripts, "hasInstallScript": true, "dependencies": map[string]string{"dep": "1"}})
	r := newRegistry(t, p, dep)
	cfg := r.config(t, t.TempDir())
	cfg.Environ = append(cfg.Environ, "NPM_CONFIG_IGNORE_SCRIPTS=false", "npm_config_foreground_scripts=true", "NODE_OPTIONS=--require="+marker+".js")
	build(t, must(t)(New(cfg)), "npm:main")
	if exists(marker) {
		t.Fatal("a script of the package ran")
	}
}

// What a tarball smuggles in stays out of the host and out of the image.
func TestTarballTraversal(t *testing.T) {
	victim := filepath.Join(t.TempDir(), "victim")
	up := strings.Repeat("../", 20)
	p := server("main", "1.0.0")
	p.raw = []tar.Header{
		{Name: "package/" + up + victim[1:]},
		{Name: victim},
		{Name: "package/../../../evil.js"},
		{Name: "package/link", Typeflag: tar.TypeSymlink, Linkname: filepath.Dir(victim)},
		{Name: "package/link/victim"},
		{Name: "package/hard", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"},
		{Name: "package/fifo", Typeflag: tar.TypeFifo},
		{Name: "package/dev", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3},
		{Name: "package/setuid", Mode: 0o6755},
	}
	r := newRegistry(t, p)
	b := r.builder(t)
	img := build(t, b, "npm:main")
	if exists(victim) {
		t.Error("the tarball wrote outside")
	}
	for name, h := range checkLayout(t, img) {
		switch {
		case h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeDir && h.Typeflag != tar.TypeSymlink, h.Mode&^0o777 != 0 || h.Mode&0o222 != 0 && h.Typeflag != tar.TypeSymlink:
			t.Errorf("%s: type %q mode %o", name, h.Typeflag, h.Mode)
		case strings.Contains(name, "..") || strings.HasPrefix(name, "/") || !strings.HasPrefix(name, "app"):
			t.Errorf("a path that leads out: %q", name)
		case h.Typeflag == tar.TypeSymlink && name != "app/node_modules/.bin/main":
			t.Errorf("a link: %s -> %s", name, h.Linkname)
		}
	}
	// Nothing but the cache's own folders is in the cache.
	entries, err := os.ReadDir(b.cfg.CacheDir)
	if err != nil || len(entries) != 8 {
		t.Errorf("%v %v", entries, err)
	}
}

// The layer writer is the last line of defence, whatever npm did.
func TestTreeRefusesWhatLeadsOut(t *testing.T) {
	pack := func(t *testing.T, dir string) (map[string]*tar.Header, error) {
		file := filepath.Join(t.TempDir(), "layer")
		l, err := newLayer(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.tree(t.Context(), dir, "app", func(string) bool { return false }); err != nil {
			l.abandon()
			return nil, err
		}
		if _, err := l.finish(); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]*tar.Header{}
		r := tar.NewReader(bytes.NewReader(raw))
		for {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				return out, nil
			}
			if err != nil {
				t.Fatal(err)
			}
			out[h.Name] = h
		}
	}
	for name, make := range map[string]func(dir string) error{
		"absolute link":     func(d string) error { return os.Symlink("/etc/passwd", d+"/l") },
		"climbing link":     func(d string) error { return os.Symlink("../x", d+"/l") },
		"link by a link":    func(d string) error { return errors.Join(os.Symlink(".", d+"/a"), os.Symlink("a/../../x", d+"/b")) },
		"deep climbing":     func(d string) error { return errors.Join(os.Mkdir(d+"/s", 0o700), os.Symlink("../../etc", d+"/s/l")) },
		"fifo":              func(d string) error { return syscall.Mkfifo(d+"/f", 0o600) },
		"whiteout":          func(d string) error { return os.WriteFile(d+"/.wh.x", nil, 0o600) },
		"folder's whiteout": func(d string) error { return os.Mkdir(d+"/.wh.dir", 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := make(dir); err != nil {
				t.Fatal(err)
			}
			if got, err := pack(t, dir); !errors.Is(err, ErrRefused) {
				t.Errorf("packed %v, %v", got, err)
			}
		})
	}
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(dir+"/s", nil, 0o700), os.Chmod(dir+"/s", 0o700|fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky), os.Symlink("s", dir+"/ok")); err != nil {
		t.Fatal(err)
	}
	got, err := pack(t, dir)
	if err != nil || got["app/s"].Mode != 0o555 || got["app/ok"].Linkname != "s" {
		t.Errorf("%+v %v", got, err)
	}
}

func TestLyingLocks(t *testing.T) {
	r := newRegistry(t, server("main", "1.0.0"), server("other", "1.0.0"))
	first := build(t, r.builder(t), "npm:main")
	sum := "sha512-" + strings.Repeat("A", 86) + "=="
	for name, c := range map[string]struct {
		change func(l *Lock, entry map[string]any)
		word   string
	}{
		"wrong hash":      {func(l *Lock, e map[string]any) { e["integrity"], l.Integrity = sum, sum }, "does not have the hash"},
		"no hash":         {func(l *Lock, e map[string]any) { delete(e, "integrity"); l.Integrity = "" }, "no hash"},
		"hash in one":     {func(_ *Lock, e map[string]any) { e["integrity"] = sum }, "says one version"},
		"link":            {func(_ *Lock, e map[string]any) { e["link"] = true }, "link to a folder"},
		"git":             {func(_ *Lock, e map[string]any) { e["resolved"] = "git+ssh://h/x" }, "outside the registry"},
		"git version":     {func(_ *Lock, e map[string]any) { e["version"] = "git+ssh://h/x" }, "no exact version"},
		"git dependency":  {func(_ *Lock, e map[string]any) { e["dependencies"] = map[string]any{"x": "github:u/r"} }, "outside the registry"},
		"other package":   {func(l *Lock, _ map[string]any) { l.Name = "other" }, "another package"},
		"alias":           {func(_ *Lock, e map[string]any) { e["name"] = "other" }, "in the place of"},
		"other platform":  {func(l *Lock, _ map[string]any) { l.Platform = "linux/s390x" }, "is for"},
		"other digest":    {func(l *Lock, _ map[string]any) { l.Digest = "sha256:" + strings.Repeat("0", 64) }, "another digest"},
		"flag as package": {func(l *Lock, _ map[string]any) { l.Base[0].Name = "-o" }, "does not pin the base"},
		"no node":         {func(l *Lock, _ map[string]any) { l.Node.Integrity = "" }, "does not pin Node"},
		"other node":      {func(l *Lock, _ map[string]any) { l.Node.Integrity = sum }, "does not have the hash"},
	} {
		t.Run(name, func(t *testing.T) {
			l := *first.Lock
			l.Base = append([]Deb(nil), l.Base...)
			var npm map[string]any
			if err := json.Unmarshal(l.NPM, &npm); err != nil {
				t.Fatal(err)
			}
			c.change(&l, npm["packages"].(map[string]any)["node_modules/main"].(map[string]any))
			l.NPM, _ = json.Marshal(npm)
			b := r.builder(t)
			img, err := b.BuildLocked(t.Context(), l)
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.word) {
				t.Errorf("got %s, %v; want a refusal that says %q", img.Digest, err, c.word)
			}
			wantClean(t, b)
		})
	}
	outside := `{"lockfileVersion":3,"packages":{"node_modules/../../x":{"version":"1.0.0","integrity":"sha512-x"}}}`
	if _, err := checkLock([]byte(outside), "x"); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "outside node_modules") {
		t.Errorf("got %v", err)
	}
}

// Registries fail in many ways; the user reads one line, and never a token or
// an address.
func TestRegistryFailures(t *testing.T) {
	const token = "s3cret-t0ken-value"
	status := func(code int) func(*registry) {
		return func(r *registry) {
			r.answer = func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(code); return true }
		}
	}
	for name, c := range map[string]struct {
		prepare func(*registry)
		kind    error
	}{
		"401":    {status(401), ErrDenied},
		"403":    {status(403), ErrDenied},
		"500":    {status(500), ErrNetwork},
		"503":    {status(503), ErrNetwork},
		"closed": {func(r *registry) { r.Close() }, ErrNetwork},
		"not JSON": {func(r *registry) {
			r.answer = func(w http.ResponseWriter, _ *http.Request) bool { fmt.Fprint(w, "<html>"); return true }
		}, ErrNetwork},
		"hangs up": {func(r *registry) {
			r.answer = func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }
		}, ErrNetwork},
		"with token": {func(*registry) {}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRegistry(t, server("main", "1.0.0"))
			r.token = token
			cfg := r.config(t, t.TempDir())
			var log bytes.Buffer
			cfg.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
			c.prepare(r)
			b := must(t)(New(cfg))
			_, err := b.Build(t.Context(), parse(t, "npm:main"))
			if !errors.Is(err, c.kind) {
				t.Errorf("got %v", err)
			}
			said := fmt.Sprint(err) + log.String()
			if strings.Contains(said, token) || strings.Contains(said, "127.0.0.1") || err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("says too much: %s", said)
			}
			err = filepath.WalkDir(cfg.CacheDir, func(p string, e fs.DirEntry, err error) error {
				if err != nil || !e.Type().IsRegular() {
					return err
				}
				raw, err := os.ReadFile(p)
				if bytes.Contains(raw, []byte(token)) {
					t.Errorf("the token is in %s", p)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

func TestMissingTools(t *testing.T) {
	r := newRegistry(t, server("main", "1.0.0"))
	cfg := r.config(t, t.TempDir())
	cfg.Environ = []string{"PATH=/nonexistent"}
	_, err := must(t)(New(cfg)).Build(t.Context(), parse(t, "npm:main"))
	if !errors.Is(err, ErrTool) || !strings.Contains(err.Error(), "npm is not installed") {
		t.Errorf("got %v", err)
	}
}

// tarOf makes the file system of a distribution package.
func tarOf(t *testing.T, headers ...tar.Header) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		body := ""
		if h.Typeflag == tar.TypeReg {
			body, h.Size = "x", 1
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, body)
	}
	w.Close()
	return &b
}

func TestRootfsMerges(t *testing.T) {
	r := newRootfs()
	err := r.add(tarOf(t,
		tar.Header{Typeflag: tar.TypeDir, Name: "./"},
		tar.Header{Typeflag: tar.TypeDir, Name: "./bin/", Mode: 0o755},
		tar.Header{Typeflag: tar.TypeReg, Name: "./bin/su", Mode: 0o4755},
		tar.Header{Typeflag: tar.TypeLink, Name: "./usr/bin/su2", Linkname: "./bin/su"},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "./lib64/ld.so", Linkname: "/lib/ld.so"},
		tar.Header{Typeflag: tar.TypeReg, Name: "./usr/share/doc/x/copyright"},
		tar.Header{Typeflag: tar.TypeReg, Name: "./usr/share/doc/x/README"},
		tar.Header{Typeflag: tar.TypeReg, Name: "./usr/share/ca-certificates/mozilla/a.crt"},
	))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.complete(); err != nil {
		t.Fatal(err)
	}
	for name, typ := range map[string]byte{
		"usr/bin/su": tar.TypeReg, "usr/bin/su2": tar.TypeReg, "bin": tar.TypeSymlink, "lib64": tar.TypeSymlink, "usr/lib64/ld.so": tar.TypeSymlink,
		"usr/share/doc/x/copyright": tar.TypeReg, "etc/ssl/certs/ca-certificates.crt": tar.TypeReg, "usr/share": tar.TypeDir, "home/mcp": tar.TypeDir,
	} {
		if e := r.entries[name]; e == nil || e.typ != typ {
			t.Errorf("%s: %+v", name, e)
		}
	}
	if r.entries["usr/share/doc/x/README"] != nil || r.entries["lib32"] != nil {
		t.Error("holds what should be left out")
	}
	file := filepath.Join(t.TempDir(), "layer")
	if _, err := r.write(file); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	tr := tar.NewReader(bytes.NewReader(raw))
	for h, err := tr.Next(); err == nil; h, err = tr.Next() {
		if h.Mode&0o6000 != 0 || h.Name != "home/mcp/" && h.Uid != 0 || strings.HasPrefix(h.Name, "/") {
			t.Errorf("%+v", h)
		}
	}
	for name, h := range map[string]tar.Header{
		"climbs":    {Typeflag: tar.TypeReg, Name: "./a/../../etc/x"},
		"device":    {Typeflag: tar.TypeChar, Name: "./dev/x"},
		"fifo":      {Typeflag: tar.TypeFifo, Name: "./x"},
		"hard link": {Typeflag: tar.TypeLink, Name: "./x", Linkname: "./none"},
	} {
		if err := newRootfs().add(tarOf(t, h)); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
