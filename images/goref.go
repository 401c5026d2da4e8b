package images

import (
	"regexp"
	"strings"
)

const goForms = "write go:PACKAGE@VERSION, as in go:example.com/server/cmd/server@v1.2.3"

var (
	goPackageRE = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.-]*\.[A-Za-z0-9-]+(/[A-Za-z0-9_~][A-Za-z0-9._~+-]*)*$`)
	goVersionRE = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,127}$`)
)

// parseGo reads PACKAGE[@VERSION], or MODULE@VERSION/SUBFOLDER, which means
// the same. Without a version the reference has none, which means latest.
func parseGo(spec string) (Ref, error) {
	r := Ref{Kind: KindGo, Name: spec}
	if name, after, ok := strings.Cut(spec, "@"); ok {
		version, sub, inside := strings.Cut(after, "/")
		if r.Name, r.Version = name, version; inside {
			r.Name += "/" + sub
		}
		if version == "" {
			return Ref{}, fail(ErrReference, "no version after @ in "+quoted(spec), goForms)
		}
	}
	return r, r.validate()
}

func (r Ref) validateGo() error {
	switch r.Version {
	case "none", "patch", "upgrade": // the go command's own words, about something else
		return fail(ErrReference, "not a version: "+quoted(r.Version), goForms)
	}
	if len(r.Name) > 512 || !goPackageRE.MatchString(r.Name) || strings.Contains(r.Name, "..") || r.Bin != "" {
		return fail(ErrReference, "not the import path of a Go package: "+quoted(r.Name), goForms)
	}
	if r.Version != "" && !goVersionRE.MatchString(r.Version) {
		return fail(ErrReference, "not a version of a Go module: "+quoted(r.Version), goForms)
	}
	return nil
}
