package wasm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/experimental"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wasm/internal/wasip1"
)

// module is compiled code, ready to be instantiated any number of times.
type module struct {
	cache    wazero.CompilationCache
	runtime  wazero.Runtime
	compiled wazero.CompiledModule
	minimum  uint64 // bytes of memory that an instance begins with
}

// readModule reads a module's file and proves that it is the one asked for.
func readModule(img sandbox.Image, most int64) ([]byte, error) {
	f, err := os.Open(img.Path)
	if err != nil {
		return nil, fmt.Errorf("%w: wasm module: %w", sandbox.ErrInvalid, err)
	}
	defer f.Close() //nolint:errcheck // only read
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("wasm module: %w", err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%w: wasm module %q is not a file", sandbox.ErrInvalid, img.Path)
	}
	bin, err := io.ReadAll(io.LimitReader(f, most+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("wasm module: %w", err)
	case int64(len(bin)) > most:
		return nil, fmt.Errorf("%w: wasm module %q is over %d bytes", sandbox.ErrInvalid, img.Path, most)
	}
	return bin, checkDigest(bin, img.Digest)
}

func checkDigest(bin []byte, want string) error {
	sum := sha256.Sum256(bin)
	if got := "sha256:" + hex.EncodeToString(sum[:]); got != want {
		return fmt.Errorf("%w: the module's digest is %s, not %s", sandbox.ErrInvalid, got, want)
	}
	return nil
}

// cachePath is where a module's compiled code lives: one folder for each module
// and engine, so that a worker can be given just that.
func cachePath(dir, digest string, interruptible bool) string {
	kind := "plain"
	if interruptible {
		kind = "interruptible"
	}
	return filepath.Join(dir, engineVersion()+"-"+runtime.GOARCH, strings.TrimPrefix(digest, "sha256:")+"-"+kind)
}

// engineVersion names the engine that compiled code belongs to.
func engineVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			if d.Path == "github.com/tetratelabs/wazero" {
				return "wazero-" + d.Version
			}
		}
	}
	return "wazero"
}

// cached reports whether a module's compiled code is in its folder.
func cached(path string) bool {
	list, err := filepath.Glob(filepath.Join(path, "*", "*"))
	if err != nil {
		return false
	}
	for _, name := range list {
		if !strings.HasSuffix(name, ".tmp") {
			return true
		}
	}
	return false
}

// loadModule compiles a module, or takes its code from the cache folder (empty
// means none). An interruptible module checks for the end of its context in
// every loop, which is what stops a spinning guest in process; it costs about
// half of a guest's speed.
func loadModule(ctx context.Context, bin []byte, cacheDir string, interruptible bool) (m *module, err error) {
	bin, least, err := preflight(bin, 1<<32)
	if err != nil {
		return nil, err
	}
	mod := &module{minimum: least, cache: wazero.NewCompilationCache()}
	defer func() { //nolint:contextcheck // freeing must not be cut short
		if err != nil {
			m, err = nil, errors.Join(err, mod.close())
		}
	}()
	if cacheDir != "" {
		if mod.cache, err = wazero.NewCompilationCacheWithDir(cacheDir); err != nil {
			return nil, fmt.Errorf("wasm: cache folder: %w", err)
		}
	}
	mod.runtime = wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfig().
		WithCompilationCache(mod.cache).
		WithDebugInfoEnabled(false).
		WithCloseOnContextDone(interruptible))
	if err := wasip1.Instantiate(ctx, mod.runtime); err != nil {
		return nil, err
	}
	mod.compiled, err = mod.runtime.CompileModule(experimental.WithCompilationWorkers(ctx, runtime.GOMAXPROCS(0)), bin)
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("compiling the wasm module: %w", ctx.Err())
		}
		return nil, &ModuleError{What: "does not compile", Err: err}
	}
	return mod, mod.check()
}

// check finds out at once what instantiating would stumble over.
func (m *module) check() error {
	var missing []string
	for _, f := range m.compiled.ImportedFunctions() {
		mod, name, _ := f.Import()
		if !wasip1.Offers(mod, name) {
			missing = append(missing, mod+"."+name)
		}
	}
	if len(missing) > 0 {
		hint := ""
		if strings.HasPrefix(missing[0], "gojs.") || strings.HasPrefix(missing[0], "go.") {
			hint = " (build it with GOOS=wasip1, not GOOS=js)"
		}
		return malformed("imports what is not offered here: %s%s", clip(strings.Join(missing, ", ")), hint)
	}
	start, ok := m.compiled.ExportedFunctions()["_start"]
	switch {
	case !ok:
		return malformed("exports no _start: it is a library, not a program")
	case len(start.ParamTypes())+len(start.ResultTypes()) > 0:
		return malformed("exports a _start that takes or returns something")
	}
	return nil
}

// close frees the code. No instance may be left.
func (m *module) close() error {
	ctx := context.Background()
	var errs []error
	if m.runtime != nil {
		errs = append(errs, m.runtime.Close(ctx))
	}
	return errors.Join(append(errs, m.cache.Close(ctx))...)
}
