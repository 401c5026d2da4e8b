//go:build linux

package engine

import (
	"fmt"
	"path"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/container"
)

// maxTTL bounds an opening that times out.
const maxTTL = 24 * time.Hour

// checkSpec holds the protocol's bounds on a Spec beyond Spec.Validate. Both
// sides call it: the client to give a good error, the server because clients
// can be anything. Errors wrap sandbox.ErrInvalid.
func checkSpec(s *sandbox.Spec) error {
	for what, v := range map[string]string{"tenant": s.Tenant, "name": s.Name} {
		if len(v) > maxName || !utf8.ValidString(v) || strings.ContainsFunc(v, unicode.IsControl) {
			return fmt.Errorf("%w: %s must be at most %d bytes of text", sandbox.ErrInvalid, what, maxName)
		}
	}
	if len(s.Args) > maxArgs || len(s.Env) > maxEnv || len(s.Mounts) > maxMounts {
		return fmt.Errorf("%w: at most %d arguments, %d environment entries and %d mounts",
			sandbox.ErrInvalid, maxArgs, maxEnv, maxMounts)
	}
	total := 0
	for _, list := range [][]string{s.Args, s.Env} {
		for _, v := range list {
			total += len(v)
		}
	}
	if total > maxArgEnvBytes {
		return fmt.Errorf("%w: %d bytes of arguments and environment, over %d", sandbox.ErrInvalid, total, maxArgEnvBytes)
	}
	if s.Dir != "" && (len(s.Dir) > maxPath || !path.IsAbs(s.Dir) || path.Clean(s.Dir) != s.Dir || strings.IndexByte(s.Dir, 0) >= 0) {
		return fmt.Errorf("%w: working directory %q must be an absolute, clean path", sandbox.ErrInvalid, printable(s.Dir, maxName))
	}
	return nil
}

// bounded fills in what the caller left to the defaults, cut to what the
// operator allows one sandbox, and refuses what the caller asked for beyond
// that. A zero field of ceiling sets no bound.
func bounded(asked, ceiling sandbox.Limits) (sandbox.Limits, error) {
	l := asked.WithDefaults()
	for _, f := range []struct {
		what  string
		asked int64
		got   *int64
		most  int64
	}{
		{"memory", asked.MemoryBytes, &l.MemoryBytes, ceiling.MemoryBytes},
		{"temporary space", asked.TmpBytes, &l.TmpBytes, ceiling.TmpBytes},
		{"file size", asked.FileBytes, &l.FileBytes, ceiling.FileBytes},
		{"pids", asked.PIDs, &l.PIDs, ceiling.PIDs},
	} {
		if f.most <= 0 || *f.got <= f.most {
			continue
		}
		if f.asked != 0 {
			return l, fmt.Errorf("%w: a %s limit of %d is over the engine's %d", sandbox.ErrInvalid, f.what, f.asked, f.most)
		}
		*f.got = f.most
	}
	if ceiling.CPUs > 0 && l.CPUs > ceiling.CPUs {
		if asked.CPUs != 0 {
			return l, fmt.Errorf("%w: a cpu limit of %g is over the engine's %g", sandbox.ErrInvalid, asked.CPUs, ceiling.CPUs)
		}
		l.CPUs = ceiling.CPUs
	}
	return l, nil
}

// checkOpenings refuses what the gateway's sets could not hold or would
// misread. forever says whether an opening may lack a TTL, as literals do. Errors
// wrap sandbox.ErrInvalid.
func checkOpenings(list []container.Opening, forever bool) error {
	if len(list) > maxOpenings {
		return fmt.Errorf("%w: %d openings at once, over %d", sandbox.ErrInvalid, len(list), maxOpenings)
	}
	for _, o := range list {
		switch {
		case !o.Prefix.IsValid() || o.Prefix.Addr().Is4In6() || o.Prefix.Masked() != o.Prefix:
			return fmt.Errorf("%w: opening %s is not a plain prefix", sandbox.ErrInvalid, o.Prefix)
		case len(o.Ports) > maxPorts:
			return fmt.Errorf("%w: %d ports in one opening, over %d", sandbox.ErrInvalid, len(o.Ports), maxPorts)
		case o.Ports != nil && len(o.Ports) == 0:
			return fmt.Errorf("%w: an opening for no port", sandbox.ErrInvalid) // on the wire it would be for all
		case !forever && !o.Prefix.IsSingleIP():
			return fmt.Errorf("%w: an opening with a time must be for one address, not %s", sandbox.ErrInvalid, o.Prefix)
		case o.TTL < 0 || o.TTL > maxTTL || o.TTL == 0 && !forever:
			return fmt.Errorf("%w: an opening for %s", sandbox.ErrInvalid, o.TTL)
		}
		for _, p := range o.Ports {
			if p == 0 {
				return fmt.Errorf("%w: an opening for port 0", sandbox.ErrInvalid)
			}
		}
	}
	return nil
}
