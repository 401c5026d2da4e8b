package images

import (
	"bytes"
	"context"
	"errors"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
)

// key names a reference's record: what was asked for, and what the
// configuration adds to it. The pinned Node is no part of it, so that a newer
// sandboxd does not rebuild what is there.
func (b *Builder) key(ref Ref) string {
	node := ""
	if b.cfg.Node != pinnedNode() {
		node = b.cfg.Node.Version + b.cfg.Node.Integrity
	}
	parts := append([]string{ref.String(), platform(), node}, b.cfg.ExtraPackages...)
	if b.cfg.Scripts {
		parts = append(parts, "install scripts")
	}
	return shortHash(parts...)
}

// build answers from the cache unless force is set, and else builds: by lock,
// or by resolving ref if there is none.
func (b *Builder) build(ctx context.Context, ref Ref, lock *Lock, force bool) (Image, error) {
	return b.buildAs(ctx, ref, b.key(ref), lock, force)
}

// buildAs is build with another name for the record.
func (b *Builder) buildAs(ctx context.Context, ref Ref, key string, lock *Lock, force bool) (Image, error) {
	if err := ref.validate(); err != nil {
		return Image{}, err
	}
	if ref.Kind == KindWASM {
		return WASM(ref.Name)
	}
	if ref.Kind == KindDir {
		force = true // its files are the user's to change
	}
	if !force {
		if img, err := b.st.image(key); err == nil {
			b.st.note(key)
			return img, nil
		}
	}
	if runtime.GOOS != "linux" {
		return Image{}, fail(ErrTool, "images are built on Linux only", "use a .wasm server here")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, b.cfg.Timeout, fail(ErrNetwork, "building "+ref.String()+" took over "+b.cfg.Timeout.String(), "try again, or look at the network"))
	defer cancel()
	mine, err := b.st.lock(ctx, "ref-"+key, false)
	if err != nil {
		return Image{}, err
	}
	defer mine.Close() //nolint:errcheck // closing a lock's file loses nothing
	if !force {
		img, err := b.st.image(key)
		if err == nil {
			return img, nil
		}
		if errors.Is(err, ErrCorrupt) {
			b.log.Warn("building a damaged image again", "ref", ref.String(), "error", err)
			lock = img.Lock // the same versions, if the lock is still there
		}
	}
	// Whoever removes blobs waits until nobody builds.
	building, err := b.st.lock(ctx, "store", true)
	if err != nil {
		return Image{}, err
	}
	defer building.Close() //nolint:errcheck // closing a lock's file loses nothing
	w, err := newWork(ctx, b.st.path("tmp"))
	if err != nil {
		return Image{}, err
	}
	p, err := b.make(ctx, w, ref, lock)
	if err == nil {
		err = b.seal(ctx, w, ref, key, lock, p)
	}
	if err = errors.Join(err, w.close()); err != nil {
		return Image{}, err
	}
	return b.st.image(key)
}

// product is what a reference was made to: an image's layers, how it is
// started, and what is to be known of its parts.
type product struct {
	name, version, integrity string
	// layers are the image's, lowest first. What most images share is below
	// what few do, so that an unpacked layer serves them all.
	layers []blob
	debs   []Deb
	node   NodeRelease // zero where none is in it
	// entry starts it; cmd follows where the user gives no arguments.
	entry, cmd []string
	env        []string
	dir        string
	pin        func(*Lock) // adds the ecosystem's own part; may be nil
	parts      []part      // of the ecosystem, for the bill of materials
}

// make fetches and packs what ref, or its lock, names.
func (b *Builder) make(ctx context.Context, w *work, ref Ref, lock *Lock) (product, error) {
	switch ref.Kind {
	case KindNPM:
		return b.makeNPM(ctx, w, ref, lock)
	case KindPyPI:
		return b.makePyPI(ctx, w, ref, lock)
	case KindGo:
		return b.makeGo(ctx, w, ref, lock)
	case KindOCI:
		return b.makeOCI(ctx, w, ref, lock)
	case KindDir:
		return b.makeDir(ctx, w, ref, lock)
	case KindWASM: // nothing to make
	}
	return product{}, fail(ErrReference, "no such kind of reference: "+quoted(string(ref.Kind)), refForms)
}

