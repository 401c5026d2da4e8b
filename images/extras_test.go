package images

import (
	"archive/tar"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A layer of further packages holds what they add and change, the folders that
// it lies in as the base has them, and nothing else.
func TestExtrasHoldWhatDiffers(t *testing.T) {
	base := newRootfs()
	base.entries["usr/share/ca-certificates/a.crt"] = &entry{typ: tar.TypeReg, data: []byte("A\n")}
	base.entries["usr/share/odd"] = &entry{typ: tar.TypeDir, mode: 0o700, uid: 7}
	base.entries["usr/share/odd/kept"] = &entry{typ: tar.TypeReg, mode: 0o644, data: []byte("same")}
	if err := base.complete(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "base")
	if _, err := base.write(file); err != nil {
		t.Fatal(err)
	}
	below, err := readRootfs(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	r := &rootfs{entries: maps.Clone(below.entries), bytes: below.bytes}
	if err := r.add(tarOf(t,
		tar.Header{Typeflag: tar.TypeDir, Name: "./usr/share/odd/", Mode: 0o755},
		tar.Header{Typeflag: tar.TypeReg, Name: "./usr/share/odd/new", Mode: 0o644},
		tar.Header{Typeflag: tar.TypeReg, Name: "./bin/tool", Mode: 0o755},
		tar.Header{Typeflag: tar.TypeReg, Name: "./etc/passwd", Mode: 0o644},
		tar.Header{Typeflag: tar.TypeReg, Name: "./usr/lib32/x", Mode: 0o644},
		tar.Header{Typeflag: tar.TypeReg, Name: "./usr/share/ca-certificates/b.crt"},
	)); err != nil {
		t.Fatal(err)
	}
	if err := r.complete(); err != nil {
		t.Fatal(err)
	}
	r.subtract(below)
	want := []string{
		"etc", "etc/ssl", "etc/ssl/certs", "etc/ssl/certs/ca-certificates.crt", "lib32",
		"usr", "usr/bin", "usr/bin/tool", "usr/lib32", "usr/lib32/x", "usr/share", "usr/share/odd", "usr/share/odd/new",
	}
	if got := slices.Sorted(maps.Keys(r.entries)); !cmp.Equal(got, slices.Sorted(slices.Values(want))) {
		t.Errorf("holds %q", got)
	}
	if odd := r.entries["usr/share/odd"]; odd.mode&0o777 != 0o700 || odd.uid != 7 {
		t.Errorf("a folder of the base became %+v", odd)
	}
	if got := string(r.entries["etc/ssl/certs/ca-certificates.crt"].data); !strings.HasPrefix(got, "A\n") || len(got) == 2 {
		t.Errorf("certificates %q: want the base's and the new one", got)
	}
}

// Images with further packages share base and Node with those without, and are
// built again from their lock to the same digest.
func TestExtrasShareWhatIsBelow(t *testing.T) {
	r := newRegistry(t, server("one", "1.0.0"))
	plainCfg := r.config(t, t.TempDir())
	plain := build(t, must(t)(New(plainCfg)), "npm:one")
	deb := Deb{Name: "git", Version: "2", SHA256: strings.Repeat("1", 64)}
	seed := func(cfg Config, name func(base blob) string) *Builder {
		b := must(t)(New(cfg))
		base, err := b.base(t.Context(), nil, false)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.st.shared(t.Context(), name(base.Layer), false, func(w *work) (layerRecord, error) {
			root := newRootfs()
			root.entries["usr"] = &entry{typ: tar.TypeDir, mode: 0o755}
			root.entries["usr/git"] = &entry{typ: tar.TypeReg, mode: 0o755, data: []byte("git")}
			file := filepath.Join(w.dir, "layer")
			l, err := root.write(file)
			if err != nil {
				return layerRecord{}, err
			}
			return layerRecord{Layer: l, Debs: []Deb{deb}}, b.st.adopt(file, l)
		}); err != nil {
			t.Fatal(err)
		}
		return b
	}
	withCfg := plainCfg
	withCfg.ExtraPackages = []string{"git"}
	b := seed(withCfg, func(base blob) string { return "extras-" + shortHash(platform(), base.Digest, "git") })
	with := build(t, b, "npm:one")
	checkLayout(t, with)
	m, n := manifestOf(t, plain), manifestOf(t, with)
	if len(m.Layers) != 3 || len(n.Layers) != 4 || n.Layers[0] != m.Layers[0] || n.Layers[1] != m.Layers[1] || n.Layers[3] != m.Layers[2] {
		t.Errorf("layers with further packages %+v, without %+v", n.Layers, m.Layers)
	}
	if len(with.Lock.Base) != 2 || with.Lock.Base[0] != deb {
		t.Errorf("the lock pins %+v", with.Lock.Base)
	}
	again := seed(r.config(t, t.TempDir()), func(base blob) string {
		return "extras-" + shortHash(platform(), base.Digest, "locked", debsKey([]Deb{deb}))
	})
	if img, err := again.BuildLocked(t.Context(), *with.Lock); err != nil || img.Digest != with.Digest {
		t.Errorf("from its lock: %s, %v; want %s", img.Digest, err, with.Digest)
	}
}
