package wasm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"
	"github.com/tetratelabs/wazero/sys"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wasm/internal/wasip1"
)

// instance is one guest in this process, in-process tier and worker alike.
type instance struct {
	sys *wasip1.System
	mem *memoryLimit
	mod api.Module
	ctx context.Context //nolint:containedctx // the guest's life
}

// instantiate makes a guest that has not run yet. When ctx ends, so does the
// guest: at its next host call, and at its next loop where the module is
// interruptible. The caller must call close.
func (m *module) instantiate(ctx context.Context, cfg wasip1.Config, memoryBytes int64) (in *instance, err error) {
	mem := newMemoryLimit(memoryBytes)
	if m.minimum > mem.limit {
		return nil, malformed("needs %d bytes of memory at least, over its limit of %d", m.minimum, mem.limit)
	}
	s, err := wasip1.New(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
	}
	in = &instance{sys: s, mem: mem}
	in.ctx = wasip1.WithSystem(experimental.WithMemoryAllocator(ctx, mem), s)
	defer func() {
		// The engine panics where memory cannot be had for an instance.
		if r := recover(); r != nil {
			err = fmt.Errorf("starting the guest: %v", r)
		}
		if err != nil {
			err = errors.Join(err, s.Close())
			in = nil
		}
	}()
	// _start is not a start function here: the guest runs later, in run.
	in.mod, err = m.runtime.InstantiateModule(in.ctx, m.compiled, wazero.NewModuleConfig().WithName("").WithStartFunctions()) //nolint:contextcheck // the guest's life is ctx's, by WithCancel
	if err != nil {
		return in, &ModuleError{What: "does not start", Err: err}
	}
	return in, nil
}

// run runs the guest to its end. A guest that was stopped from outside gives
// the zero Exit, since only the one who stopped it knows why.
func (in *instance) run() (exit sandbox.Exit) {
	defer func() {
		if r := recover(); r != nil {
			exit = sandbox.Exit{Cause: sandbox.HostFault, Code: 1, Detail: clip(fmt.Sprintf("the engine failed: %v", r))}
		}
		exit.PeakMemoryBytes, exit.PeakTmpBytes = int64(in.mem.peak.Load()), in.sys.PrivatePeak()
	}()
	_, err := in.mod.ExportedFunction("_start").Call(in.ctx)
	return in.classify(err)
}

func (in *instance) classify(err error) sandbox.Exit {
	var stopped *sys.ExitError
	code, exited := in.sys.Exited()
	switch {
	case in.mem.refused.Load() && (exited && code != 0 || !exited && err != nil && in.ctx.Err() == nil):
		return sandbox.Exit{Cause: sandbox.OOM, Code: signalCode(syscall.SIGKILL), Signal: int(syscall.SIGKILL), Detail: "the guest ended after more memory was refused to it"}
	case exited:
		return sandbox.Exit{Cause: sandbox.Exited, Code: int(code)}
	case err == nil:
		return sandbox.Exit{Cause: sandbox.Exited}
	case errors.As(err, &stopped) || in.ctx.Err() != nil:
		return sandbox.Exit{}
	}
	// The engine's traps have no exported types, only these words in front; a
	// stack overflow comes without them.
	what, _, _ := strings.Cut(err.Error(), "\n")
	if trap, ok := strings.CutPrefix(what, "wasm error: "); ok || what == "stack overflow" {
		return sandbox.Exit{Cause: sandbox.Killed, Code: signalCode(syscall.SIGABRT), Signal: int(syscall.SIGABRT), Detail: clip("the guest trapped: " + trap)}
	}
	return sandbox.Exit{Cause: sandbox.HostFault, Code: 1, Detail: clip("a host function failed: " + err.Error())}
}

// close frees the guest's memory and everything of the host's that it held.
func (in *instance) close() error {
	return errors.Join(in.mod.Close(context.Background()), in.sys.Close())
}

func signalCode(s syscall.Signal) int { return 128 + int(s) }
