package images

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// basePackages are what Node, a native module and a program that looks for the
// system's TLS library (those made with .NET do) need: no shell, no package
// manager. They come without what they depend on, since that is only needed to
// set them up.
var basePackages = []string{"base-files", "ca-certificates", "libc6", "libgcc-s1", "libssl3", "libstdc++6", "netbase", "tzdata"}

// Deb pins one distribution package.
type Deb struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	SHA256  string `json:"sha256"` // of the .deb, in hex
}

// layerRecord remembers a layer that many images share.
type layerRecord struct {
	Layer blob         `json:"layer"`
	Debs  []Deb        `json:"debs,omitempty"`
	Node  *NodeRelease `json:"node,omitempty"`
}

// base returns the layer of the base root file system: the one remembered, or
// a new one if there is none, if fresh is set, or if pins ask for another.
// Packages that the configuration adds are no part of it, so that all images
// share it.
func (b *Builder) base(ctx context.Context, pins []Deb, fresh bool) (layerRecord, error) {
	name := baseName()
	if pins != nil {
		// Most locks are of the base that is here already.
		var have layerRecord
		if err := readJSON(b.st.path("shared", name+".json"), &have); err == nil && slices.Equal(have.Debs, pins) && b.st.has(have.Layer) {
			return have, nil
		}
		name = "base-" + shortHash(platform(), debsKey(pins))
	}
	set := debSet{step: "base", what: "the base system", names: basePackages, pins: pins}
	return b.st.shared(ctx, name, fresh, func(w *work) (layerRecord, error) {
		return b.buildDebs(ctx, w, set, fresh, newRootfs(), func(r *rootfs) error { return r.complete() })
	})
}

// baseName names the layer of the base as it is resolved here: with other
// packages in it, it is another one.
func baseName() string { return "base-" + shortHash(strings.Join(basePackages, " "), platform(), "") }

// debSet says which distribution packages make up a layer.
type debSet struct {
	step, what string // for whoever waits
	names      []string
	closure    bool  // names stand for all that they depend on, too
	pins       []Deb // these and no others, where not nil
}

// buildDebs makes a layer of packages that are merged into root. finish is
// told when all are.
func (b *Builder) buildDebs(ctx context.Context, w *work, set debSet, fresh bool, root *rootfs, finish func(*rootfs) error) (layerRecord, error) {
	done := b.step(set.step, "fetching "+set.what+" from the distribution")
	debs, fetched, err := b.fetchDebs(ctx, w, set, fresh)
	if err != nil {
		return layerRecord{}, err
	}
	done(fetched)
	done = b.step(set.step, "packing "+set.what)
	rec := layerRecord{}
	for _, file := range debs {
		deb, err := root.unpack(ctx, file, b.cfg.Environ, w.lock)
		if err != nil {
			return layerRecord{}, err
		}
		rec.Debs = append(rec.Debs, deb)
	}
	slices.SortFunc(rec.Debs, func(x, y Deb) int { return strings.Compare(x.Name, y.Name) })
	if set.pins != nil && !slices.Equal(set.pins, rec.Debs) {
		return layerRecord{}, fail(ErrRefused, "the distribution's packages are not the locked ones", "update the lock")
	}
	if err := finish(root); err != nil {
		return layerRecord{}, err
	}
	file := filepath.Join(w.dir, "layer")
	rec.Layer, err = root.write(file)
	if err != nil {
		return layerRecord{}, err
	}
	done(rec.Layer.Size)
	return rec, b.st.adopt(file, rec.Layer)
}

// fetchDebs tries the package lists that the host has, and fetches fresh ones
// if those are missing or too old to download by.
func (b *Builder) fetchDebs(ctx context.Context, w *work, set debSet, fresh bool) ([]string, int64, error) {
	var err error
	for _, update := range []bool{false, true} {
		if fresh && !update {
			continue
		}
		var dir string
		if dir, err = w.sub(fmt.Sprintf("apt-%t", update)); err != nil {
			return nil, 0, err
		}
		if update {
			b.report(Step{Name: set.step, Detail: "fetching the distribution's package lists"})
		}
		var files []string
		if files, err = b.tryDebs(ctx, dir, w.lock, set, update); err == nil {
			var n int64
			for _, f := range files {
				if info, err := os.Stat(f); err == nil {
					n += info.Size()
				}
			}
			return files, n, nil
		}
		b.log.Debug("distribution packages not fetched", "fresh lists", update, "error", err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, 0, err
}

func (b *Builder) tryDebs(ctx context.Context, dir string, hold *os.File, set debSet, update bool) ([]string, error) {
	a, err := newApt(ctx, dir, b.cfg.Environ, hold, update)
	if err != nil {
		return nil, err
	}
	var specs []string
	switch {
	case set.pins != nil:
		for _, p := range set.pins {
			specs = append(specs, p.Name+"="+p.Version)
		}
	case set.closure:
		more, err := a.closure(ctx, set.names)
		if err != nil {
			return nil, err
		}
		specs = slices.DeleteFunc(more, func(spec string) bool {
			name, _, _ := strings.Cut(spec, "=")
			return isBase(name)
		})
	default:
		specs = slices.Clone(set.names)
	}
	if len(specs) == 0 {
		return nil, nil
	}
	files, err := a.download(ctx, specs)
	if err == nil && len(files) != len(specs) {
		err = fail(ErrTool, fmt.Sprintf("apt-get downloaded %d of %d packages", len(files), len(specs)), "")
	}
	return files, err
}

// unpack merges one .deb and says which it was.
func (r *rootfs) unpack(ctx context.Context, file string, environ []string, hold *os.File) (Deb, error) {
	env := fetchEnv(environ, filepath.Dir(file))
	res, err := tool{name: "dpkg-deb", args: []string{"-W", "--showformat=${Package} ${Version}", file}, env: env, hold: hold}.run(ctx)
	if err != nil {
		return Deb{}, toolError("dpkg-deb", err, res.stderr)
	}
	name, version, ok := strings.Cut(string(bytes.TrimSpace(res.stdout)), " ")
	if !ok || !debNameRE.MatchString(name) {
		return Deb{}, fail(ErrTool, "dpkg-deb names no package in "+quoted(filepath.Base(file)), "")
	}
	sum, err := hashFile(file)
	if err != nil {
		return Deb{}, err
	}
	pr, pw := io.Pipe()
	merged := make(chan error, 1)
	go func() {
		err := r.add(pr)
		// Whatever follows the archive's end has to be read, or the writer waits.
		_, copyErr := io.Copy(io.Discard, pr)
		pr.CloseWithError(errors.Join(err, copyErr))
		merged <- err
	}()
	res, err = tool{name: "dpkg-deb", args: []string{"--fsys-tarfile", file}, env: env, out: pw, hold: hold}.run(ctx)
	pw.CloseWithError(err) // nil means EOF
	if mergeErr := <-merged; mergeErr != nil && err == nil {
		return Deb{}, mergeErr
	}
	if err != nil {
		return Deb{}, toolError("dpkg-deb", err, res.stderr)
	}
	return Deb{Name: name, Version: version, SHA256: sum}, nil
}

func hashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // only read from
	h := sha256.New()
	_, err = io.Copy(h, f)
	return fmt.Sprintf("%x", h.Sum(nil)), err
}

func debsKey(pins []Deb) string {
	var s strings.Builder
	for _, p := range pins {
		fmt.Fprintln(&s, p.Name, p.Version, p.SHA256)
	}
	return s.String()
}

// shortHash names a file by what it depends on.
func shortHash(parts ...string) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(parts, "\x00"))))[:32]
}
