package images

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Description is an image with its parts.
type Description struct {
	Image
	// Layers are the image's, lowest first.
	Layers []LayerInfo
	// Own is how many bytes its removal would free.
	Own int64
	// Used is when it was last built, asked for or imported here.
	Used time.Time
}

// LayerInfo is one layer of an image.
type LayerInfo struct {
	Digest string `json:"digest"`
	Size   int64  `json:"size_bytes"`
	// SharedBy counts the other images in the cache that have it.
	SharedBy int `json:"shared_by"`
}

// Describe looks at the image that ref was built to. It errs as Inspect does.
func (b *Builder) Describe(ref Ref) (Description, error) {
	img, err := b.Inspect(ref)
	if err != nil || ref.Kind == KindWASM {
		return Description{Image: img, Own: img.Size, Used: img.Created}, err
	}
	path := b.st.path("refs", b.key(ref)+".json")
	info, err := os.Stat(path)
	if err != nil {
		return Description{}, err
	}
	var mine record
	if err := readJSON(path, &mine); err != nil {
		return Description{}, err
	}
	others := map[string]int{}
	all, err := filepath.Glob(b.st.path("refs", "*.json"))
	if err != nil {
		return Description{}, err
	}
	for _, f := range all {
		var r record
		if f == path || readJSON(f, &r) != nil {
			continue
		}
		for _, x := range r.Blobs {
			others[x.Digest]++
		}
	}
	d := Description{Image: img, Used: info.ModTime()}
	for i, x := range mine.Blobs {
		if others[x.Digest] == 0 {
			d.Own += x.Size
		}
		if i >= 2 { // behind manifest and configuration
			d.Layers = append(d.Layers, LayerInfo{x.Digest, x.Size, others[x.Digest]})
		}
	}
	return d, nil
}

// usedEvery is how often an image's use is noted.
const usedEvery = time.Hour

// note writes down that an image was asked for. A note that cannot be made is none.
func (s *store) note(key string) {
	path := s.path("refs", key+".json")
	if info, err := os.Stat(path); err == nil && time.Since(info.ModTime()) > usedEvery {
		now := time.Now()
		_ = os.Chtimes(path, now, now)
	}
}

// Stale names the images that nobody asked for since before, in List's order.
func (b *Builder) Stale(before time.Time) ([]Image, error) {
	files, err := filepath.Glob(b.st.path("refs", "*.json"))
	if err != nil {
		return nil, err
	}
	var out []Image
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil || !info.ModTime().Before(before) {
			continue
		}
		img, err := b.st.image(strings.TrimSuffix(filepath.Base(f), ".json"))
		if err == nil {
			out = append(out, img)
		}
	}
	return out, nil
}

// RemoveStale forgets the images that nobody asked for since before, whatever
// configuration built them, and then prunes. It returns how many bytes that
// freed, and waits for builds that are under way.
func (b *Builder) RemoveStale(ctx context.Context, before time.Time) (int64, error) {
	files, err := filepath.Glob(b.st.path("refs", "*.json"))
	if err != nil {
		return 0, err
	}
	var gone []string
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil || !info.ModTime().Before(before) {
			continue
		}
		var r record
		if err := errors.Join(readJSON(f, &r), os.Remove(f)); err != nil {
			return 0, err
		}
		gone = append(gone, r.Ref.String())
	}
	return b.prune(ctx, gone, false)
}
