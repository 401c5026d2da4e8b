//go:build linux

package container

import (
	"context"
	"errors"
)

// cleanup is a stack of undo steps. A step that fails does not keep the
// others from running, and stays on the stack so that a later try repeats it.
type cleanup struct {
	steps []step
}

type step struct {
	what string
	undo func(context.Context) error
	last bool
}

func (c *cleanup) add(what string, undo func(context.Context) error) {
	c.steps = append(c.steps, step{what: what, undo: undo})
}

// release adds a step that gives back what others may then have, or forget. It
// is taken only when all steps that were added after it have been: while
// processes of a box may be left, their ids are nobody else's.
func (c *cleanup) release(what string, undo func(context.Context) error) {
	c.steps = append(c.steps, step{what: what, undo: undo, last: true})
}

// run undoes everything, last first, and returns what failed.
func (c *cleanup) run(ctx context.Context) error {
	var errs []error
	var left []step
	for i := len(c.steps) - 1; i >= 0; i-- {
		s := c.steps[i]
		if s.last && len(errs) > 0 {
			left = append([]step{s}, left...)
			continue
		}
		if err := s.undo(ctx); err != nil {
			errs = append(errs, &leftoverError{what: s.what, err: err})
			left = append([]step{s}, left...)
		}
	}
	c.steps = left
	return errors.Join(errs...)
}

// leftoverError names what could not be removed.
type leftoverError struct {
	what string
	err  error
}

func (e *leftoverError) Error() string { return "remove " + e.what + ": " + e.err.Error() }
func (e *leftoverError) Unwrap() error { return e.err }
