package gowasm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/sandboxd/sandboxd/images"
)

// job is one build.
type job struct {
	b       *Builder
	target  Target
	work    string // what is removed afterwards
	dir     string // where the go command runs
	pkg     string // what it is asked for there
	overlay overlay
	g       goCommand
}

var linkFlags = "-s -w"

// lock takes the version lock of an earlier build, or resolves the target.
func (j job) lock(ctx context.Context, update bool) error {
	if !update {
		if r, err := j.b.readRecord(j.target); err == nil && r.Lock != nil {
			return writeModule(j.dir, *r.Lock)
		}
	}
	return j.b.resolve(ctx, j.g, j.dir, j.target)
}

func (j job) build(ctx context.Context) (Result, error) {
	packages, err := list(ctx, j.g, j.dir, j.pkg)
	if err != nil {
		return Result{}, err
	}
	main := packages[len(packages)-1]
	fatal, warnings := inspect(packages)
	if main.Name != "main" && !main.excluded() {
		return Result{}, j.noCommand(ctx, main)
	}
	if len(fatal) > 0 {
		return Result{}, &ReportError{Target: j.target.String(), Findings: fatal}
	}
	key, err := j.key(packages)
	if err != nil {
		return Result{}, err
	}
	res, err := j.b.readOutput(j.target, key)
	if err != nil {
		out := output{Name: baseName(main.ImportPath), Go: j.g.version, Warnings: warnings}
		if main.Module != nil && !main.Module.Main {
			out.Version = main.Module.Version
		}
		if res, err = j.compile(ctx, packages, key, out); err != nil {
			return Result{}, err
		}
	}
	r := record{Target: j.target.String(), Key: key}
	if r.Edits, err = editsHash(); err != nil {
		return Result{}, err
	}
	if j.target.Dir == "" {
		lock, err := readModule(j.dir)
		if err != nil {
			return Result{}, err
		}
		r.Lock = &lock
	}
	return res, j.b.writeRecord(j.target, r)
}

// compile builds the module and puts it into the cache.
func (j job) compile(ctx context.Context, packages []goPackage, key string, out output) (Result, error) {
	done := j.b.step("compile", fmt.Sprintf("%d packages with %s for WebAssembly; the first time takes some minutes", len(packages), j.g.version))
	file := filepath.Join(j.work, "out.wasm")
	_, stderr, err := j.g.run(ctx, j.dir, "build", "-trimpath", "-buildvcs=false", "-overlay="+j.overlay.file,
		"-tags="+buildTags, "-ldflags="+linkFlags, "-o", file, "--", j.pkg)
	if err != nil {
		if findings := explain(stderr, packages); ctx.Err() == nil && len(findings) > 0 {
			return Result{}, &ReportError{Target: j.target.String(), Findings: findings}
		}
		return Result{}, toolFailed(ctx, "go build", stderr, err)
	}
	img, err := images.WASM(file)
	if err != nil {
		return Result{}, err
	}
	done(img.Size)
	out.Digest = img.Digest
	if err := j.b.writeOutput(key, file, out); err != nil {
		return Result{}, err
	}
	res, err := j.b.readOutput(j.target, key)
	res.Cached = false
	return res, err
}

// noCommand says which commands there are instead.
func (j job) noCommand(ctx context.Context, main goPackage) error {
	e := &images.Error{Kind: images.ErrReference, What: quoted(j.target.String()) + " is not a command (package main)", Next: targetForms}
	pattern := "./..."
	if j.target.Dir == "" {
		m, err := readModuleFile(ctx, j.g, j.dir, filepath.Join(j.dir, "go.mod"))
		if err != nil {
			return err
		}
		pattern = m.moduleOf(j.target.Package).Path + "/..."
	}
	stdout, _, err := j.g.run(ctx, j.dir, "list", "-e", "-f", `{{if eq .Name "main"}}{{.ImportPath}}{{end}}`, "--", pattern)
	if names := strings.Fields(string(stdout)); err == nil && len(names) > 0 {
		for i, n := range names {
			names[i] = clean(n)
		}
		e.Next = "its module has " + cut(names)
	} else if main.Error != nil && main.Name == "" {
		e.Next = clean(main.Error.Err)
	}
	return e
}

// key names everything that decides the bytes of the module.
func (j job) key(packages []goPackage) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %q %q\n", j.g.version, j.overlay.hash, buildTags, linkFlags)
	mains := map[string]bool{}
	for _, p := range packages {
		switch {
		case p.Standard:
			continue
		case p.Module.sealed() != "":
			fmt.Fprintf(h, "%q %q\n", p.ImportPath, p.Module.sealed())
			continue
		}
		if p.Module != nil && p.Module.Main && !mains[p.Module.Dir] {
			mains[p.Module.Dir] = true
			for _, name := range []string{"go.mod", "go.sum"} {
				if err := hashFile(h, filepath.Join(p.Module.Dir, name)); err != nil && !os.IsNotExist(err) {
					return "", err
				}
			}
		}
		fmt.Fprintf(h, "%q\n", p.ImportPath)
		for _, list := range [][]string{p.GoFiles, p.SFiles, p.HFiles, p.SysoFiles, p.EmbedFiles} {
			for _, name := range list {
				if err := hashFile(h, filepath.Join(p.Dir, name)); err != nil {
					return "", err
				}
			}
		}
	}
	if j.target.Dir == "" {
		if err := hashFile(h, filepath.Join(j.dir, "go.sum")); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// hashFile adds a file's name and content.
func hashFile(h io.Writer, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read from
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return err
	}
	_, err = fmt.Fprintf(h, "%q %x\n", filepath.Base(name), sum.Sum(nil))
	return err
}

var majorRE = regexp.MustCompile(`^v\d+$`)

// baseName is what the go command would call the program.
func baseName(importPath string) string {
	name := path.Base(importPath)
	if majorRE.MatchString(name) {
		name = path.Base(path.Dir(importPath))
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.' && name != "." && name != "..":
			return r
		}
		return '_'
	}, name)
}
