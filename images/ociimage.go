package images

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	gcr "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// makeOCI takes a container image in: from a registry, by the digest that its
// name has at the first build, or from a layout or an archive on the disk. It
// becomes one layer that only root owns and everybody reads.
func (b *Builder) makeOCI(ctx context.Context, w *work, ref Ref, lock *Lock) (product, error) {
	if len(b.cfg.ExtraPackages) > 0 {
		return product{}, fail(ErrRefused, "a container image has no room for distribution packages", "leave them out")
	}
	done := b.step("package", "fetching "+ref.Name)
	img, title, err := b.openOCI(ctx, ref, lock)
	if err != nil {
		return product{}, err
	}
	sum, err := img.Digest()
	if err != nil {
		return product{}, ociError(ctx, err, ref)
	}
	if lock != nil && sum.String() != lock.Integrity {
		return product{}, fail(ErrRefused, "the image "+ref.Name+" is not the locked one", "look at what changed before you update the lock")
	}
	conf, err := img.ConfigFile()
	if err != nil {
		return product{}, ociError(ctx, err, ref)
	}
	if conf.OS != "" && conf.OS+"/"+conf.Architecture != platform() {
		return product{}, fail(ErrRefused, "the image is made for "+quoted(conf.OS+"/"+conf.Architecture)+", not "+platform(), "")
	}
	layer, err := b.flatten(ctx, w, img)
	if err != nil {
		return product{}, ociError(ctx, err, ref)
	}
	p := product{
		name: title, version: sum.String()[:19], integrity: sum.String(), layers: []blob{layer},
		entry: conf.Config.Entrypoint, cmd: conf.Config.Cmd, dir: path.Clean("/" + conf.Config.WorkingDir),
		parts: []part{{title, sum.String(), "pkg:oci/" + path.Base(title) + "@" + strings.Replace(sum.String(), ":", "%3A", 1), "", ""}},
	}
	if len(p.entry) == 0 {
		// Its command is the program, unless the user gives another one.
		p.entry, p.cmd = nil, conf.Config.Cmd
	}
	if len(p.entry) == 0 && len(p.cmd) == 0 {
		return product{}, fail(ErrRefused, "the image has neither entrypoint nor command", "give one with docker run --entrypoint")
	}
	if p.env, err = ociEnv(conf.Config.Env); err != nil {
		return product{}, err
	}
	done(layer.Size)
	return p, nil
}

// openOCI finds the image for this platform, and its title, which holds no
// path of this host.
func (b *Builder) openOCI(ctx context.Context, ref Ref, lock *Lock) (gcr.Image, string, error) {
	if ref.onDisk() {
		img, err := openLocalOCI(ref.Name)
		return img, filepath.Base(ref.Name), err
	}
	if b.cfg.Outlet == nil {
		return nil, "", fail(ErrUnconfined, "this builder fetches nothing", "")
	}
	at, err := name.ParseReference(ref.Name)
	if err != nil {
		return nil, "", fail(ErrReference, "not the name of an image: "+quoted(ref.Name), "write oci:NAME:TAG or oci:NAME@sha256:…")
	}
	title := at.Context().RepositoryStr()
	if lock != nil {
		at = at.Context().Digest(lock.Integrity)
	}
	opts, err := b.cfg.Outlet.Images(ctx, at.Context().RegistryStr())
	if err != nil {
		return nil, "", err
	}
	opts = append(opts, remote.WithContext(ctx), remote.WithPlatform(gcr.Platform{OS: "linux", Architecture: runtime.GOARCH}))
	img, err := remote.Image(at, opts...)
	return img, title, ociError(ctx, err, ref)
}

// openLocalOCI opens an OCI layout's folder, or an archive as docker save
// writes it.
func openLocalOCI(file string) (gcr.Image, error) {
	info, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fail(ErrNotFound, "there is no image at "+quoted(file), "give the path of an OCI layout or a docker archive")
	}
	if err != nil {
		return nil, err
	}
	bad := func(err error) error {
		return fail(ErrRefused, quoted(file)+" is no readable image: "+quoted(err.Error()), "give an OCI layout's folder, or what docker save wrote")
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return nil, bad(errors.New("it is neither a folder nor a file"))
	}
	if !info.IsDir() {
		img, err := tarball.ImageFromPath(file, nil)
		if err != nil {
			return nil, bad(err)
		}
		return img, nil
	}
	l, err := layout.FromPath(file)
	if err != nil {
		return nil, bad(err)
	}
	idx, err := l.ImageIndex()
	if err != nil {
		return nil, bad(err)
	}
	img, err := pickImage(idx, 3)
	if err != nil {
		return nil, bad(err)
	}
	return img, nil
}

