package images

import (
	"path/filepath"
	"regexp"
	"strings"
)

// Kind is the ecosystem of a reference. The zero value is none.
type Kind string

// The kinds.
const (
	KindNPM  Kind = "npm"
	KindGo   Kind = "go"
	KindPyPI Kind = "pypi"
	KindOCI  Kind = "oci"
	KindDir  Kind = "dir"
	KindWASM Kind = "wasm"
)

// Ref names what to run. It is comparable, and String gives the form that
// ParseRef reads.
type Ref struct {
	Kind Kind
	// Name is the package, with its scope or extras; the image; or the path of
	// the folder or .wasm file.
	Name string
	// Version is an exact version, a range or a tag; empty means the tag
	// latest. A range or tag is resolved at the first build and stays so.
	Version string
	// Bin is the package's command to run, or the folder's file; empty means the
	// one that npx would choose, or its like.
	Bin string
}

// String returns KIND:NAME[@VERSION][#BIN].
func (r Ref) String() string {
	s := string(r.Kind) + ":" + r.Name
	if r.Version != "" {
		s += "@" + r.Version
	}
	if r.Bin != "" {
		s += "#" + r.Bin
	}
	return s
}

var (
	// npm's own rule, with the capitals that old packages have.
	npmNameRE = regexp.MustCompile(`^(@[A-Za-z0-9~][A-Za-z0-9._~-]*/)?[A-Za-z0-9~][A-Za-z0-9._~-]*$`)
	exactRE   = regexp.MustCompile(`^\d{1,9}\.\d{1,9}\.\d{1,9}(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)
	rangeRE   = regexp.MustCompile(`^[~^]?\d{1,9}(\.(\d{1,9}|[xX*])){0,2}(-[0-9A-Za-z.-]+)?$`)
	tagRE     = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._-]{0,127}$`)
	binRE     = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)
)

const refForms = "write npm:PACKAGE[@VERSION][#COMMAND], pypi:PACKAGE[@VERSION][#COMMAND], go:PACKAGE[@VERSION], oci:IMAGE, dir:FOLDER[#FILE] or wasm:PATH"

// ParseRef reads npm:PACKAGE[@VERSION][#COMMAND], pypi:PACKAGE[@VERSION][#COMMAND],
// go:PACKAGE[@VERSION], oci:IMAGE, dir:FOLDER[#FILE] or wasm:PATH. Errors match ErrReference.
func ParseRef(s string) (Ref, error) {
	kind, rest, ok := strings.Cut(s, ":")
	if !ok {
		return Ref{}, fail(ErrReference, "no such kind of reference: "+quoted(s), refForms)
	}
	switch Kind(kind) {
	case KindNPM:
		rest, bin, hasBin := strings.Cut(rest, "#")
		if hasBin && bin == "" {
			return Ref{}, fail(ErrReference, "no command after # in "+quoted(s), refForms)
		}
		return parseNPM(rest, bin)
	case KindGo:
		return parseGo(rest)
	case KindPyPI:
		name, bin, hasBin := strings.Cut(rest, "#")
		if hasBin && bin == "" {
			return Ref{}, fail(ErrReference, "no command after # in "+quoted(s), refForms)
		}
		return parsePyPI(name, bin)
	case KindOCI:
		return parseOCI(rest)
	case KindDir:
		return parseDir(rest)
	case KindWASM:
		r := Ref{Kind: KindWASM, Name: rest}
		return r, r.validate()
	}
	return Ref{}, fail(ErrReference, "no such kind of reference: "+quoted(s), refForms)
}

// parseNPM reads NAME[@VERSION] as npm's command line takes it.
func parseNPM(spec, bin string) (Ref, error) {
	r := Ref{Kind: KindNPM, Name: spec, Bin: bin}
	if i := strings.LastIndexByte(spec, '@'); i > 0 {
		r.Name, r.Version = spec[:i], spec[i+1:]
		if r.Version == "" {
			return Ref{}, fail(ErrReference, "no version after @ in "+quoted(spec), refForms)
		}
	}
	return r, r.validate()
}

// validate checks a Ref that someone may have put together by hand.
func (r Ref) validate() error {
	switch r.Kind {
	case KindWASM:
		if r.Name == "" || strings.IndexByte(r.Name, 0) >= 0 || r.Version != "" || r.Bin != "" {
			return fail(ErrReference, "not a path of a module: "+quoted(r.Name), refForms)
		}
		return nil
	case KindGo:
		return r.validateGo()
	case KindPyPI:
		return r.validatePyPI()
	case KindOCI:
		return r.validateOCI()
	case KindDir:
		return r.validateDir()
	case KindNPM:
	default:
		return fail(ErrReference, "no such kind of reference: "+quoted(string(r.Kind)), refForms)
	}
	base := r.Name[strings.LastIndexByte(r.Name, '/')+1:]
	switch {
	case len(r.Name) > 214 || !npmNameRE.MatchString(r.Name) || base == "node_modules" || base == "favicon.ico":
		return fail(ErrReference, "not an npm package name: "+quoted(r.Name),
			"only packages of the configured npm registry are built, no folders, URLs or git addresses")
	case r.Version != "" && !exactRE.MatchString(r.Version) && !rangeRE.MatchString(r.Version) && !tagRE.MatchString(r.Version):
		return fail(ErrReference, "not a version, range or tag: "+quoted(r.Version), "write PACKAGE@1.2.3, PACKAGE@^1 or PACKAGE@latest")
	case r.Bin != "" && !binRE.MatchString(r.Bin):
		return fail(ErrReference, "not a command name: "+quoted(r.Bin), refForms)
	}
	return nil
}

// spec is what package.json asks for.
func (r Ref) spec() string {
	if r.Version == "" {
		return "latest"
	}
	return r.Version
}

// wasmRef makes a reference of a path in a command line.
func wasmRef(path string) (Ref, error) {
	r := Ref{Kind: KindWASM, Name: filepath.Clean(path)}
	return r, r.validate()
}