// pinsOf are the distribution packages of a lock; nil means unpinned.
func pinsOf(lock *Lock) []Deb {
	if lock == nil {
		return nil
	}
	return lock.Base
}

// makeNPM makes the layers side by side, since each waits for another network.
func (b *Builder) makeNPM(ctx context.Context, w *work, ref Ref, lock *Lock) (product, error) {
	release := b.cfg.Node
	if lock != nil {
		release = lock.Node
	}
	var sys system
	var node layerRecord
	var pkg packed
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		sys, err = b.system(ctx, b.cfg.ExtraPackages, pinsOf(lock), false)
		return err
	})
	g.Go(func() (err error) {
		node, err = b.node(ctx, release)
		return err
	})
	g.Go(func() (err error) {
		pkg, err = b.pack(ctx, w, ref, lock)
		return err
	})
	if err := g.Wait(); err != nil {
		return product{}, err
	}
	layers := []blob{sys.base.Layer, node.Layer}
	if sys.extras != nil {
		layers = append(layers, sys.extras.Layer)
	}
	return product{
		name: ref.Name, version: pkg.tree.version, integrity: pkg.tree.integrity,
		layers: append(layers, pkg.layer), debs: sys.debs(), node: *node.Node, entry: pkg.entry, env: imageEnv(), dir: userHome,
		pin:   func(l *Lock) { l.NPM, l.Scripts = pkg.tree.lock, b.cfg.Scripts },
		parts: npmParts(pkg.tree.lock, node.Node),
	}, nil
}

// system is the distribution's part of an image.
type system struct {
	base   layerRecord
	extras *layerRecord // nil for none
}

// debs are the distribution packages of all layers, by name.
func (s system) debs() []Deb {
	out := slices.Clone(s.base.Debs)
	if s.extras != nil {
		out = append(out, s.extras.Debs...)
	}
	slices.SortFunc(out, func(x, y Deb) int { return strings.Compare(x.Name, y.Name) })
	return out
}

// system makes the layers of distribution packages: the base, and further ones
// by name or pin.
func (b *Builder) system(ctx context.Context, names []string, pins []Deb, fresh bool) (system, error) {
	basePins, otherPins := splitPins(pins)
	var s system
	var err error
	if s.base, err = b.base(ctx, basePins, fresh); err != nil {
		return s, err
	}
	rec, ok, err := b.extras(ctx, s.base, names, otherPins, fresh)
	if ok {
		s.extras = &rec
	}
	return s, err
}

// packed is an npm package's own part of an image.
type packed struct {
	layer blob
	tree  npmTree
	entry []string
}

// pack makes the package's layer.
func (b *Builder) pack(ctx context.Context, w *work, ref Ref, lock *Lock) (packed, error) {
	done := b.step("package", "fetching "+ref.Name+"@"+ref.spec())
	dir, err := w.sub("package")
	if err != nil {
		return packed{}, err
	}
	job := npmJob{w: w, dir: dir, name: ref.Name, spec: ref.spec(), step: "package"}
	if lock != nil {
		want, err := checkLock(lock.NPM, ref.Name)
		if err != nil {
			return packed{}, err
		}
		job.lock, job.spec = want.lock, want.version
	}
	tree, err := b.npm(ctx, job)
	if err != nil {
		return packed{}, err
	}
	if len(tree.scripts) > 0 && !b.cfg.Scripts {
		b.report(Step{Name: "package", Detail: "install scripts were not run: " + quoted(strings.Join(tree.scripts, ", ")) + " (--allow-build runs them, in a sandbox)"})
	}
	if exactRE.MatchString(ref.Version) && tree.version != ref.Version {
		return packed{}, fail(ErrRefused, "the registry gave "+ref.Name+"@"+quoted(tree.version)+" for version "+ref.Version, "")
	}
	entry, err := entrypoint(dir, ref.Name, tree.version, ref.Bin)
	if err != nil {
		return packed{}, err
	}
	layer, err := packTree(ctx, job, filepath.Join(w.dir, "layer"), tree)
	if err != nil {
		return packed{}, err
	}
	done(layer.Size)
	return packed{layer, tree, entry}, b.st.adopt(filepath.Join(w.dir, "layer"), layer)
}

