package images

import (
	"context"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

const pythonBin = "/usr/bin/python3"

// pyJob says which Python packages to fetch.
type pyJob struct {
	needs []string // requirements, as pip takes them
	main  string   // the normal name of the one that is run; empty for none
}

// makePyPI makes the image of a Python package: wheels only, by their hashes.
func (b *Builder) makePyPI(ctx context.Context, w *work, ref Ref, lock *Lock) (product, error) {
	need := ref.Name
	if ref.Version != "" {
		need += "==" + ref.Version
	}
	done := b.step("package", "fetching "+need)
	p := product{name: normalName(ref.Name), dir: userHome}
	wheels, err := b.python(ctx, w, pyJob{needs: []string{need}, main: p.name}, lock, &p)
	if err != nil {
		return product{}, err
	}
	main := wheels[0]
	p.version, p.integrity = main.version, "sha256:"+main.SHA256
	p.entry, err = main.command(ref)
	done(p.layers[len(p.layers)-1].Size)
	return p, err
}

// command picks the console script: the one that was named, the only one, or
// the one named as the package; else the package itself, where it runs.
func (w wheel) command(ref Ref) ([]string, error) {
	names := sortedKeys(w.scripts)
	pick := ref.Bin
	switch {
	case pick != "":
	case len(names) == 1:
		pick = names[0]
	default:
		for _, n := range names {
			if normalName(n) == w.name {
				pick = n
			}
		}
	}
	switch {
	case w.scripts[pick] != "":
		return []string{pythonBin, "/" + path.Join(scriptsDir, pick)}, nil
	case pick == "" && w.runs:
		return []string{pythonBin, "-m", strings.ReplaceAll(w.name, "-", "_")}, nil
	case len(names) == 0:
		return nil, fail(ErrRefused, "the package "+w.name+" has no command to run", "it is a library, not a server")
	case pick != "":
		return nil, fail(ErrRefused, "the package "+w.name+" has no command "+quoted(pick), "it has "+quoted(strings.Join(names, ", ")))
	}
	return nil, fail(ErrRefused, "the package "+w.name+" has several commands and none of its own name", "pick one with #COMMAND of "+quoted(strings.Join(names, ", ")))
}

// python puts Python into a product, and the packages of the job, which it
// returns, the main one first.
func (b *Builder) python(ctx context.Context, w *work, job pyJob, lock *Lock, p *product) ([]wheel, error) {
	names := append(slices.Clone(b.cfg.ExtraPackages), "python3")
	slices.Sort(names)
	sys, err := b.system(ctx, slices.Compact(names), pinsOf(lock), false)
	if err != nil {
		return nil, err
	}
	p.debs, p.env, p.layers = sys.debs(), pythonEnv(), []blob{sys.base.Layer}
	if sys.extras != nil {
		p.layers = append(p.layers, sys.extras.Layer)
	}
	minor := pythonMinor(p.debs)
	if minor == "" {
		return nil, fail(ErrTool, "the distribution's python3 brings no Python", "")
	}
	if len(job.needs) == 0 {
		return nil, nil
	}
	dir, err := w.sub("wheels")
	if err != nil {
		return nil, err
	}
	if err := b.pip(ctx, w, job, lock, dir); err != nil {
		return nil, err
	}
	wheels, err := readWheels(dir, job.main, lock)
	if err != nil {
		return nil, err
	}
	layer, err := b.packWheels(ctx, w, wheels, minor)
	if err != nil {
		return nil, err
	}
	p.layers = append(p.layers, layer)
	for _, x := range wheels {
		p.parts = append(p.parts, part{x.name, x.version, "pkg:pypi/" + x.name + "@" + x.version, cdx.HashAlgoSHA256, x.SHA256})
	}
	p.pin = func(l *Lock) {
		for _, x := range wheels {
			l.Wheels = append(l.Wheels, x.Wheel)
		}
	}
	return wheels, nil
}

// pythonEnv is what Python servers get. Nothing that they import can be
// compiled into the sealed image, and what they print is MCP.
func pythonEnv() []string {
	return []string{
		"PATH=/usr/local/bin:/usr/bin:/bin:/" + scriptsDir, "HOME=" + userHome, "LANG=C.UTF-8",
		"SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt", "PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1",
	}
}

var minorRE = regexp.MustCompile(`^python(3\.\d+)-minimal$`)

// pythonMinor is the version that the distribution packages bring, as in 3.11.
func pythonMinor(debs []Deb) string {
	for _, d := range debs {
		if m := minorRE.FindStringSubmatch(d.Name); m != nil {
			return m[1]
		}
	}
	return ""
}

// maxWheels bounds the packages of one tree.
const maxWheels = 2000

// readWheels looks at what pip left, the main package first. A lock's wheels
// have to be just those.
func readWheels(dir, main string, lock *Lock) ([]wheel, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close() //nolint:errcheck // only read from
	folder, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer folder.Close() //nolint:errcheck // only read from
	entries, err := folder.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	if len(entries) > maxWheels {
		return nil, fail(ErrRefused, "the fetch left over 2000 packages", "")
	}
	var wheels []wheel
	for _, e := range entries {
		if !e.Type().IsRegular() {
			return nil, fail(ErrRefused, "the fetch left "+quoted(e.Name())+", which is not a file", "")
		}
		x, err := readWheel(dir, e.Name())
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(wheels, func(y wheel) bool { return y.name == x.name }) {
			return nil, fail(ErrRefused, "the fetch left the package "+x.name+" twice", "")
		}
		wheels = append(wheels, x)
	}
	slices.SortFunc(wheels, func(x, y wheel) int {
		if (x.name == main) != (y.name == main) {
			if x.name == main {
				return -1
			}
			return 1
		}
		return strings.Compare(x.File, y.File)
	})
	if main != "" && (len(wheels) == 0 || wheels[0].name != main) {
		return nil, fail(ErrRefused, "the fetch left no wheel of "+main, "")
	}
	if lock != nil && !slices.EqualFunc(wheels, lock.Wheels, func(x wheel, pin Wheel) bool { return x.Wheel == pin }) {
		return nil, fail(ErrRefused, "the packages that were fetched are not the locked ones", "look at what changed before you update the lock")
	}
	return wheels, nil
}

func (b *Builder) packWheels(ctx context.Context, w *work, wheels []wheel, minor string) (blob, error) {
	file := filepath.Join(w.dir, "layer-wheels")
	l, err := newLayer(file)
	if err != nil {
		return blob{}, err
	}
	u := &unpacker{l: l, site: "usr/local/lib/python" + minor + "/dist-packages", seen: map[string]bool{}, most: b.cfg.MaxBytes}
	for _, x := range wheels {
		if err := u.add(ctx, x); err != nil {
			l.abandon()
			return blob{}, err
		}
	}
	layer, err := l.finish()
	if err != nil {
		return blob{}, err
	}
	return layer, b.st.adopt(file, layer)
}

// checkPyPI looks at a lock's Python part.
func (l *Lock) checkPyPI(ref Ref) (string, error) {
	switch {
	case normalName(ref.Name) != l.Name:
		return "locks another package", nil
	case pythonMinor(l.Base) == "":
		return "does not pin Python", nil
	case len(l.Wheels) == 0:
		return "pins no packages", nil
	}
	for _, x := range l.Wheels {
		if !wheelRE.MatchString(x.File) || !hexRE.MatchString(x.SHA256) {
			return "does not pin " + quoted(x.File), nil
		}
	}
	return "", nil
}
