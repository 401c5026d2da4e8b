// Command sandboxguest is package guest as a program, for Linux and for
// wasip1. It may never hold a command of its own.
package main

import (
	"context"
	"os"

	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/guest"
)

func main() {
	dir, err := os.Getwd()
	if err != nil {
		dir = err.Error()
	}
	os.Exit(guest.Run(context.Background(), guest.Process{
		Args: os.Args, Env: os.Environ(), Dir: dir, In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
	}))
}
