//go:build !unix

package images

import (
	"context"
	"errors"
	"os"
)

var errNoLocks = errors.New("images: no file locks on this system: images are built on Linux")

func lockFile(context.Context, string, bool) (*os.File, error) { return nil, errNoLocks }

func tryLock(string) (*os.File, error) { return nil, errNoLocks }