// packTree writes the installed tree, with its lock in the settled form, as a
// layer. Nothing is written into the tree, which is a stranger's.
func packTree(ctx context.Context, job npmJob, file string, tree npmTree) (blob, error) {
	manifest, err := job.manifest(tree.version)
	if err != nil {
		return blob{}, err
	}
	l, err := newLayer(file)
	if err != nil {
		return blob{}, err
	}
	// npm's own notes hold the addresses; its lock and manifest come below.
	skip := func(name string) bool {
		return name == "node_modules/.package-lock.json" || name == "package.json" || name == "package-lock.json"
	}
	err = l.tree(ctx, job.dir, appDir[1:], skip)
	for _, f := range []struct {
		name string
		data []byte
	}{{"package-lock.json", tree.lock}, {"package.json", manifest}} {
		if err == nil {
			err = l.regular(path.Join(appDir[1:], f.name), 0o444, int64(len(f.data)), bytes.NewReader(f.data))
		}
	}
	if err != nil {
		l.abandon()
		return blob{}, err
	}
	return l.finish()
}

// seal writes configuration, manifest, lock, bill of materials and index, and
// the reference's record last.
func (b *Builder) seal(ctx context.Context, w *work, ref Ref, key string, want *Lock, p product) error {
	done := b.step("seal", "sealing "+p.name+"@"+p.version)
	config, err := imageConfig(p.layers, p.entry, p.cmd, p.env, p.dir)
	if err != nil {
		return err
	}
	configBlob, err := b.st.putBlob(w, config)
	if err != nil {
		return err
	}
	manifest, err := imageManifest(configBlob, p.layers, string(ref.Kind)+":"+p.name, p.version)
	if err != nil {
		return err
	}
	manifestBlob, err := b.st.putBlob(w, manifest)
	if err != nil {
		return err
	}
	if want != nil && want.Digest != "" && want.Digest != manifestBlob.Digest {
		return fail(ErrRefused, "building "+ref.String()+" by its lock gave another digest", "update it, after a look at what changed")
	}
	rec := record{
		Ref: ref, Digest: manifestBlob.Digest, Entrypoint: p.entry, Cmd: p.cmd, Env: p.env, Dir: p.dir,
		Blobs: append([]blob{manifestBlob, configBlob}, p.layers...), Created: time.Now().UTC(),
	}
	lock := Lock{
		Format: lockFormat, Ref: ref.String(), Name: p.name, Version: p.version, Integrity: p.integrity,
		Platform: platform(), Digest: manifestBlob.Digest, Size: rec.size(), Built: rec.Created, Node: p.node, Base: p.debs,
	}
	if p.pin != nil {
		p.pin(&lock)
	}
	bill, err := billOf(lock, p.parts)
	if err != nil {
		return err
	}
	if err := b.st.put(w, b.st.billPath(lock.Digest), bill); err != nil {
		return err
	}
	if _, err := b.st.putJSON(w, b.st.lockPath(lock.Digest), lock); err != nil {
		return err
	}
	if !strings.HasSuffix(key, nextSuffix) { // a preview is run by its digest alone
		if err := b.st.index(ctx, w, ref.String(), descriptor(v1.MediaTypeImageManifest, manifestBlob)); err != nil {
			return err
		}
	}
	if _, err := b.st.putJSON(w, b.st.path("refs", key+".json"), rec); err != nil {
		return err
	}
	done(manifestBlob.Size + configBlob.Size)
	return nil
}

// UpdateBase fetches the distribution's packages anew, for the images that are
// built or updated from now on. Those already built stay as they are.
func (b *Builder) UpdateBase(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.Timeout)
	defer cancel()
	building, err := b.st.lock(ctx, "store", true)
	if err != nil {
		return err
	}
	defer building.Close() //nolint:errcheck // closing a lock's file loses nothing
	_, err = b.system(ctx, b.cfg.ExtraPackages, nil, true)
	return err
}
