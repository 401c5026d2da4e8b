package images

import (
	"encoding/json"
	"regexp"
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
	// Node is the release that runs the package.
	Node NodeRelease `json:"node"`
	// Base is the distribution packages of the base root file system.
	Base []Deb `json:"base"`
	// Scripts says that the packages' install scripts were run.
	Scripts bool `json:"scripts,omitempty"`
	// NPM is the package-lock.json of the whole tree, without addresses.
	NPM json.RawMessage `json:"npm"`
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
	case ref.Kind != KindNPM || ref.Name != l.Name:
		return bad("locks another package")
	case l.Platform != platform():
		return bad("is for " + quoted(l.Platform) + ", not " + platform())
	case l.Digest != "" && !digestRE.MatchString(l.Digest):
		return bad("has no sound digest")
	case !exactRE.MatchString(l.Node.Version) || !sriRE.MatchString(l.Node.Integrity):
		return bad("does not pin Node")
	case len(l.Base) == 0:
		return bad("does not pin the base system")
	}
	for _, d := range l.Base {
		if !debNameRE.MatchString(d.Name) || !debVersionRE.MatchString(d.Version) || !hexRE.MatchString(d.SHA256) {
			return bad("does not pin the base package " + quoted(d.Name))
		}
	}
	tree, err := checkLock(l.NPM, l.Name)
	if err != nil {
		return Ref{}, err
	}
	if tree.version != l.Version || tree.integrity != l.Integrity {
		return bad("says one version and locks another")
	}
	if exactRE.MatchString(ref.Version) && ref.Version != l.Version {
		return bad("locks version " + l.Version)
	}
	return ref, nil
}
