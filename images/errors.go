package images

import (
	"errors"
	"strconv"
)

// Sentinels for errors.Is; every error of this package that a person can act
// on is an *Error that matches one of them.
var (
	// ErrReference marks a reference or command line that names nothing this
	// package can build: a usage error.
	ErrReference = errors.New("images: invalid reference")
	// ErrNotFound marks a package or version that the registry does not have.
	ErrNotFound = errors.New("images: not found")
	// ErrNotBuilt marks a reference that this cache has no image of.
	ErrNotBuilt = errors.New("images: not built")
	// ErrNetwork marks a registry or mirror that could not be reached.
	ErrNetwork = errors.New("images: registry unreachable")
	// ErrDenied marks a registry that wants other credentials.
	ErrDenied = errors.New("images: registry refused")
	// ErrRefused marks a package that was fetched and is not fit to be sealed:
	// its content, its lock or its size breaks a rule.
	ErrRefused = errors.New("images: package refused")
	// ErrTool marks a program that is missing on this host or that failed.
	ErrTool = errors.New("images: tool failed")
	// ErrUnconfined marks a build that no sandbox can be had for here.
	ErrUnconfined = errors.New("images: no sandbox to build in")
	// ErrCorrupt marks a cache whose content is not what was stored.
	ErrCorrupt = errors.New("images: cache damaged")
)

// Error is one clear line for a person. It matches its Kind.
type Error struct {
	Kind error  // one of the sentinels
	What string // what is wrong, one clause
	Next string // the next step, one clause, or empty
}

// Error joins what is wrong with the next step.
func (e *Error) Error() string {
	if e.Next == "" {
		return e.What
	}
	return e.What + " (" + e.Next + ")"
}

// Unwrap returns the kind.
func (e *Error) Unwrap() error { return e.Kind }

func fail(kind error, what, next string) error { return &Error{Kind: kind, What: what, Next: next} }

// quoted makes text of a stranger fit for one line: quoted and cut.
func quoted(s string) string {
	const most = 120
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strconv.QuoteToASCII(s)
}