// pickImage finds the one image for this platform, at most so many indexes deep.
func pickImage(idx gcr.ImageIndex, depth int) (gcr.Image, error) {
	m, err := idx.IndexManifest()
	if err != nil {
		return nil, err
	}
	var found []gcr.Descriptor
	for _, d := range m.Manifests {
		if d.Platform == nil || d.Platform.OS == "linux" && d.Platform.Architecture == runtime.GOARCH {
			found = append(found, d)
		}
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("it holds %d images for %s", len(found), platform())
	}
	if !found[0].MediaType.IsIndex() {
		return idx.Image(found[0].Digest)
	}
	if depth == 0 {
		return nil, errors.New("its indexes are nested too deep")
	}
	inner, err := idx.ImageIndex(found[0].Digest)
	if err != nil {
		return nil, err
	}
	return pickImage(inner, depth-1)
}

// ociEnv is an image's own environment under the home that every sandbox has.
func ociEnv(env []string) ([]string, error) {
	out := []string{"HOME=" + userHome}
	for _, kv := range env {
		k, _, ok := strings.Cut(kv, "=")
		if !ok || k == "" || strings.IndexByte(kv, 0) >= 0 {
			return nil, fail(ErrRefused, "the image sets a variable that is none", "")
		}
		if k != "HOME" {
			out = append(out, kv)
		}
	}
	return out, nil
}

// flatten writes what the image's layers come to as one layer. What a sandbox
// has no use for is left out: devices, owners, set-uid bits.
func (b *Builder) flatten(ctx context.Context, w *work, img gcr.Image) (blob, error) {
	stream := mutate.Extract(&boundedImage{Image: img, left: 2 * b.cfg.MaxBytes})
	defer stream.Close() //nolint:errcheck // only read from
	file := filepath.Join(w.dir, "layer")
	l, err := newLayer(file)
	if err != nil {
		return blob{}, err
	}
	f := flattener{l: l, most: b.cfg.MaxBytes, seen: map[string]byte{}}
	err = f.copy(ctx, tar.NewReader(stream))
	if err == nil {
		// The library ends its archive in good order even where a layer was not
		// what its digest says; it tells only whoever reads on.
		_, err = io.Copy(io.Discard, stream)
	}
	if err != nil {
		l.abandon()
		return blob{}, err
	}
	layer, err := l.finish()
	if err != nil {
		return blob{}, err
	}
	return layer, b.st.adopt(file, layer)
}

// maxPath is the longest path that Linux takes, in bytes.
const maxPath = 4096

// boundedImage bounds what all layers unpack to, with what whiteouts and upper
// layers hide, and what is left out: little of a bomb need ever get into the
// image.
type boundedImage struct {
	gcr.Image
	left int64
}

// Layers are the image's, each counted while it is read.
func (i *boundedImage) Layers() ([]gcr.Layer, error) {
	layers, err := i.Image.Layers()
	out := make([]gcr.Layer, len(layers))
	for n, l := range layers {
		out[n] = boundedLayer{l, i}
	}
	return out, err
}

type boundedLayer struct {
	gcr.Layer
	image *boundedImage
}

// Uncompressed is the layer's tar.
func (l boundedLayer) Uncompressed() (io.ReadCloser, error) {
	r, err := l.Layer.Uncompressed()
	return boundedReader{r, l.image}, err
}

type boundedReader struct {
	io.ReadCloser
	image *boundedImage
}

func (r boundedReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if r.image.left -= int64(n); r.image.left < 0 {
		return 0, fail(ErrRefused, "the image's layers unpack to more than twice what an image may hold", "raise the bound if you trust it")
	}
	return n, err
}

type flattener struct {
	l     *layerWriter
	bytes int64
	most  int64
	seen  map[string]byte // path -> type
	// links are hard links, each with its target: layers come uppermost first,
	// so that a target can come later.
	links [][2]string
}

