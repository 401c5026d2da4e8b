package sandbox

import (
	"errors"
	"fmt"
)

// Sentinels for errors.Is. A runtime translates its library's own errors to
// these at its edge.
var (
	// ErrInvalid marks a Spec that no tier would start.
	ErrInvalid = errors.New("invalid sandbox spec")
	// ErrUnavailable marks a tier, runtime or engine that this host lacks.
	ErrUnavailable = errors.New("isolation unavailable")
	// ErrClosed marks use after Close.
	ErrClosed = errors.New("sandbox closed")
)

// UnavailableError says what is missing and what to do about it. It matches
// ErrUnavailable.
type UnavailableError struct {
	Tier Isolation
	What string // what is missing, one clause
	Next string // the next step for a person, one clause
}

// Error joins what is missing with the next step.
func (e *UnavailableError) Error() string {
	s := fmt.Sprintf("%s isolation unavailable: %s", e.Tier, e.What)
	if e.Next != "" {
		s += " (" + e.Next + ")"
	}
	return s
}

// Is reports whether target is ErrUnavailable.
func (e *UnavailableError) Is(target error) bool { return target == ErrUnavailable }
