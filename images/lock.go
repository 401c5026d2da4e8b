package images

import (
	"encoding/json"
	"regexp"
	"time"
)

// lockFormat is the version of the Lock's own form.
const lockFormat = 1

// Lock is a version lock: all that an image was built from, and so all that it
// takes to build it again, to the same digest. It holds no addresses and no
// secrets, and is meant to be kept in version control.
type Lock struct {
	// Format is 1.
	Format int `json:"format"`
	// Ref is the reference as it was asked for.
	Ref string `json:"ref"`
	// Name, Version and Integrity are the package that it was resolved to.
	Name      string `json:"name"`
	Version   string `json:"version"`
	Integrity string `json:"integrity"`
	// Platform is as in linux/amd64.
	Platform string `json:"platform"`
	// Digest is the image's. When it is empty, BuildLocked does not check it.
	Digest string `json:"digest,omitempty"`
	// Size is the image's in bytes, and Built the time of its build: for
	// people, and no part of what is built.
	Size  int64     `json:"size_bytes,omitempty"`
	Built time.Time `json:"built,omitzero"`
	// Node is the release that runs the package, where Node does.
	Node NodeRelease `json:"node,omitzero"`
	// Base is the distribution packages of the image.
	Base []Deb `json:"base,omitempty"`
	// Scripts says that the packages' install scripts were run.
	Scripts bool `json:"scripts,omitempty"`
	// Go is what a Go program was built from.
	Go *GoLock `json:"go,omitempty"`
	// Wheels are the Python packages, the one to run first.
	Wheels []Wheel `json:"wheels,omitempty"`
	// NPM is the package-lock.json of the whole tree, without addresses.
	NPM json.RawMessage `json:"npm,omitempty"`
}

var (
	debVersionRE = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.+:~-]*$`)
	hexRE        = regexp.MustCompile(`^[0-9a-f]{64}$`)
	digestRE     = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	sriRE        = regexp.MustCompile(`^sha512-[A-Za-z0-9+/]{86}==$`)
)

// validate checks a lock that comes from outside, and returns its reference.
func (l *Lock) validate() (Ref, error) {
	bad := func(what string) (Ref, error) {
		return Ref{}, fail(ErrRefused, "the version lock of "+quoted(l.Ref)+" "+what, "build the reference anew")
	}
	ref, err := ParseRef(l.Ref)
	if err != nil {
		return Ref{}, err
	}
	switch {
	case l.Format != lockFormat:
		return bad("has a form that this version does not read")
	case l.Platform != platform():
		return bad("is for " + quoted(l.Platform) + ", not " + platform())
	case l.Digest != "" && !digestRE.MatchString(l.Digest):
		return bad("has no sound digest")
	}
	for _, d := range l.Base {
		if !debNameRE.MatchString(d.Name) || !debVersionRE.MatchString(d.Version) || !hexRE.MatchString(d.SHA256) {
			return bad("does not pin the base package " + quoted(d.Name))
		}
	}
	what, err := l.check(ref)
	if err != nil {
		return Ref{}, err
	}
	if what != "" {
		return bad(what)
	}
	return ref, nil
}

// check looks at the part of the reference's own ecosystem: what is wrong, or
// an error that says so by itself.
func (l *Lock) check(ref Ref) (string, error) {
	switch ref.Kind {
	case KindNPM:
		return l.checkNPM(ref)
	case KindPyPI:
		return l.checkPyPI(ref)
	case KindGo:
		return l.checkGo(ref)
	case KindOCI:
		return l.checkOCI(ref)
	case KindDir, KindWASM:
	}
	return "is of a kind that is not built by a lock", nil
}

func (l *Lock) checkNPM(ref Ref) (string, error) {
	switch {
	case ref.Name != l.Name:
		return "locks another package", nil
	case !exactRE.MatchString(l.Node.Version) || !sriRE.MatchString(l.Node.Integrity):
		return "does not pin Node", nil
	case len(l.Base) == 0:
		return "does not pin the base system", nil
	}
	tree, err := checkLock(l.NPM, l.Name)
	if err != nil {
		return "", err
	}
	if tree.version != l.Version || tree.integrity != l.Integrity {
		return "says one version and locks another", nil
	}
	if exactRE.MatchString(ref.Version) && ref.Version != l.Version {
		return "locks version " + l.Version, nil
	}
	return "", nil
}