func (f *flattener) copy(ctx context.Context, t *tar.Reader) error {
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return errors.Join(f.hardlinks(), f.users(nil))
		}
		if err == nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		if len(h.Name) > maxPath || len(h.Linkname) > maxPath {
			return fail(ErrRefused, "the image holds a path that is longer than any file system takes: "+quoted(h.Name), "")
		}
		p := path.Clean("/" + h.Name)[1:]
		if p == "" || f.seen[p] != 0 {
			continue
		}
		if strings.Contains("/"+h.Name+"/", "/../") || strings.HasPrefix(path.Base(p), ".wh.") {
			return fail(ErrRefused, "the image holds the path "+quoted(h.Name), "")
		}
		if f.bytes += h.Size; f.bytes > f.most || len(f.seen) > maxFiles {
			return tooBig("the image", f.bytes)
		}
		if err := f.entry(p, h, t); err != nil {
			return err
		}
	}
}

func (f *flattener) entry(p string, h *tar.Header, t io.Reader) error {
	switch h.Typeflag {
	case tar.TypeDir:
		f.seen[p] = tar.TypeDir
		return f.l.dir(p, h.Mode|0o555, 0)
	case tar.TypeSymlink:
		f.seen[p] = tar.TypeSymlink
		return f.l.symlink(p, h.Linkname)
	case tar.TypeLink:
		f.seen[p] = tar.TypeLink
		f.links = append(f.links, [2]string{p, path.Clean("/" + h.Linkname)[1:]})
		return nil
	case tar.TypeReg:
		if p == "etc/passwd" && h.Size < 1<<20 {
			data, err := io.ReadAll(t)
			if err != nil {
				return err
			}
			return f.users(data)
		}
		f.seen[p] = tar.TypeReg
		mode := h.Mode | 0o444
		if h.Mode&0o111 != 0 {
			mode |= 0o111
		}
		return f.l.regular(p, mode&^0o222, h.Size, t)
	}
	return nil // a device, a pipe: a sandbox brings its own
}

// hardlinks writes the links once all that they can lead to is there.
func (f *flattener) hardlinks() error {
	for _, l := range f.links {
		if f.seen[l[1]] != tar.TypeReg {
			return fail(ErrRefused, "the image holds a hard link to nothing: "+quoted(l[0]), "")
		}
		if err := f.l.hardlink(l[0], l[1]); err != nil {
			return err
		}
	}
	return nil
}

// users writes the image's users, and the one that every sandbox has.
func (f *flattener) users(have []byte) error {
	if f.seen["etc/passwd"] != 0 || f.seen["etc"] == tar.TypeSymlink {
		return nil
	}
	f.seen["etc/passwd"] = tar.TypeReg
	if !bytes.Contains(have, fmt.Appendf(nil, ":x:%d:", userID)) {
		if len(have) > 0 && have[len(have)-1] != '\n' {
			have = append(slices.Clip(have), '\n')
		}
		have = fmt.Appendf(slices.Clip(have), "%s:x:%d:%d::%s:/usr/sbin/nologin\n", userName, userID, userID, userHome)
	}
	return f.l.regular("etc/passwd", 0o444, int64(len(have)), bytes.NewReader(have))
}

// ociError makes one clear line of a registry's or an archive's failure.
func ociError(ctx context.Context, err error, ref Ref) error {
	var own *Error
	var answer *transport.Error
	switch {
	case err == nil || errors.As(err, &own):
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &answer) && (answer.StatusCode == 401 || answer.StatusCode == 403):
		return fail(ErrDenied, "the image's registry refused access to "+ref.Name, "log in with docker login, or check the name")
	case errors.As(err, &answer) && answer.StatusCode == 404:
		return fail(ErrNotFound, "the image's registry has no "+ref.Name, "check its name and tag")
	case errors.As(err, &answer):
		return fail(ErrNetwork, fmt.Sprintf("the image's registry answered with status %d", answer.StatusCode), "try again later")
	case ref.onDisk():
		return fail(ErrRefused, quoted(ref.Name)+" is damaged: "+quoted(err.Error()), "")
	}
	return fail(ErrNetwork, "the image's registry could not be read: "+quoted(urlRE.ReplaceAllString(err.Error(), "<address>")), "")
}

// checkOCI looks at a lock's image.
func (l *Lock) checkOCI(ref Ref) (string, error) {
	if ref.onDisk() {
		return "is of an image on a disk, whose digest is its lock", nil
	}
	if !digestRE.MatchString(l.Integrity) {
		return "does not pin the image", nil
	}
	return "", nil
}
