package gowasm

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// overlay is what go build -overlay is given.
type overlay struct {
	file string // the JSON file
	hash string // of everything in it, hex
}

// writeOverlay makes the overlay for a Go installation in a folder that is
// named by what goes in, so that a finished one is used again.
func writeOverlay(dir, goroot, version string) (overlay, error) {
	src := filepath.Join(goroot, "src")
	files, err := edited(os.DirFS(src), version)
	if err != nil {
		return overlay{}, err
	}
	names := slices.Sorted(maps.Keys(files))
	h := sha256.New()
	fmt.Fprintf(h, "%q\n", goroot)
	for _, name := range names {
		fmt.Fprintf(h, "%q %x\n", name, sha256.Sum256(files[name]))
	}
	o := overlay{hash: hex.EncodeToString(h.Sum(nil))}
	final := filepath.Join(dir, o.hash)
	o.file = filepath.Join(final, "overlay.json")
	if _, err := os.Stat(o.file); err == nil {
		return o, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return overlay{}, err
	}
	tmp, err := os.MkdirTemp(dir, ".new-")
	if err != nil {
		return overlay{}, err
	}
	defer os.RemoveAll(tmp) //nolint:errcheck // what is left is swept with the cache
	replace := map[string]string{}
	for _, name := range names {
		flat := strings.ReplaceAll(name, "/", "_")
		if err := os.WriteFile(filepath.Join(tmp, flat), files[name], 0o600); err != nil {
			return overlay{}, err
		}
		replace[filepath.Join(src, filepath.FromSlash(path.Clean(name)))] = filepath.Join(final, flat)
	}
	b, err := json.MarshalIndent(map[string]any{"Replace": replace}, "", "\t")
	if err != nil {
		return overlay{}, err
	}
	if err := os.WriteFile(filepath.Join(tmp, "overlay.json"), b, 0o600); err != nil {
		return overlay{}, err
	}
	// Somebody else may have been quicker: theirs is the same.
	if err := os.Rename(tmp, final); err != nil && !errors.Is(err, fs.ErrExist) {
		if _, serr := os.Stat(o.file); serr != nil {
			return overlay{}, err
		}
	}
	return o, nil
}
