package gowasm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/images"
)

func TestParseTarget(t *testing.T) {
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	for s, want := range map[string]Target{
		"x.io/a@v1.2.3":          {Package: "x.io/a", Version: "v1.2.3"},
		"x.io/a@latest/cmd/b":    {Package: "x.io/a/cmd/b", Version: "latest"},
		"go:x.io/a/cmd/b":        {Package: "x.io/a/cmd/b", Version: "latest"},
		"go:x.io/a/cmd/b@v2.0.0": {Package: "x.io/a/cmd/b", Version: "v2.0.0"},
		".":                      {Dir: here},
		"./x":                    {Dir: filepath.Join(here, "x")},
		"/a/../b":                {Dir: "/b"},
	} {
		if got, err := ParseTarget(s); err != nil || got != want {
			t.Errorf("%q: %+v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "x.io/a", "server", "go:", "x.io/a@", "x.io/a@none", "-x.io/a@v1", "x.io/a@-toolexec", "x.io/a@v1/../b", "x.io/a@v1 b", "npm:a@1"} {
		if got, err := ParseTarget(s); !errors.Is(err, images.ErrReference) {
			t.Errorf("%q: %+v, %v; want ErrReference", s, got, err)
		}
	}
}

// TestEditsFitThisGo: every anchor is in the Go that runs the tests, and a
// standard library that differs there is refused rather than half changed.
func TestEditsFitThisGo(t *testing.T) {
	g, err := findGo(t.Context(), "go", t.TempDir(), os.Environ())
	if err != nil {
		t.Fatal(err)
	}
	src := os.DirFS(filepath.Join(g.root, "src"))
	files, err := edited(src, g.version)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range edits {
		if n := bytes.Count(files[e.file], []byte(e.with)); n != 1 {
			t.Errorf("%s: the edit of %q stands there %d times", e.file, e.anchor, n)
		}
	}
	if n := bytes.Count(files["crypto/x509/zz_roots_wasip1.go"], []byte("BEGIN CERTIFICATE")); n < 100 {
		t.Errorf("%d roots are built in", n)
	}
	whole := fstest.MapFS{}
	for _, e := range edits {
		b, err := os.ReadFile(filepath.Join(g.root, "src", e.file))
		if err != nil {
			t.Fatal(err)
		}
		whole[e.file] = &fstest.MapFile{Data: b}
	}
	for _, e := range edits {
		kept := whole[e.file]
		for what, data := range map[string][]byte{
			"gone":  bytes.Replace(kept.Data, []byte(e.anchor), []byte("changed"), 1),
			"twice": append(bytes.Clone(kept.Data), e.anchor...),
		} {
			whole[e.file] = &fstest.MapFile{Data: data}
			if _, err := edited(whole, "go9.9"); !errors.Is(err, images.ErrTool) || !strings.Contains(err.Error(), e.file) || !strings.Contains(err.Error(), "go9.9") {
				t.Errorf("%s, anchor %s: %v", e.file, what, err)
			}
		}
		delete(whole, e.file)
		if _, err := edited(whole, "go9.9"); !errors.Is(err, images.ErrTool) {
			t.Errorf("%s missing: %v", e.file, err)
		}
		whole[e.file] = kept
	}
}

// module writes a module of files below a new folder.
func module(t *testing.T, files map[string]string) Target {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Target{Dir: dir}
}

func newBuilder(t *testing.T, cfg Config) *Builder {
	t.Helper()
	if cfg.CacheDir == "" {
		cfg.CacheDir = t.TempDir()
	}
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// listing inspects a module as a build does, without the build.
func listing(t *testing.T, target Target) (fatal, warnings []Finding) {
	t.Helper()
	g, err := findGo(t.Context(), "go", t.TempDir(), os.Environ())
	if err != nil {
		t.Fatal(err)
	}
	packages, err := list(t.Context(), g, target.Dir, ".")
	if err != nil {
		t.Fatal(err)
	}
	return inspect(packages)
}

const goMod = "module example.com/s\n\ngo 1.25\n"

// TestWhatCannotWorkIsFoundBefore: cgo, packages for other systems, and what
// starts programs, each named with who needs it, before anything is compiled.
func TestWhatCannotWorkIsFoundBefore(t *testing.T) {
	fatal, warnings := listing(t, module(t, map[string]string{
		"go.mod":       goMod,
		"main.go":      "package main\nimport (\n\"example.com/s/c\"\n\"example.com/s/linux\"\n\"example.com/s/absent\"\n\"example.com/s/ok\"\n\"os/exec\"\n\"plugin\"\n)\nfunc main() { c.F(); linux.F(); absent.F(); ok.F(); _ = exec.Command; _ = plugin.Open }\n",
		"c/c.go":       "package c\n\nimport \"C\"\n\nfunc F() {}\n",
		"linux/l.go":   "//go:build linux\n\npackage linux\n\nfunc F() {}\n",
		"ok/pure.go":   "package ok\n\nimport \"os/exec\"\n\nfunc F() { exec.Command(\"x\").Run() }\n",
		"ok/cgo.go":    "package ok\n\nimport \"C\"\n",
		"ok/x_test.go": "package ok\n",
	}))
	want := []Finding{
		{Kind: "missing", Package: "example.com/s/absent", Detail: "package example.com/s/absent is not in std"},
		{Kind: "cgo", Package: "example.com/s/c", Detail: "needs cgo, so a C compiler and a C library; imported by example.com/s"},
		{Kind: "system", Package: "example.com/s/linux", Detail: "is written for other systems only; imported by example.com/s"},
	}
	got := map[string]Finding{}
	for _, f := range fatal {
		got[f.Package] = f
	}
	for _, w := range want {
		f := got[w.Package]
		if f.Kind != w.Kind || w.Kind != "missing" && f != w {
			t.Errorf("got %+v, want %+v", f, w)
		}
	}
	if len(fatal) != len(want) {
		t.Errorf("found %+v", fatal)
	}
	// What a library alone can do is marked as such.
	_, lib := inspect([]goPackage{
		{ImportPath: "example.com/l", Module: &goModule{Path: "example.com/l", Version: "v1.0.0"}, Imports: []string{"os/exec"}},
		{ImportPath: "example.com/s", Module: &goModule{Path: "example.com/s", Main: true}, Imports: []string{"example.com/l"}},
	})
	if len(lib) != 1 || !lib[0].Library {
		t.Errorf("%+v", lib)
	}
	wantWarnings := []Finding{
		{Kind: "exec", Package: "example.com/s", Detail: "can start programs, which always fails there; so can 1 more: example.com/s/ok"},
		{Kind: "plugin", Package: "example.com/s", Detail: "can load plugins, which always fails there"},
	}
	if diff := cmp.Diff(wantWarnings, warnings); diff != "" {
		t.Error(diff)
	}
}

func TestReportNamesPackageAndReason(t *testing.T) {
	packages := []goPackage{{ImportPath: "example.com/mmap", Module: &goModule{Path: "example.com/mmap", Version: "v1.0.0"}}}
	got := explain([]byte("# example.com/mmap\nmmap.go:10:14: undefined: syscall.Mmap\nmmap.go:11:2: undefined: syscall.Mmap\nmmap.go:12: undefined: syscall.Munmap\ntoo many errors\n"+
		"# example.com/odd\n./odd.go:1:2: cannot use x\x1b[31m as y\n"), packages)
	want := []Finding{
		{Kind: "compile", Package: "example.com/mmap@v1.0.0", Detail: "uses syscall.Mmap, syscall.Munmap, which wasip1 does not have"},
		{Kind: "compile", Package: "example.com/odd", Detail: `does not compile for wasip1: cannot use x\x1b[31m as y`},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	err := error(&ReportError{Target: "go:example.com/a@v1", Findings: got})
	if !errors.Is(err, images.ErrRefused) || !strings.Contains(err.Error(), "example.com/mmap@v1.0.0: uses syscall.Mmap") {
		t.Errorf("%v", err)
	}
	if n := len(explain([]byte(strings.Repeat("# p\nx.go:1:1: e\n", 50)), nil)); n != mostPackages {
		t.Errorf("a report of %d packages", n)
	}
}

// TestBuildRunsNothingOfTheCallers: flags, tools and an overlay that the
// caller's configuration or a hostile folder names are not used, and no other
// toolchain is fetched.
func TestBuildRunsNothingOfTheCallers(t *testing.T) {
	ran := filepath.Join(t.TempDir(), "ran")
	tool := filepath.Join(t.TempDir(), "tool")
	if err := os.WriteFile(tool, []byte("#!/bin/sh\ntouch "+ran+"\nexec \"$@\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	goenv := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(goenv, []byte("GOFLAGS=-toolexec="+tool+"\nGOTOOLCHAIN=go1.99.0\nCGO_ENABLED=1\nCC="+tool+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	target := module(t, map[string]string{
		"go.mod":  goMod,
		"main.go": "package main\n\n//go:generate " + tool + "\nfunc main() { println(\"hi\") }\n",
		"cgo.go":  "package main\n\n// #cgo pkg-config: " + tool + "\nimport \"C\"\n",
	})
	b := newBuilder(t, Config{Environ: append(os.Environ(), "GOENV="+goenv, "GOFLAGS=-toolexec="+tool, "CGO_ENABLED=1", "CC="+tool)})
	g, err := findGo(t.Context(), "go", t.TempDir(), b.cfg.Environ)
	if err != nil {
		t.Fatal(err)
	}
	stdout, _, err := g.run(t.Context(), target.Dir, "env", "-json", "GOFLAGS", "GOTOOLCHAIN", "CGO_ENABLED", "GOVCS", "GOOS", "CC")
	var set map[string]string
	if err != nil || json.Unmarshal(stdout, &set) != nil {
		t.Fatal(err)
	}
	if set["GOFLAGS"] != "" || set["GOTOOLCHAIN"] != "local" || set["CGO_ENABLED"] != "0" || set["GOVCS"] != "*:off" || set["GOOS"] != "wasip1" || strings.Contains(set["CC"], tool) {
		t.Errorf("the go command is left with %v", set)
	}
	if _, err := list(t.Context(), g, target.Dir, "."); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("a tool of the caller's or the folder's ran")
	}
	newer := module(t, map[string]string{"go.mod": "module example.com/s\n\ngo 1.99\n\ntoolchain go1.99.0\n", "main.go": "package main\n\nfunc main() {}\n"})
	if _, err := b.Build(t.Context(), newer, false); !errors.Is(err, images.ErrTool) || !strings.Contains(err.Error(), "newer Go") {
		t.Errorf("a module that asks for another toolchain: %v", err)
	}
}

// TestNoCommandSaysWhichThereAre and needs no network: a library is no server.
func TestNoCommandSaysWhichThereAre(t *testing.T) {
	target := module(t, map[string]string{
		"go.mod": goMod, "lib.go": "package s\n", "cmd/one/main.go": "package main\n\nfunc main() {}\n",
	})
	_, err := newBuilder(t, Config{}).Build(t.Context(), target, false)
	if !errors.Is(err, images.ErrReference) || !strings.Contains(err.Error(), "example.com/s/cmd/one") {
		t.Errorf("%v", err)
	}
}

// TestKeyNamesTheInputs: what decides the module's bytes decides where it is
// kept, and nothing else does.
func TestKeyNamesTheInputs(t *testing.T) {
	target := module(t, map[string]string{"go.mod": goMod, "main.go": "package main\n\nfunc main() {}\n", "notes.txt": "a"})
	g, err := findGo(t.Context(), "go", t.TempDir(), os.Environ())
	if err != nil {
		t.Fatal(err)
	}
	key := func(change func(*job)) string {
		t.Helper()
		packages, err := list(t.Context(), g, target.Dir, ".")
		if err != nil {
			t.Fatal(err)
		}
		j := job{target: target, dir: target.Dir, g: g, overlay: overlay{hash: "o"}}
		if change != nil {
			change(&j)
		}
		k, err := j.key(packages)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	first := key(nil)
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(target.Dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("notes.txt", "b")
	if key(nil) != first {
		t.Error("a file that is no input changes the key")
	}
	if key(func(j *job) { j.g.version = "go9" }) == first || key(func(j *job) { j.overlay.hash = "p" }) == first {
		t.Error("another Go or another overlay has the same key")
	}
	write("main.go", "package main\n\nfunc main() { println() }\n")
	second := key(nil)
	write("go.mod", goMod+"\ngodebug netdns=go\n")
	if second == first || key(nil) == second {
		t.Error("another source has the same key")
	}
}

// TestCacheGivesBackWhatWasPutIn, and neither a record of an older overlay nor
// a module that was changed on disk.
func TestCacheGivesBackWhatWasPutIn(t *testing.T) {
	b := newBuilder(t, Config{Go: filepath.Join(t.TempDir(), "no-go-here")})
	target := Target{Package: "example.com/s/cmd/x", Version: "v1.0.0"}
	file := filepath.Join(t.TempDir(), "m")
	if err := os.WriteFile(file, []byte("\x00asm\x01\x00\x00\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	img, err := images.WASM(file)
	if err != nil {
		t.Fatal(err)
	}
	key := strings.Repeat("ab", 32)
	if err := b.writeOutput(key, file, output{Name: "x", Digest: img.Digest, Go: "go1", Version: "v1.0.0"}); err != nil {
		t.Fatal(err)
	}
	own, err := editsHash()
	if err != nil {
		t.Fatal(err)
	}
	if err := b.writeRecord(target, record{Target: target.String(), Key: key, Edits: own}); err != nil {
		t.Fatal(err)
	}
	res, err := b.Sealed(t.Context(), target)
	if err != nil || !res.Cached || res.Image.Digest != img.Digest || filepath.Base(res.Image.Path) != "x.wasm" {
		t.Fatalf("%+v, %v", res, err)
	}
	out := filepath.Join(t.TempDir(), "out.wasm")
	if err := res.CopyTo(out); err != nil {
		t.Fatal(err)
	}
	if again, err := images.WASM(out); err != nil || again.Digest != img.Digest {
		t.Errorf("copied to %+v, %v", again, err)
	}
	// Whatever does not fit means a build, which there is no Go for here.
	needsGo := func(what string) {
		t.Helper()
		if res, err := b.Sealed(t.Context(), target); !errors.Is(err, images.ErrTool) {
			t.Errorf("%s: %+v, %v", what, res, err)
		}
	}
	if err := os.WriteFile(res.Image.Path, []byte("\x00asm\x01\x00\x00\x00\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	needsGo("a module that was changed")
	if err := b.writeRecord(target, record{Target: target.String(), Key: key, Edits: "older"}); err != nil {
		t.Fatal(err)
	}
	needsGo("a record of another overlay")
	if err := b.writeRecord(target, record{Target: target.String(), Key: strings.Repeat("../", 21) + "a", Edits: own}); err != nil {
		t.Fatal(err)
	}
	needsGo("a record that leads elsewhere")
}

// TestCancelledBuildEnds: the go command and its children are gone with ctx.
func TestCancelledBuildEnds(t *testing.T) {
	dir := t.TempDir()
	pipe, script := filepath.Join(dir, "alive"), filepath.Join(dir, "go")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	// The child holds the pipe open for as long as it lives.
	if err := os.WriteFile(script, []byte("#!/bin/sh\nsleep 600 > "+pipe+" &\nwait\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("nobody waits any more")
	done := make(chan error, 1)
	b := newBuilder(t, Config{Go: script})
	go func() {
		_, err := b.Build(ctx, Target{Dir: dir}, false)
		done <- err
	}()
	alive, err := os.Open(pipe) // until the child has opened it too
	if err != nil {
		t.Fatal(err)
	}
	defer alive.Close()
	cancel(gone)
	if err := <-done; !errors.Is(err, gone) {
		t.Errorf("%v", err)
	}
	if _, err := io.ReadAll(alive); err != nil { // ends when the child does
		t.Error(err)
	}
}
