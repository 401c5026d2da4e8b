package guest

import (
	"context"
	"errors"

	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/wasinet"
)

func ignoreTerm() {}

func term(context.Context, Process) error { return errors.ErrUnsupported }

func kill(context.Context, Process) error { return errors.ErrUnsupported }

func leave(context.Context, Process) error { return errors.ErrUnsupported }

func fork(context.Context, int) (string, error) { return "", errors.ErrUnsupported }

func dial(ctx context.Context, address string) error {
	c, err := wasinet.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return c.Close()
}
