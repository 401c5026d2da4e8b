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
}

func (c *cleanup) add(what string, undo func(context.Context) error) {
	c.steps = append(c.steps, step{what, undo})
}

// run undoes everything, last first, and returns what failed.
func (c *cleanup) run(ctx context.Context) error {
	var errs []error
	var left []step
	for i := len(c.steps) - 1; i >= 0; i-- {
		s := c.steps[i]
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
