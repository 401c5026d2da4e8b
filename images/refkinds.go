package images

import (
	"path/filepath"
	"regexp"
	"strings"
)

var (
	// PEP 508's name and extras, PEP 440's version as far as it names one.
	pypiNameRE    = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,212}[A-Za-z0-9])?(\[[A-Za-z0-9._,-]{1,200}\])?$`)
	pypiVersionRE = regexp.MustCompile(`^([0-9]+!)?[0-9]{1,9}(\.[0-9]{1,9}){0,7}((a|b|rc|\.post|\.dev)[0-9]{1,9}){0,3}(\+[A-Za-z0-9.]{1,64})?$`)
	ociNameRE     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,511}$`)
)

// parsePyPI reads NAME[EXTRAS], with @VERSION or ==VERSION behind it.
func parsePyPI(spec, bin string) (Ref, error) {
	r := Ref{Kind: KindPyPI, Name: spec, Bin: bin}
	for _, sep := range []string{"==", "@"} {
		if name, version, ok := strings.Cut(spec, sep); ok {
			r.Name, r.Version = name, version
			if version == "" {
				return Ref{}, fail(ErrReference, "no version after "+sep+" in "+quoted(spec), refForms)
			}
			break
		}
	}
	if r.Version == "latest" { // as uvx has it
		r.Version = ""
	}
	return r, r.validate()
}

// parseOCI reads an image's name in a registry, or the path of an OCI layout or
// archive: one that begins with / or a dot.
func parseOCI(spec string) (Ref, error) {
	r := Ref{Kind: KindOCI, Name: spec}
	if r.onDisk() {
		abs, err := filepath.Abs(spec)
		if err != nil {
			return Ref{}, err
		}
		r.Name = abs
	}
	return r, r.validate()
}

// onDisk reports whether an OCI reference is a path.
func (r Ref) onDisk() bool { return strings.HasPrefix(r.Name, "/") || strings.HasPrefix(r.Name, ".") }

// parseDir reads a folder, and the file in it that starts the server.
func parseDir(spec string) (Ref, error) {
	dir, file, _ := strings.Cut(spec, "#")
	if dir == "" {
		return Ref{}, fail(ErrReference, "no folder in "+quoted(spec), refForms)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return Ref{}, err
	}
	r := Ref{Kind: KindDir, Name: abs, Bin: file}
	return r, r.validate()
}

func (r Ref) validatePyPI() error {
	switch {
	case !pypiNameRE.MatchString(r.Name):
		return fail(ErrReference, "not the name of a Python package: "+quoted(r.Name), "only packages of the configured index are built, no folders, URLs or git addresses")
	case r.Version != "" && !pypiVersionRE.MatchString(r.Version):
		return fail(ErrReference, "not a version of a Python package: "+quoted(r.Version), "write pypi:PACKAGE@1.2.3")
	case r.Bin != "" && !binRE.MatchString(r.Bin):
		return fail(ErrReference, "not a command name: "+quoted(r.Bin), refForms)
	}
	return nil
}

func (r Ref) validateOCI() error {
	bad := r.Version != "" || r.Bin != ""
	if r.onDisk() {
		bad = bad || !filepath.IsAbs(r.Name) || strings.IndexByte(r.Name, 0) >= 0
	} else {
		bad = bad || !ociNameRE.MatchString(r.Name)
	}
	if bad {
		return fail(ErrReference, "not the name of an image: "+quoted(r.Name), "write oci:NAME:TAG, oci:NAME@sha256:… or oci:/PATH of a layout or archive")
	}
	return nil
}

func (r Ref) validateDir() error {
	if !filepath.IsAbs(r.Name) || filepath.Clean(r.Name) != r.Name || strings.ContainsAny(r.Name, "#\x00\n") || r.Version != "" || filepath.Dir(r.Name) == r.Name {
		return fail(ErrReference, "not a folder to seal: "+quoted(r.Name), refForms)
	}
	if r.Bin != "" && (!filepath.IsLocal(r.Bin) || strings.ContainsAny(r.Bin, "\x00\n\\")) {
		return fail(ErrReference, "not a file of the folder: "+quoted(r.Bin), refForms)
	}
	return nil
}
