package images

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
)

func isBase(name string) bool { return slices.Contains(basePackages, name) }

// splitPins parts a lock's packages into those of the base and the others.
func splitPins(pins []Deb) (base, others []Deb) {
	if pins == nil {
		return nil, nil
	}
	base, others = []Deb{}, []Deb{} // not nil, which means unpinned
	for _, d := range pins {
		if isBase(d.Name) {
			base = append(base, d)
		} else {
			others = append(others, d)
		}
	}
	return base, others
}

// extras returns the layer that adds distribution packages to a base: those
// that are named, with all they depend on, or those that are pinned. It is
// false where there are none.
func (b *Builder) extras(ctx context.Context, base layerRecord, names []string, pins []Deb, fresh bool) (layerRecord, bool, error) {
	if pins == nil && len(names) == 0 || pins != nil && len(pins) == 0 {
		return layerRecord{}, false, nil
	}
	name := "extras-" + shortHash(append([]string{platform(), base.Layer.Digest}, names...)...)
	if pins != nil {
		name = "extras-" + shortHash(platform(), base.Layer.Digest, "locked", debsKey(pins))
	}
	set := debSet{step: "extras", what: "further packages", names: names, closure: true, pins: pins}
	rec, err := b.st.shared(ctx, name, fresh, func(w *work) (layerRecord, error) {
		below, err := readRootfs(ctx, b.st.blobPath(base.Layer.Digest))
		if err != nil {
			return layerRecord{}, err
		}
		root := &rootfs{entries: maps.Clone(below.entries), bytes: below.bytes}
		return b.buildDebs(ctx, w, set, fresh, root, func(r *rootfs) error {
			if err := r.complete(); err != nil {
				return err
			}
			r.subtract(below)
			return nil
		})
	})
	return rec, err == nil, err
}

// readRootfs reads a layer that write made.
func readRootfs(ctx context.Context, file string) (*rootfs, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read from
	r := newRootfs()
	for t := tar.NewReader(f); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return r, context.Cause(ctx)
		}
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return nil, err
		}
		if r.bytes += h.Size; r.bytes > maxRootfs {
			return nil, fail(ErrCorrupt, "the image cache has a base layer of over 1 GiB", "")
		}
		e := &entry{typ: h.Typeflag, mode: h.Mode, uid: h.Uid, link: h.Linkname}
		if e.data, err = io.ReadAll(t); err != nil {
			return nil, fmt.Errorf("base layer: %w", err)
		}
		r.entries[strings.TrimSuffix(h.Name, "/")] = e
	}
}

// subtract leaves what a layer on top of another has to hold: what is new or
// differs, and the folders that it lies in, as they are below.
func (r *rootfs) subtract(below *rootfs) {
	keep := map[string]*entry{}
	for name, e := range r.entries {
		if old := below.entries[name]; old != nil && e.equal(old) {
			continue
		}
		keep[name] = e
		for d := path.Dir(name); d != "."; d = path.Dir(d) {
			keep[d] = r.entries[d]
		}
	}
	r.entries = keep
}

func (e *entry) equal(o *entry) bool {
	if e.typ != o.typ || e.uid != o.uid {
		return false
	}
	switch e.typ {
	case tar.TypeSymlink:
		return e.link == o.link
	case tar.TypeDir:
		return (e.mode^o.mode)&0o1777 == 0
	}
	return (e.mode^o.mode)&0o777 == 0 && bytes.Equal(e.data, o.data)
}
