package images

import (
	"archive/zip"
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// Wheel pins one Python package.
type Wheel struct {
	// File is the wheel's file name, which says name, version and platform.
	File   string `json:"file"`
	SHA256 string `json:"sha256"` // in hex
}

// wheel is one that lies on the disk.
type wheel struct {
	Wheel
	path          string
	name, version string            // name in its normal form
	scripts       map[string]string // console scripts: command -> module:attribute
	runs          bool              // python -m NAME runs it
}

var (
	wheelRE  = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._]*)-([A-Za-z0-9][A-Za-z0-9.!+_]*)(-\d[A-Za-z0-9_.]*)?-[A-Za-z0-9_.]+-[A-Za-z0-9_.]+-[A-Za-z0-9_.]+\.whl$`)
	objectRE = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$`)
	dashesRE = regexp.MustCompile(`[-_.]+`)
)

// normalName is PEP 503's form of a package's name, without extras.
func normalName(name string) string {
	name, _, _ = strings.Cut(name, "[")
	return strings.ToLower(dashesRE.ReplaceAllString(name, "-"))
}

// readWheel looks at one wheel: its hash, whose it says it is, and what it can
// be started by.
func readWheel(dir, file string) (wheel, error) {
	m := wheelRE.FindStringSubmatch(file)
	if m == nil {
		return wheel{}, fail(ErrRefused, "the fetch left "+quoted(file)+", which is no wheel", "")
	}
	w := wheel{Wheel: Wheel{File: file}, path: filepath.Join(dir, file), name: normalName(m[1]), version: m[2], scripts: map[string]string{}}
	var err error
	if w.SHA256, err = hashFile(w.path); err != nil {
		return w, err
	}
	z, err := zip.OpenReader(w.path)
	if err != nil {
		return w, w.bad("is not a readable archive")
	}
	defer z.Close() //nolint:errcheck // only read from
	module := strings.ReplaceAll(w.name, "-", "_")
	named := false
	for _, f := range z.File {
		dir, base := path.Split(f.Name)
		info := strings.HasSuffix(dir, ".dist-info/") && strings.Count(dir, "/") == 1
		switch {
		case info && base == "METADATA":
			named, err = w.isNamed(f)
		case info && base == "entry_points.txt":
			err = w.entryPoints(f)
		case f.Name == module+"/__main__.py":
			w.runs = true
		}
		if err != nil {
			return w, err
		}
	}
	if !named {
		return w, w.bad("does not say whose it is")
	}
	return w, nil
}

func (w *wheel) bad(what string) error {
	return fail(ErrRefused, "the wheel "+quoted(w.File)+" "+what, "")
}

// small reads a member of sane size.
func (w *wheel) small(f *zip.File) ([]byte, error) {
	r, err := f.Open()
	if err != nil {
		return nil, w.bad("is not a readable archive")
	}
	defer r.Close() //nolint:errcheck // only read from
	const most = 4 << 20
	data, err := io.ReadAll(io.LimitReader(r, most+1))
	if err != nil || len(data) > most {
		return nil, w.bad("holds " + quoted(f.Name) + " that is not readable")
	}
	return data, nil
}

// isNamed checks that what the wheel calls itself is what its file is called.
func (w *wheel) isNamed(f *zip.File) (bool, error) {
	data, err := w.small(f)
	if err != nil {
		return false, err
	}
	for line := range bytes.Lines(data) {
		if name, ok := bytes.CutPrefix(line, []byte("Name:")); ok {
			if normalName(string(bytes.TrimSpace(name))) != w.name {
				return false, w.bad("calls itself " + quoted(string(bytes.TrimSpace(name))))
			}
			return true, nil
		}
	}
	return false, nil
}

// entryPoints reads the console scripts.
func (w *wheel) entryPoints(f *zip.File) error {
	data, err := w.small(f)
	if err != nil {
		return err
	}
	section := ""
	for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); {
		line := strings.TrimSpace(s.Text())
		if strings.HasPrefix(line, "[") {
			section = line
			continue
		}
		name, object, ok := strings.Cut(line, "=")
		if section != "[console_scripts]" || !ok {
			continue
		}
		object, _, _ = strings.Cut(object, "[") // extras
		object = strings.ReplaceAll(strings.TrimSpace(object), " ", "")
		if name = strings.TrimSpace(name); !binRE.MatchString(name) || !objectRE.MatchString(object) {
			return w.bad("has the entry point " + quoted(line))
		}
		w.scripts[name] = object
	}
	return nil
}

