package gowasm

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sandboxd/sandboxd/images"
)

// The folders of a cache: work holds builds under way, ref one record for each
// target, out one folder for each set of inputs.
const (
	workFolder = "work"
	refFolder  = "ref"
	outFolder  = "out"
)

// record is what a target meant when it was last built.
type record struct {
	Target string       `json:"target"`
	Key    string       `json:"key"`
	Edits  string       `json:"edits"` // the overlay's, whatever the Go
	Lock   *versionLock `json:"lock,omitempty"`
}

// output is what is kept beside a module.
type output struct {
	Name     string    `json:"name"`
	Digest   string    `json:"digest"`
	Go       string    `json:"go"`
	Version  string    `json:"version,omitempty"`
	Warnings []Finding `json:"warnings,omitempty"`
}

var errDamaged = errors.New("gowasm: a damaged cache")

func (b *Builder) recordFile(t Target) string {
	sum := sha256.Sum256([]byte(t.String()))
	return filepath.Join(b.cfg.CacheDir, refFolder, hex.EncodeToString(sum[:16])+".json")
}

func (b *Builder) readRecord(t Target) (record, error) {
	var r record
	data, err := os.ReadFile(b.recordFile(t))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil || r.Target != t.String() || len(r.Key) != 2*sha256.Size || !filepath.IsLocal(r.Key) {
		return record{}, errDamaged
	}
	return r, nil
}

func (b *Builder) writeRecord(t Target, r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return replaceFile(b.recordFile(t), data)
}

// replaceFile writes a file whole or not at all.
func replaceFile(name string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".new-")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

// readOutput returns the module of a set of inputs, if it is there and is what
// was put there.
func (b *Builder) readOutput(t Target, key string) (Result, error) {
	dir := filepath.Join(b.cfg.CacheDir, outFolder, key)
	data, err := os.ReadFile(filepath.Join(dir, "output.json"))
	if err != nil {
		return Result{}, err
	}
	var o output
	if err := json.Unmarshal(data, &o); err != nil || o.Name == "" || !filepath.IsLocal(o.Name) {
		return Result{}, errDamaged
	}
	img, err := images.WASM(filepath.Join(dir, o.Name+".wasm"))
	if err != nil {
		return Result{}, err
	}
	if img.Digest != o.Digest {
		return Result{}, errDamaged
	}
	return Result{Target: t, Image: img, Go: o.Go, Version: o.Version, Warnings: o.Warnings, Cached: true}, nil
}

// writeOutput moves a module into the cache.
func (b *Builder) writeOutput(key, file string, o output) error {
	out := filepath.Join(b.cfg.CacheDir, outFolder)
	tmp, err := os.MkdirTemp(out, ".new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp) //nolint:errcheck // gone already when all went well
	if err := os.Rename(file, filepath.Join(tmp, o.Name+".wasm")); err != nil {
		return err
	}
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tmp, "output.json"), data, 0o600); err != nil {
		return err
	}
	final := filepath.Join(out, key)
	err = os.Rename(tmp, final)
	if errors.Is(err, fs.ErrExist) { // what is there was not fit to be read
		err = errors.Join(os.RemoveAll(final), os.Rename(tmp, final))
	}
	return err
}

// leftover is how old a temporary folder is when nobody can be at it any more:
// longer than a build may take.
const leftover = 24 * time.Hour

// sweep removes what builds that were interrupted left.
func (b *Builder) sweep() error {
	for _, pattern := range []string{workFolder + "/build-*", refFolder + "/.new-*", outFolder + "/.new-*", "overlay/.new-*"} {
		names, err := filepath.Glob(filepath.Join(b.cfg.CacheDir, pattern))
		if err != nil {
			return err
		}
		for _, name := range names {
			info, err := os.Lstat(name)
			if err != nil || time.Since(info.ModTime()) < leftover {
				continue
			}
			if err := os.RemoveAll(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// editsHash names the edits and added files of this program, whatever Go they
// are applied to.
func editsHash() (string, error) {
	files, err := added()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, e := range edits {
		fmt.Fprintf(h, "%q %q %q\n", e.file, e.anchor, e.with)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(h, "%q %x\n", name, sha256.Sum256(files[name]))
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// CopyTo writes the module to a file, whole or not at all.
func (r Result) CopyTo(name string) error {
	from, err := os.Open(r.Image.Path)
	if err != nil {
		return err
	}
	defer from.Close() //nolint:errcheck // only read from
	to, err := os.CreateTemp(filepath.Dir(name), ".new-")
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	if cerr := to.Chmod(0o644); err == nil { // a module is no secret, and others may run it
		err = cerr
	}
	if cerr := to.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(to.Name(), name)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(to.Name()))
	}
	return err
}
