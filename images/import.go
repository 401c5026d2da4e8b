package images

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	maxEntries = 4096     // of an archive
	maxPart    = 32 << 20 // bytes of an index, manifest, configuration, lock or bill
)

// ImportOptions say what Import does with what it finds.
type ImportOptions struct {
	// Replace lets an image take the place of another one of its reference.
	Replace bool
	// Dry only checks, and keeps nothing.
	Dry bool
}

// Import takes in an archive that Export wrote, here or elsewhere, and returns
// its images. Every part is held to its digest, every image to the lock that it
// came with, every layer to what sandboxd puts into layers: no device, no
// set-uid bit, no path that climbs. Nothing in it decides where it is written. Nothing is kept
// before everything was checked. It errs with ErrRefused for what is no such
// archive.
func (b *Builder) Import(ctx context.Context, from io.Reader, o ImportOptions) ([]Image, error) {
	building, err := b.st.lock(ctx, "store", true)
	if err != nil {
		return nil, err
	}
	defer building.Close() //nolint:errcheck // closing a lock's file loses nothing
	w, err := newWork(ctx, b.st.path("tmp"))
	if err != nil {
		return nil, err
	}
	im := &importer{b: b, w: w, have: map[string]blob{}}
	out, err := im.run(ctx, from, o)
	return out, errors.Join(err, w.close())
}

func notArchive(what string, args ...any) error {
	return fail(ErrRefused, "this is no archive of sandboxd image export: "+fmt.Sprintf(what, args...), "export it anew")
}

// importer holds what an archive brought, still apart from the store.
type importer struct {
	b    *Builder
	w    *work
	have map[string]blob // what lies in the work folder, by digest
	idx  []byte
}

// incoming is one image of an archive, checked.
type incoming struct {
	key        string
	rec        record
	lock       Lock
	lockRaw    []byte
	bill       []byte // nil for none
	descriptor v1.Descriptor
}

func (im *importer) run(ctx context.Context, from io.Reader, o ImportOptions) ([]Image, error) {
	if err := im.unpack(ctx, from); err != nil {
		return nil, err
	}
	list, err := im.images()
	if err != nil {
		return nil, err
	}
	if err := im.layers(ctx, list); err != nil {
		return nil, err
	}
	var out []Image
	for _, in := range list {
		old, err := im.b.st.record(in.key)
		if err == nil && old.Digest != in.rec.Digest && !o.Replace {
			return nil, fail(ErrRefused, in.rec.Ref.String()+" is here already, as another image ("+old.Digest+")", "give --replace to put "+in.rec.Digest+" in its place")
		}
	}
	for _, in := range list {
		if o.Dry {
			out = append(out, in.rec.image(im.b.st, &in.lock))
			continue
		}
		if err := im.keep(ctx, in); err != nil {
			return nil, err
		}
		img, err := im.b.st.image(in.key)
		if err != nil {
			return nil, err
		}
		out = append(out, img)
	}
	return out, nil
}

// unpack puts the archive's files into the work folder, by their hashes.
func (im *importer) unpack(ctx context.Context, from io.Reader) error {
	t := tar.NewReader(contextReader{ctx, from})
	left := 4 * im.b.cfg.MaxBytes // of all images together
	for n := 0; ; n++ {
		h, err := t.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return notArchive("it is no whole tar file")
		case n >= maxEntries:
			return notArchive("it has over %d files", maxEntries)
		case h.Typeflag == tar.TypeDir:
			continue
		case h.Typeflag != tar.TypeReg || h.Size < 0:
			return notArchive("%s is no regular file", quoted(h.Name))
		}
		if left -= h.Size; left < 0 {
			return notArchive("it holds over %d bytes", 4*im.b.cfg.MaxBytes)
		}
		if err := im.entry(strings.TrimPrefix(h.Name, "./"), h.Size, t); err != nil {
			return err
		}
	}
}