// unpacker puts wheels into a layer. The first of several files of one name
// stays.
type unpacker struct {
	l     *layerWriter
	site  string // where packages go, in the image
	seen  map[string]bool
	bytes int64
	most  int64
}

const scriptsDir = "app/bin"

// place says where a member goes; empty means nowhere.
func (u *unpacker) place(name string) string {
	top, rest, ok := strings.Cut(name, "/")
	if !ok || !strings.HasSuffix(top, ".data") {
		return path.Join(u.site, name)
	}
	scheme, rest, _ := strings.Cut(rest, "/")
	if rest == "" {
		return "" // a file in the place of a scheme's folder
	}
	switch scheme {
	case "purelib", "platlib":
		return path.Join(u.site, rest)
	case "scripts":
		return path.Join(scriptsDir, rest)
	case "data":
		return path.Join("usr/local", rest)
	}
	return ""
}

// add unpacks one wheel, and makes the scripts of its entry points.
func (u *unpacker) add(ctx context.Context, w wheel) error {
	z, err := zip.OpenReader(w.path)
	if err != nil {
		return w.bad("is not a readable archive")
	}
	defer z.Close() //nolint:errcheck // only read from
	for _, f := range z.File {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if f.FileInfo().IsDir() {
			continue
		}
		if !filepath.IsLocal(f.Name) || path.Clean(f.Name) != f.Name || strings.ContainsAny(f.Name, "\\\x00") {
			return w.bad("holds the path " + quoted(f.Name))
		}
		if !f.Mode().IsRegular() || strings.HasPrefix(path.Base(f.Name), ".wh.") {
			return w.bad("holds " + quoted(f.Name) + ", which is no plain file")
		}
		if u.bytes += int64(f.UncompressedSize64); u.bytes > u.most || u.bytes < 0 || len(u.seen) > maxFiles {
			return tooBig(quoted(w.File), u.bytes)
		}
		if err := u.file(w, f); err != nil {
			return err
		}
	}
	for _, name := range sortedKeys(w.scripts) {
		if err := u.script(name, w.scripts[name]); err != nil {
			return err
		}
	}
	return nil
}

func (u *unpacker) file(w wheel, f *zip.File) error {
	to := u.place(f.Name)
	if to == "" || u.seen[to] {
		return nil
	}
	u.seen[to] = true
	r, err := f.Open()
	if err != nil {
		return w.bad("is not a readable archive")
	}
	defer r.Close() //nolint:errcheck // only read from
	mode, size, body := int64(0o444), int64(f.UncompressedSize64), io.Reader(r)
	if f.Mode()&0o100 != 0 {
		mode = 0o555
	}
	if strings.HasPrefix(to, scriptsDir+"/") {
		data, err := w.small(f)
		if err != nil {
			return err
		}
		if rest, ok := bytes.CutPrefix(data, []byte("#!python")); ok {
			data = append([]byte("#!"+pythonBin), rest...)
		}
		mode, size, body = 0o555, int64(len(data)), bytes.NewReader(data)
	}
	if err := u.l.regular(to, mode, size, body); err != nil {
		return w.bad("is damaged at " + quoted(f.Name))
	}
	return nil
}

// script is the file that starts a console script.
func (u *unpacker) script(name, object string) error {
	to := path.Join(scriptsDir, name)
	if u.seen[to] {
		return nil
	}
	u.seen[to] = true
	module, attr, _ := strings.Cut(object, ":")
	first, _, _ := strings.Cut(attr, ".")
	text := fmt.Sprintf("#!%s\nimport sys\nfrom %s import %s\nsys.exit(%s())\n", pythonBin, module, first, attr)
	return u.l.regular(to, 0o555, int64(len(text)), strings.NewReader(text))
}
