// Command precompile fills the tests' cache of compiled code: it takes the
// cache folder and modules, and runs each once in both tiers. The tests of a
// binary with the race detector would need minutes for what takes this one
// seconds.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wasm"
)

func main() {
	wasm.WorkerMain()
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(cache string, modules []string) error {
	ctx := context.Background()
	r, err := wasm.New(wasm.Config{CacheDir: cache, WorkerCommand: []string{"/proc/self/exe"}})
	if err != nil {
		return err
	}
	defer r.Close(ctx)
	for _, path := range modules {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(b)
		for _, tier := range []sandbox.Isolation{sandbox.WASMInProcess, sandbox.WASM} {
			sb, err := r.Start(ctx, sandbox.Spec{
				Tenant: "tests", Name: path, Isolation: tier, Args: []string{path},
				Image: sandbox.Image{Digest: "sha256:" + hex.EncodeToString(sum[:]), Path: path},
			}, nil)
			if err != nil {
				return err
			}
			if err := sb.Close(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}
