package policies

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/sandboxd/sandboxd/policies/strict"
)

// Loader turns documents into policies. The zero value knows no registry, so
// that a rule which names one opens nothing.
type Loader struct {
	// Registries gives the origins at which this user's clients find the named
	// package registries: https://HOST, http://HOST:4873. It is called at most
	// once a document, and only for one that has {{registry.NAME}} in a rule.
	Registries func(names []string) map[string][]string
}

// Parse reads one document; name is what faults call it. The error is a
// strict.Faults with all of them. Warnings are in the Policy.
func (l Loader) Parse(name string, data []byte) (*Policy, error) {
	return (&decoder{r: strict.NewReporter(name), loader: l}).parse(name, data)
}

func (d *decoder) parse(name string, data []byte) (*Policy, error) {
	r := d.r
	root := strict.ParseYAML(r, data)
	if root == nil {
		return nil, r.Err()
	}
	p := d.policy(root, "")
	if err := r.Err(); err != nil {
		return nil, err
	}
	p.Name, p.Warnings = name, r.Warnings()
	return p, nil
}

// Load reads a policy file of at most strict.MaxBytes. Its errors are Parse's,
// or say why the file cannot be read.
func (l Loader) Load(path string) (*Policy, error) {
	data, err := ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	return l.Parse(path, data)
}

// ReadFile reads a regular file of at most strict.MaxBytes.
func ReadFile(path string) ([]byte, error) {
	// Asked first: opening a FIFO would block.
	info, err := os.Stat(path)
	if err != nil {
		return nil, readable(path, err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, readable(path, err)
	}
	defer f.Close() //nolint:errcheck // only read from
	data, err := io.ReadAll(io.LimitReader(f, strict.MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	if len(data) > strict.MaxBytes {
		return nil, fmt.Errorf("%s has more than the %d bytes that are read", path, strict.MaxBytes)
	}
	return data, nil
}

// missingError is a path at which there is no file.
type missingError string

func (e missingError) Error() string { return string(e) + " does not exist: check the path" }
func (missingError) Unwrap() error   { return fs.ErrNotExist }

func readable(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return missingError(path)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s may not be read by this user: %w", path, fs.ErrPermission)
	}
	return fmt.Errorf("%s: %w", path, err)
}

// Find takes what a person writes for a policy: a preset's name, or the path
// of a file, which holds a slash or ends in .yaml or .yml. A relative path
// starts at dir; "" is the working directory.
func (l Loader) Find(ref, dir string) (*Policy, error) {
	ext := strings.ToLower(filepath.Ext(ref))
	if !strings.ContainsRune(ref, filepath.Separator) && ext != ".yaml" && ext != ".yml" {
		return l.Preset(ref)
	}
	if dir != "" && !filepath.IsAbs(ref) {
		ref = filepath.Join(dir, ref)
	}
	return l.Load(ref)
}
