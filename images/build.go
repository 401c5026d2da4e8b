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
	if err := ref.validate(); err != nil {
		return Image{}, err
	}
	if ref.Kind == KindWASM {
		return WASM(ref.Name)
	}
	key := b.key(ref)
	if !force {
		if img, err := b.st.image(key); err == nil {
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
	err = b.buildNew(ctx, w, ref, key, lock)
	if err = errors.Join(err, w.close()); err != nil {
		return Image{}, err
	}
	return b.st.image(key)
}

// parts are what an image is made of.
type parts struct {
	base, node layerRecord
	extras     *layerRecord // nil for none
	layer      blob
	tree       npmTree
	entry      []string
}

// layers are the image's, lowest first. What most images share is below what
// few do, so that an unpacked layer serves them all.
func (p *parts) layers() []blob {
	out := []blob{p.base.Layer, p.node.Layer}
	if p.extras != nil {
		out = append(out, p.extras.Layer)
	}
	return append(out, p.layer)
}

// debs are the distribution packages of all layers, by name.
func (p *parts) debs() []Deb {
	out := slices.Clone(p.base.Debs)
	if p.extras != nil {
		out = append(out, p.extras.Debs...)
	}
	slices.SortFunc(out, func(x, y Deb) int { return strings.Compare(x.Name, y.Name) })
	return out
}

// buildNew makes the layers side by side, since each waits for another
// network, and seals them.
func (b *Builder) buildNew(ctx context.Context, w *work, ref Ref, key string, lock *Lock) error {
	var pins []Deb
	node := b.cfg.Node
	if lock != nil {
		pins, node = lock.Base, lock.Node
	}
	var p parts
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		p.base, p.extras, err = b.system(ctx, pins, false)
		return err
	})
	g.Go(func() (err error) {
		p.node, err = b.node(ctx, node)
		return err
	})
	g.Go(func() (err error) {
		p.layer, p.tree, p.entry, err = b.pack(ctx, w, ref, lock)
		return err
	})
	if err := g.Wait(); err != nil {
		return err
	}
	return b.seal(ctx, w, ref, key, lock, p)
}

// system makes the layers of distribution packages.
func (b *Builder) system(ctx context.Context, pins []Deb, fresh bool) (base layerRecord, extras *layerRecord, err error) {
	basePins, otherPins := splitPins(pins)
	if base, err = b.base(ctx, basePins, fresh); err != nil {
		return base, nil, err
	}
	rec, ok, err := b.extras(ctx, base, b.cfg.ExtraPackages, otherPins, fresh)
	if ok {
		extras = &rec
	}
	return base, extras, err
}

// pack makes the package's layer.
func (b *Builder) pack(ctx context.Context, w *work, ref Ref, lock *Lock) (blob, npmTree, []string, error) {
	done := b.step("package", "fetching "+ref.Name+"@"+ref.spec())
	dir, err := w.sub("package")
	if err != nil {
		return blob{}, npmTree{}, nil, err
	}
	job := npmJob{w: w, dir: dir, name: ref.Name, spec: ref.spec(), step: "package"}
	if lock != nil {
		want, err := checkLock(lock.NPM, ref.Name)
		if err != nil {
			return blob{}, npmTree{}, nil, err
		}
		job.lock, job.spec = want.lock, want.version
	}
	tree, err := b.npm(ctx, job)
	if err != nil {
		return blob{}, npmTree{}, nil, err
	}
	if len(tree.scripts) > 0 && !b.cfg.Scripts {
		b.report(Step{Name: "package", Detail: "install scripts were not run: " + quoted(strings.Join(tree.scripts, ", ")) + " (--allow-build runs them, in a sandbox)"})
	}
	if exactRE.MatchString(ref.Version) && tree.version != ref.Version {
		return blob{}, npmTree{}, nil, fail(ErrRefused, "the registry gave "+ref.Name+"@"+quoted(tree.version)+" for version "+ref.Version, "")
	}
	entry, err := entrypoint(dir, ref.Name, tree.version, ref.Bin)
	if err != nil {
		return blob{}, npmTree{}, nil, err
	}
	layer, err := packTree(ctx, job, filepath.Join(w.dir, "layer"), tree)
	if err != nil {
		return blob{}, npmTree{}, nil, err
	}
	done(layer.Size)
	return layer, tree, entry, b.st.adopt(filepath.Join(w.dir, "layer"), layer)
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

// seal writes configuration, manifest, lock and index, and the reference's
// record last.
func (b *Builder) seal(ctx context.Context, w *work, ref Ref, key string, want *Lock, p parts) error {
	done := b.step("seal", "sealing "+ref.Name+"@"+p.tree.version)
	layers := p.layers()
	config, err := imageConfig(layers, p.entry)
	if err != nil {
		return err
	}
	configBlob, err := b.st.putBlob(w, config)
	if err != nil {
		return err
	}
	manifest, err := imageManifest(configBlob, layers, string(KindNPM)+":"+ref.Name, p.tree.version)
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
	lock := Lock{
		Format: lockFormat, Ref: ref.String(), Name: ref.Name, Version: p.tree.version, Integrity: p.tree.integrity,
		Platform: platform(), Digest: manifestBlob.Digest, Node: *p.node.Node, Base: p.debs(), NPM: p.tree.lock,
		Scripts: b.cfg.Scripts,
	}
	if _, err := b.st.putJSON(w, b.st.lockPath(lock.Digest), lock); err != nil {
		return err
	}
	if err := b.st.index(ctx, w, ref.String(), descriptor(v1.MediaTypeImageManifest, manifestBlob)); err != nil {
		return err
	}
	rec := record{
		Ref: ref, Digest: manifestBlob.Digest, Entrypoint: p.entry, Env: imageEnv(), Dir: userHome,
		Blobs: append([]blob{manifestBlob, configBlob}, layers...), Created: time.Now().UTC(),
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
	_, _, err = b.system(ctx, nil, true)
	return err
}
