package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// EnvPrefix begins the name of a variable that holds a secret; the secret's
// name follows in upper case.
const EnvPrefix = "SANDBOXD_SECRET_"

// maxSecret bounds the file of one secret, in bytes.
const maxSecret = 64 << 10

// secrets looks values up in a name space that belongs to MCP servers alone:
// our environment under EnvPrefix, then a folder with one file a secret.
type secrets struct {
	env func(string) (string, bool)
	dir string // empty: there is none
	// found collects the values that were put in.
	found map[string]bool
}

var (
	secretName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
	template   = regexp.MustCompile(`\{\{\s*(\S+?)\s*\}\}`)
	// anything that looks like the wish for a secret and is not one
	nearTemplate = regexp.MustCompile(`(?i)\{\{?\s*secrets?\b`)
)

// mentions reports whether s holds a reference to a secret, or tries to.
func mentions(s string) bool { return nearTemplate.MatchString(s) }

// expand replaces each {{secrets.NAME}} of s. Other braces stay as they are.
// Errors name secrets and places to put them, never a value.
func (x secrets) expand(s string) (Secret, error) {
	var errs []error
	out := template.ReplaceAllStringFunc(s, func(m string) string {
		name, ok := strings.CutPrefix(template.FindStringSubmatch(m)[1], "secrets.")
		if !ok {
			return m
		}
		v, err := x.lookup(name)
		if err != nil {
			errs = append(errs, err)
		}
		return v
	})
	rest := template.ReplaceAllStringFunc(s, func(m string) string {
		if strings.HasPrefix(template.FindStringSubmatch(m)[1], "secrets.") {
			return ""
		}
		return m
	})
	if mentions(rest) {
		errs = append(errs, errors.New("a reference to a secret is written {{secrets.NAME}}"))
	}
	if len(errs) > 0 {
		return Secret{}, errors.Join(errs...)
	}
	return Secret{out}, nil
}

func (x secrets) lookup(name string) (string, error) {
	if !secretName.MatchString(name) {
		return "", fmt.Errorf("%.64q is no name for a secret: use letters, digits and _", name)
	}
	variable := EnvPrefix + strings.ToUpper(name)
	v, ok := x.env(variable)
	if !ok && x.dir != "" {
		var err error
		if v, err = readSecret(filepath.Join(x.dir, name)); err == nil {
			ok = true
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("secret %s: %w", name, err)
		}
	}
	switch {
	case !ok && x.dir == "":
		return "", fmt.Errorf("secret %s is not set: set %s, or name a folder of secrets with secrets_dir", name, variable)
	case !ok:
		return "", fmt.Errorf("secret %s is not set: set %s, or write %s", name, variable, filepath.Join(x.dir, name))
	case v == "":
		return "", fmt.Errorf("secret %s is empty", name)
	case strings.ContainsRune(v, 0):
		return "", fmt.Errorf("secret %s holds a NUL byte", name)
	}
	if x.found != nil {
		x.found[v] = true
	}
	return v, nil
}

// readSecret reads one secret's file without a line break at its end. Only
// its owner, this user or root, may have access to it.
func readSecret(path string) (string, error) {
	// Asked first: opening a FIFO would block. Asked again of what was opened.
	if info, err := os.Stat(path); err != nil {
		return "", pathless(err)
	} else if !info.Mode().IsRegular() {
		return "", errors.New("its file is not a regular one")
	}
	f, err := os.Open(path)
	if err != nil {
		return "", pathless(err)
	}
	defer f.Close() //nolint:errcheck // only read from
	info, err := f.Stat()
	if err != nil {
		return "", pathless(err)
	}
	if err := ownersOnly(info, 0o077); err != nil {
		return "", fmt.Errorf("its file %w: chmod 600 it", err)
	}
	if info.Size() > maxSecret {
		return "", fmt.Errorf("its file is larger than %d bytes", maxSecret)
	}
	data := make([]byte, info.Size())
	n, err := f.ReadAt(data, 0)
	if n < len(data) {
		return "", fmt.Errorf("reading its file: %w", pathless(err))
	}
	v := strings.TrimSuffix(string(data), "\n")
	return strings.TrimSuffix(v, "\r"), nil
}

// pathless drops the path from an error: it is named where it helps.
func pathless(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
