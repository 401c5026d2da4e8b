package gowasm

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/sandboxd/sandboxd/images"
)

// Target is what to build: the main package of a folder, or a package of a
// module at a version. Its zero value is invalid.
type Target struct {
	// Dir is the folder, absolute; empty for a module.
	Dir string
	// Package is an import path, and Version what the go command takes after
	// its @: exact, a prefix or latest.
	Package, Version string
}

const targetForms = "write PACKAGE@VERSION, as in example.com/server/cmd/server@v1.2.3, or a folder, as in ./server"

// ParseTarget reads PACKAGE@VERSION, with go: in front or not,
// MODULE@VERSION/SUBFOLDER, which means the same, or a folder. Without a
// version, go:PACKAGE means latest. Errors match images.ErrReference.
func ParseTarget(s string) (Target, error) {
	rest, isRef := strings.CutPrefix(s, "go:")
	if !isRef && isFolder(s) {
		dir, err := filepath.Abs(s)
		return Target{Dir: dir}, err
	}
	ref, err := images.ParseRef("go:" + rest)
	if err != nil {
		return Target{}, err
	}
	if ref.Version == "" && !isRef {
		return Target{}, &images.Error{Kind: images.ErrReference, What: "no version after " + quoted(rest), Next: targetForms}
	}
	return OfRef(ref), nil
}

// OfRef is the target that a go: reference means.
func OfRef(ref images.Ref) Target {
	if ref.Version == "" {
		ref.Version = "latest"
	}
	return Target{Package: ref.Name, Version: ref.Version}
}

// isFolder tells a path from an import path as the go command does.
func isFolder(s string) bool {
	return s == "." || s == ".." || strings.HasPrefix(s, "./") || strings.HasPrefix(s, "../") || filepath.IsAbs(s)
}

func (t Target) validate() error {
	if t.Dir != "" {
		if t.Package != "" || t.Version != "" || !filepath.IsAbs(t.Dir) {
			return &images.Error{Kind: images.ErrReference, What: "not an absolute folder: " + quoted(t.Dir), Next: targetForms}
		}
		if info, err := os.Stat(t.Dir); err != nil || !info.IsDir() {
			return &images.Error{Kind: images.ErrReference, What: "no such folder: " + quoted(t.Dir), Next: targetForms}
		}
		return nil
	}
	_, err := images.ParseRef(t.String())
	return err
}

// String is the folder, or go:PACKAGE@VERSION.
func (t Target) String() string {
	if t.Dir != "" {
		return t.Dir
	}
	return "go:" + t.Package + "@" + t.Version
}