func (im *importer) entry(name string, size int64, from io.Reader) error {
	if name == v1.ImageLayoutFile || name == v1.ImageIndexFile {
		if size > maxPart {
			return notArchive("its %s is too large", name)
		}
		data, err := io.ReadAll(from)
		if err != nil {
			return notArchive("it is cut off")
		}
		if name == v1.ImageIndexFile {
			im.idx = data
		}
		return nil
	}
	dir, hash := path.Split(name)
	if dir != "blobs/sha256/" || !hexRE.MatchString(hash) {
		return notArchive("%s does not belong there", quoted(name))
	}
	digest := "sha256:" + hash
	if _, twice := im.have[digest]; twice {
		return notArchive("it has the part %s twice", hash)
	}
	f, err := os.OpenFile(filepath.Join(im.w.dir, hash), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	h := newHashWriter(f)
	_, err = io.Copy(h, from)
	if cerr := errors.Join(f.Sync(), f.Close()); cerr != nil {
		return cerr
	}
	if err != nil {
		return notArchive("it is cut off")
	}
	if got := h.blob(); got.Digest != digest {
		return notArchive("the part %s is not what its name says", hash)
	}
	im.have[digest] = h.blob()
	return nil
}

// document reads a blob that is JSON.
func (im *importer) document(d v1.Descriptor, v any) ([]byte, error) {
	have, ok := im.have[d.Digest.String()]
	switch {
	case !ok:
		return nil, notArchive("the part %s is missing", quoted(d.Digest.String()))
	case have.Size != d.Size || have.Size > maxPart:
		return nil, notArchive("the part %s has another size than was said", quoted(d.Digest.String()))
	}
	data, err := os.ReadFile(filepath.Join(im.w.dir, strings.TrimPrefix(have.Digest, "sha256:")))
	if err != nil {
		return nil, err
	}
	if v != nil && json.Unmarshal(data, v) != nil {
		return nil, notArchive("the part %s is no JSON of its kind", quoted(d.Digest.String()))
	}
	return data, nil
}

// images checks what the index lists.
func (im *importer) images() ([]incoming, error) {
	var idx v1.Index
	if im.idx == nil || json.Unmarshal(im.idx, &idx) != nil || len(idx.Manifests) > maxEntries {
		return nil, notArchive("it has no index of its images")
	}
	said := map[string]map[string][]byte{} // artifacts, by their subject and type
	var list []incoming
	for _, d := range idx.Manifests {
		var m v1.Manifest
		if _, err := im.document(d, &m); err != nil {
			return nil, err
		}
		if m.ArtifactType == "" {
			in, err := im.image(d, m)
			if err != nil {
				return nil, err
			}
			list = append(list, in)
			continue
		}
		if m.Subject == nil || len(m.Layers) != 1 {
			continue // somebody else's artifact
		}
		data, err := im.document(m.Layers[0], nil)
		if err != nil {
			return nil, err
		}
		of := m.Subject.Digest.String()
		if said[of] == nil {
			said[of] = map[string][]byte{}
		}
		said[of][m.ArtifactType] = data
	}
	if len(list) == 0 {
		return nil, notArchive("it has no image")
	}
	for i := range list {
		if err := list[i].hold(im.b, said[list[i].rec.Digest]); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// image checks one image's own parts.
func (im *importer) image(d v1.Descriptor, m v1.Manifest) (incoming, error) {
	ref, err := ParseRef(d.Annotations[v1.AnnotationRefName])
	if err != nil {
		return incoming{}, notArchive("an image in it has no reference")
	}
	bad := func(what string) (incoming, error) {
		return incoming{}, fail(ErrRefused, "the image "+ref.String()+" in the archive "+what, "export it anew")
	}
	var cfg v1.Image
	if _, err := im.document(m.Config, &cfg); err != nil {
		return incoming{}, err
	}
	switch {
	case m.MediaType != v1.MediaTypeImageManifest || m.Config.MediaType != v1.MediaTypeImageConfig:
		return bad("is of another form")
	case cfg.OS+"/"+cfg.Architecture != platform():
		return bad("is for " + quoted(cfg.OS+"/"+cfg.Architecture) + ", not " + platform())
	case cfg.Config.User != strconv.Itoa(userID)+":"+strconv.Itoa(userID):
		return bad("runs as another user than sandboxd's images do")
	case len(cfg.Config.Entrypoint) == 0 || !path.IsAbs(cfg.Config.WorkingDir):
		return bad("has no program to start")
	case len(m.Layers) == 0 || len(m.Layers) != len(cfg.RootFS.DiffIDs):
		return bad("has other layers than it says")
	}
	rec := record{
		Ref: ref, Digest: d.Digest.String(), Entrypoint: cfg.Config.Entrypoint, Cmd: cfg.Config.Cmd, Env: cfg.Config.Env, Dir: cfg.Config.WorkingDir,
		Blobs: []blob{{d.Digest.String(), d.Size}, {m.Config.Digest.String(), m.Config.Size}}, Created: time.Now().UTC(),
	}
	for i, l := range m.Layers {
		have, ok := im.have[l.Digest.String()]
		if !ok || have.Size != l.Size || l.MediaType != v1.MediaTypeImageLayer || cfg.RootFS.DiffIDs[i] != l.Digest {
			return bad("lacks a layer, or has one in another form")
		}
		rec.Blobs = append(rec.Blobs, have)
	}
	return incoming{rec: rec, descriptor: descriptor(v1.MediaTypeImageManifest, rec.Blobs[0])}, nil
}

// hold checks what an archive says of an image.
func (in *incoming) hold(b *Builder, said map[string][]byte) error {
	bad := func(what string) error {
		return fail(ErrRefused, "the image "+in.rec.Ref.String()+" in the archive "+what, "export it anew")
	}
	d := json.NewDecoder(bytes.NewReader(said[lockType]))
	d.DisallowUnknownFields()
	if len(said[lockType]) == 0 || d.Decode(&in.lock) != nil {
		return bad("has no version lock that can be read")
	}
	ref, err := in.lock.validate()
	if err != nil {
		return err
	}
	if in.lock.Digest != in.rec.Digest || ref.Kind != in.rec.Ref.Kind || ref.String() != in.rec.Ref.String() && ref.Name != in.rec.Ref.Name {
		return bad("has the version lock of another one")
	}
	in.lockRaw = said[lockType]
	if in.bill = said[billType]; in.bill != nil {
		var bom cdx.BOM
		if cdx.NewBOMDecoder(bytes.NewReader(in.bill), cdx.BOMFileFormatJSON).Decode(&bom) != nil {
			return bad("has a bill of materials that cannot be read")
		}
	}
	// Whether install scripts ran is part of what was asked for.
	asked := &Builder{cfg: b.cfg}
	asked.cfg.Scripts = in.lock.Scripts
	in.key = asked.key(in.rec.Ref)
	return nil
}

// keep moves an image into the store; its record comes last.
func (im *importer) keep(ctx context.Context, in incoming) error {
	st := im.b.st
	for _, x := range in.rec.Blobs {
		file := filepath.Join(im.w.dir, strings.TrimPrefix(x.Digest, "sha256:"))
		if !exists(file) {
			continue // moved with an image before
		}
		if err := st.adopt(file, x); err != nil {
			return err
		}
	}
	if in.bill != nil {
		if err := st.put(im.w, st.billPath(in.rec.Digest), in.bill); err != nil {
			return err
		}
	}
	if err := st.put(im.w, st.lockPath(in.rec.Digest), slices.Clone(in.lockRaw)); err != nil {
		return err
	}
	if err := st.index(ctx, im.w, in.rec.Ref.String(), in.descriptor); err != nil {
		return err
	}
	_, err := st.putJSON(im.w, st.path("refs", in.key+".json"), in.rec)
	return err
}
