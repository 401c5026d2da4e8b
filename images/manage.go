package images

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Inspect returns the image that ref was built to, without building. It errs
// with ErrNotBuilt or ErrCorrupt.
func (b *Builder) Inspect(ref Ref) (Image, error) {
	if err := ref.validate(); err != nil {
		return Image{}, err
	}
	if ref.Kind == KindWASM {
		return WASM(ref.Name)
	}
	img, err := b.st.image(b.key(ref))
	if errors.Is(err, ErrNotBuilt) {
		return Image{}, fail(ErrNotBuilt, "no image of "+ref.String()+" is here", "build it first")
	}
	return img, err
}

// Bill returns the bill of materials of the image that ref was built to, as
// CycloneDX JSON. It errs with ErrNotBuilt.
func (b *Builder) Bill(ref Ref) ([]byte, error) {
	img, err := b.Inspect(ref)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(b.st.billPath(img.Digest))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fail(ErrNotBuilt, ref.String()+" has no bill of materials", "a module has none; an image of an older sandboxd gets one at its next build --update")
	}
	return data, err
}

// List returns all images in the cache, whatever configuration built them, by
// reference. Damaged ones are left out.
func (b *Builder) List() ([]Image, error) {
	entries, err := os.ReadDir(b.st.path("refs"))
	if err != nil {
		return nil, err
	}
	var out []Image
	for _, e := range entries {
		key, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok || strings.HasSuffix(key, nextSuffix) {
			continue
		}
		img, err := b.st.image(key)
		if err != nil {
			b.log.Warn("leaving out a damaged image", "record", e.Name(), "error", err)
			continue
		}
		out = append(out, img)
	}
	slices.SortFunc(out, func(x, y Image) int { return cmp.Compare(x.Ref.String(), y.Ref.String()) })
	return out, nil
}

// Remove forgets what ref was built to, and removes what no other image needs.
// It errs with ErrNotBuilt if there was nothing to forget. It waits for builds
// that are under way.
func (b *Builder) Remove(ctx context.Context, ref Ref) error {
	if err := ref.validate(); err != nil {
		return err
	}
	err := os.Remove(b.st.path("refs", b.key(ref)+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return fail(ErrNotBuilt, "no image of "+ref.String()+" is here", "sandboxd image ls shows those that are")
	}
	if err != nil {
		return err
	}
	_, err = b.prune(ctx, []string{ref.String()}, false)
	return err
}

// Prune removes what no image needs, such as what updates left behind, and
// returns how many bytes that was. With dry it only counts. It waits for builds that are under way.
func (b *Builder) Prune(ctx context.Context, dry bool) (int64, error) { return b.prune(ctx, nil, dry) }

// prune takes references out of the layout's index, and then what nothing needs
// out of the store.
func (b *Builder) prune(ctx context.Context, gone []string, dry bool) (int64, error) {
	alone, err := b.st.lock(ctx, "store", false)
	if err != nil {
		return 0, err
	}
	defer alone.Close() //nolint:errcheck // closing a lock's file loses nothing
	if len(gone) > 0 {
		w, err := newWork(ctx, b.st.path("tmp"))
		if err != nil {
			return 0, err
		}
		for _, ref := range gone {
			err = errors.Join(err, b.st.index(ctx, w, ref, v1.Descriptor{}))
		}
		if err = errors.Join(err, w.close()); err != nil {
			return 0, err
		}
	}
	used, err := b.st.used()
	if err != nil {
		return 0, err
	}
	blobs, err := b.st.removeUnused("oci/blobs/sha256", "", used, dry)
	if err != nil {
		return blobs, err
	}
	locks, err := b.st.removeUnused("lock", ".json", used, dry)
	if err != nil {
		return blobs + locks, err
	}
	bills, err := b.st.removeUnused("sbom", ".json", used, dry)
	return blobs + locks + bills, err
}

// used collects the hashes that records name. A record that cannot be read
// stops the collection: it might need anything.
func (s *store) used() (map[string]bool, error) {
	used := map[string]bool{}
	add := func(b blob) { used[strings.TrimPrefix(b.Digest, "sha256:")] = true }
	refs, err := filepath.Glob(s.path("refs", "*.json"))
	if err != nil {
		return nil, err
	}
	for _, f := range refs {
		var r record
		if err := readJSON(f, &r); err != nil {
			return nil, fail(ErrCorrupt, "the image cache has an unreadable record: "+quoted(err.Error()), "remove the file "+quoted(f))
		}
		for _, b := range r.Blobs {
			add(b)
		}
	}
	shared, err := filepath.Glob(s.path("shared", "*.json"))
	if err != nil {
		return nil, err
	}
	for _, f := range shared {
		var r layerRecord
		if err := readJSON(f, &r); err != nil {
			return nil, fail(ErrCorrupt, "the image cache has an unreadable record: "+quoted(err.Error()), "remove the file "+quoted(f))
		}
		add(r.Layer)
	}
	return used, nil
}

func (s *store) removeUnused(dir, suffix string, used map[string]bool, dry bool) (int64, error) {
	entries, err := os.ReadDir(s.path(dir))
	if err != nil {
		return 0, err
	}
	var n int64
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok || !hexRE.MatchString(name) || used[name] {
			continue
		}
		if info, err := e.Info(); err == nil {
			n += info.Size()
		}
		if dry {
			continue
		}
		if err := os.Remove(s.path(dir, e.Name())); err != nil {
			return n, err
		}
	}
	return n, nil
}
