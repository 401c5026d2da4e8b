package wasm

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wasm/internal/wasip1"
)

// killBound is how long a stopped guest may take to be gone. Only a file
// operation that the host's kernel does not finish can take longer.
const killBound = 5 * time.Second

// errWall and errKilled are why a guest was stopped from outside.
var (
	errWall   = errors.New("the guest met its wall clock limit")
	errKilled = errors.New("the guest was stopped")
)

// inProcess is a sandbox whose guest runs on a goroutine of this process.
//
// A guest that waits in a host call is stopped at once, since all host calls
// wait in one place that watches ctx. One that spins is stopped at its next
// loop iteration, by the checks that the module was compiled with.
type inProcess struct {
	id     string
	spec   sandbox.Spec
	in     *instance
	grace  time.Duration
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when all is gone
	exit   sandbox.Exit  // set before done
	failed error         // what could not be freed; set before done
}

func (r *Runtime) startInProcess(ctx context.Context, spec sandbox.Spec, egress sandbox.Egress) (_ sandbox.Sandbox, err error) {
	entry, err := r.modules.get(ctx, spec.Image)
	if err != nil {
		return nil, err
	}
	mounts, err := wasip1.OpenMounts(mountSpecs(spec))
	if err != nil {
		r.modules.put(entry) //nolint:contextcheck // freeing must not be cut short
		return nil, fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
	}
	life, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	cfg := withEgress(guestConfig(spec, r.cfg.Bare), egress)
	cfg.Mounts = mounts
	// A module's start section runs right here, so the start's own bound must
	// be able to end it.
	unhook := context.AfterFunc(ctx, func() { cancel(ctx.Err()) })
	in, err := entry.mod.instantiate(life, cfg, spec.Limits.MemoryBytes)
	if !unhook() && err == nil {
		err = errors.Join(ctx.Err(), in.close()) //nolint:contextcheck // freeing must not be cut short
	}
	if err != nil {
		cancel(nil)
		r.modules.put(entry) //nolint:contextcheck // freeing must not be cut short
		return nil, errors.Join(err, mounts.Close())
	}
	sb := &inProcess{id: newID(), spec: spec, in: in, grace: spec.Limits.StopGrace, cancel: cancel, done: make(chan struct{})}
	r.track(sb)
	go sb.run(r, entry, mounts, egress) //nolint:contextcheck // freeing must not be cut short
	return sb, nil
}

// run owns the guest. Whoever closes the sandbox waits for done.
func (sb *inProcess) run(r *Runtime, entry *moduleEntry, mounts *wasip1.LocalMounts, egress sandbox.Egress) {
	defer close(sb.done)
	if wall := sb.spec.Limits.Wall; wall > 0 {
		defer time.AfterFunc(wall, func() { sb.cancel(errWall) }).Stop()
	}
	exit := sb.in.run()
	if exit.Cause == 0 {
		exit = stoppedExit(exit, context.Cause(sb.in.ctx))
	}
	sb.cancel(errKilled)
	sb.failed = errors.Join(sb.in.close(), mounts.Close(), closeEgress(egress))
	r.modules.put(entry)
	sb.exit = exit
	logExit(r.cfg.Logger, sb.id, sb.spec, exit)
	r.untrack(sb)
}

// stoppedExit is the end of a guest that was stopped from outside; its peaks
// are known already.
func stoppedExit(exit sandbox.Exit, why error) sandbox.Exit {
	exit.Cause, exit.Code, exit.Signal = sandbox.Killed, signalCode(syscall.SIGKILL), int(syscall.SIGKILL)
	if errors.Is(why, errWall) {
		exit.Cause, exit.Detail = sandbox.Deadline, errWall.Error()
	}
	return exit
}

// ID implements sandbox.Sandbox.
func (sb *inProcess) ID() string { return sb.id }

// Stdio implements sandbox.Sandbox.
func (sb *inProcess) Stdio() sandbox.Stdio {
	in, out, errs := sb.in.sys.Stdio()
	return sandbox.Stdio{In: in.Writer(), Out: out.Reader(), Err: errs.Reader()}
}

// Wait implements sandbox.Sandbox.
func (sb *inProcess) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-sb.done:
		return sb.exit, nil
	default:
	}
	select {
	case <-sb.done:
		return sb.exit, nil
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

// Close implements sandbox.Sandbox. WASI has no signals, so the ladder has two
// rungs: stdin closed, then stopped.
func (sb *inProcess) Close(ctx context.Context) error {
	return stopLadder(ctx, sb.grace, sb.done, sb.Stdio(), func() { sb.cancel(errKilled) }, func() error { return sb.failed })
}

// stopLadder asks a guest to end by closing its stdin, then makes it.
func stopLadder(ctx context.Context, grace time.Duration, done <-chan struct{}, stdio sandbox.Stdio, kill func(), failed func() error) error {
	_ = stdio.In.Close()
	select {
	case <-done:
	case <-ctx.Done():
	case <-time.After(grace):
	}
	kill()
	select {
	case <-done:
		return failed()
	case <-time.After(killBound):
		return errors.New("the guest is stuck in a file operation of the host's")
	}
}
