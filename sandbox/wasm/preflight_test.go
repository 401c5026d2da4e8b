//go:build linux

package wasm_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/tetratelabs/wazero"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wasm"
)

// FuzzPreflight: whatever comes in, what comes out is a module whose tables
// are bounded, or a *wasm.ModuleError.
func FuzzPreflight(f *testing.F) {
	f.Add(wasmModule())
	f.Add(wasmModule(section(4, 1, 0x70, 0, 1), section(5, 1, 0, 1)))
	f.Add(wasmModule(section(4, 2, 0x70, 1, 1, 9, 0x6f, 0, 0xff, 0x7f), section(5, 1, 1, 1, 2)))
	f.Add(wasmModule(section(0, 3, 'a', 'b', 'c'), section(5, 1, 0, 1), section(5, 1, 0, 1)))
	f.Fuzz(func(t *testing.T, bin []byte) {
		out, err := wasm.Preflight(bin)
		var bad *wasm.ModuleError
		if err != nil {
			if !errors.As(err, &bad) {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		again, err := wasm.Preflight(out)
		if err != nil || !bytes.Equal(out, again) {
			t.Fatalf("not stable: %v", err)
		}
	})
}

// TestPreflightKeepsModules: the engine takes what it took before.
func TestPreflightKeepsModules(t *testing.T) {
	ctx := context.Background()
	r := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigInterpreter())
	defer r.Close(ctx)
	bin, err := wasm.Preflight(wasmModule(section(4, 2, 0x70, 0, 1, 0x6f, 1, 0, 9), section(5, 1, 0, 1)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.CompileModule(ctx, bin); err != nil {
		t.Error(err)
	}
}

// FuzzStart gives mutated programs to the whole runtime.
func FuzzStart(f *testing.F) {
	f.Add([]byte{0x0b})
	f.Add([]byte{0x00, 0x0b})
	f.Add([]byte{0x10, 0x00, 0x0b})
	f.Add([]byte{0x03, 0x40, 0x41, 0x10, 0x40, 0x00, 0x41, 0x7f, 0x47, 0x0d, 0x00, 0x0b, 0x0b})
	dir := f.TempDir()
	r, err := wasm.New(wasm.Config{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = r.Close(context.Background()) })
	f.Fuzz(func(t *testing.T, code []byte) {
		if len(code) > 100 {
			return
		}
		body := append([]byte{0}, code...)
		b := wasmModule(
			section(1, 1, 0x60, 0, 0), section(3, 1, 0), section(4, 1, 0x70, 0, 1), section(5, 1, 0, 1),
			section(7, 1, 6, '_', 's', 't', 'a', 'r', 't', 0, 0),
			section(10, append([]byte{1, byte(len(body))}, body...)...))
		p := filepath.Join(dir, "fuzz.wasm")
		if err := os.WriteFile(p, b, 0o600); err != nil {
			t.Fatal(err)
		}
		s := spec(t, sandbox.WASMInProcess)
		s.Image, s.Limits.Wall = image(t, p), 200_000_000
		sb, err := r.Start(context.Background(), s, nil)
		if err != nil {
			return
		}
		exit, err := sb.Wait(context.Background())
		if err != nil || exit.Cause == sandbox.HostFault {
			t.Errorf("%+v, %v", exit, err)
		}
		if err := sb.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}
