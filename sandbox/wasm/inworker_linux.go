package wasm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wasm/internal/wasip1"
)

// spinBound is how long a guest may go on after it was told to stop. One that
// waits in a host call is gone at once; one that spins takes its worker along.
const spinBound = 100 * time.Millisecond

// errSpun is why a worker was killed for one of its guests.
var errSpun = errors.New("a guest of this worker did not stop")

// inWorker is a sandbox whose guest runs in a worker.
type inWorker struct {
	id     string
	spec   sandbox.Spec
	w      *worker
	egress sandbox.Egress
	check  func(string) error
	mounts *wasip1.LocalMounts

	stdin, stdout, stderr *os.File // the host's ends

	started chan error        // the worker's answer to the start
	ended   chan sandbox.Exit // the worker's report of the end
	done    chan struct{}
	exit    sandbox.Exit
	failed  error

	ctx    context.Context //nolint:containedctx // the sandbox's life, for its connections
	cancel context.CancelFunc
	work   sync.WaitGroup // dials, relays and path operations
	slots  chan struct{}  // bounds path operations of a hostile worker

	mu    sync.Mutex
	why   error // why it was stopped, if it was
	dials map[uint64]*dialling
	over  bool // no new work
}

func (r *Runtime) startInWorker(ctx context.Context, spec sandbox.Spec, egress sandbox.Egress) (sandbox.Sandbox, error) {
	if err := r.workers.available(); err != nil {
		return nil, err
	}
	w, err := r.workers.get(ctx, spec.Tenant, spec.Image)
	if err != nil {
		return nil, err
	}
	sb := &inWorker{
		id: newID(), spec: spec, w: w, egress: egress,
		started: make(chan error, 1), ended: make(chan sandbox.Exit, 1), done: make(chan struct{}),
		slots: make(chan struct{}, 8), dials: map[uint64]*dialling{},
	}
	sb.ctx, sb.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if c, ok := egress.(nameChecker); ok {
		sb.check = c.CheckName
	}
	if sb.mounts, err = wasip1.OpenMounts(mountSpecs(spec)); err != nil {
		sb.mounts = &wasip1.LocalMounts{}
		err = fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
	} else {
		err = sb.begin(ctx, r.cfg.Bare)
	}
	if err != nil {
		return nil, errors.Join(err, sb.free(r, false))
	}
	r.track(sb)
	go sb.run(r)
	return sb, nil
}

// begin hands the guest over to the worker and waits for it to be ready.
func (sb *inWorker) begin(ctx context.Context, bare bool) error {
	cfg := guestConfig(sb.spec, bare)
	text, err := json.Marshal(guestText{toBytes(cfg.Args), toBytes(cfg.Env), toBytes(sb.mounts.Names())})
	if err != nil {
		return err
	}
	file, err := memFile("guest", text)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // the worker has its own
	var theirs [3]*os.File
	defer func() { closeAll(theirs[:]) }()
	if theirs[0], sb.stdin, err = os.Pipe(); err != nil {
		return err
	}
	if sb.stdout, theirs[1], err = os.Pipe(); err != nil {
		return err
	}
	if sb.stderr, theirs[2], err = os.Pipe(); err != nil {
		return err
	}
	sb.w.add(sb.id, sb)
	start := &startMessage{MemoryBytes: sb.spec.Limits.MemoryBytes, MaxFiles: cfg.MaxFiles, Net: sb.egress != nil, Check: sb.check != nil, Private: cfg.Private}
	if err := sb.w.wire.send(message{Kind: kindStart, Sandbox: sb.id, Start: start}, theirs[0], theirs[1], theirs[2], file); err != nil {
		return fmt.Errorf("talking to the wasm worker: %w", err)
	}
	select {
	case err = <-sb.started:
	case <-sb.w.dead:
		err = errors.New(sb.w.epitaph())
	case <-ctx.Done():
		err = ctx.Err()
		sb.stop(err)
		select { // its start section may spin
		case err2 := <-sb.started:
			err = errors.Join(err, err2)
		case <-sb.ended:
		case <-sb.w.dead:
		}
	}
	return err
}

// run stays with the guest to its end.
func (sb *inWorker) run(r *Runtime) {
	defer close(sb.done)
	if wall := sb.spec.Limits.Wall; wall > 0 {
		defer time.AfterFunc(wall, func() { sb.stop(errWall) }).Stop()
	}
	var exit sandbox.Exit
	select {
	case exit = <-sb.ended:
	case <-sb.w.dead:
		select {
		case exit = <-sb.ended: // it ended first
		default:
			exit = sb.lost()
		}
	}
	if exit.Cause == 0 {
		exit = stoppedExit(exit, sb.reason())
	}
	sb.failed = sb.free(r, true)
	sb.exit = exit
	logExit(r.cfg.Logger, sb.id, sb.spec, exit)
	r.untrack(sb)
}

// lost is the end of a guest whose worker is gone.
func (sb *inWorker) lost() sandbox.Exit {
	killed := sandbox.Exit{Cause: sandbox.Killed, Code: signalCode(syscall.SIGKILL), Signal: int(syscall.SIGKILL)}
	why := sb.w.reason()
	var status syscall.WaitStatus
	if sb.w.cmd.ProcessState != nil {
		status, _ = sb.w.cmd.ProcessState.Sys().(syscall.WaitStatus)
	}
	switch {
	case sb.reason() != nil:
		return sandbox.Exit{} // it was to end anyway
	case errors.Is(why, errSpun):
		killed.Detail = "another sandbox of the same tenant and module did not stop, and their worker was killed"
		return killed
	case status.Signaled() && status.Signal() == syscall.SIGKILL:
		killed.Detail = "the worker was killed from outside, perhaps because the host ran out of memory"
		return killed
	}
	return sandbox.Exit{Cause: sandbox.HostFault, Code: 1, Detail: sb.w.epitaph()}
}

// epitaph says how a dead worker ended.
func (w *worker) epitaph() string {
	s := "the wasm worker ended"
	if w.end != nil {
		s += ": " + w.end.Error()
	}
	if text := w.said.String(); text != "" {
		s += ": " + text
	}
	return clip(s)
}

// stop makes the guest end: at once where it waits, else with its worker.
func (sb *inWorker) stop(why error) {
	sb.mu.Lock()
	first := sb.why == nil
	if first {
		sb.why = why
	}
	sb.mu.Unlock()
	if !first {
		return
	}
	if err := sb.w.wire.send(message{Kind: kindStop, Sandbox: sb.id}); err != nil {
		sb.w.kill(errSpun)
		return
	}
	timer := time.AfterFunc(spinBound, func() { sb.w.kill(errSpun) })
	context.AfterFunc(sb.ctx, func() { timer.Stop() })
}

func (sb *inWorker) reason() error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return sb.why
}

// free ends all that the sandbox held. The guest must be gone.
func (sb *inWorker) free(r *Runtime, keepOutput bool) error {
	sb.w.remove(sb.id)
	sb.mu.Lock()
	sb.over = true
	sb.mu.Unlock()
	sb.cancel()
	err := closeEgress(sb.egress)
	sb.work.Wait()
	err = errors.Join(err, sb.mounts.Close())
	closeNotNil(sb.stdin)
	if !keepOutput {
		closeNotNil(sb.stdout)
		closeNotNil(sb.stderr)
	}
	r.workers.put(sb.w.key, sb.w.slot)
	return err
}

func closeNotNil(f *os.File) {
	if f != nil {
		_ = f.Close()
	}
}

// ID implements sandbox.Sandbox.
func (sb *inWorker) ID() string { return sb.id }

// Stdio implements sandbox.Sandbox.
func (sb *inWorker) Stdio() sandbox.Stdio {
	return sandbox.Stdio{In: sb.stdin, Out: output{sb.stdout}, Err: output{sb.stderr}}
}

// output reads what a guest wrote. A pipe that was closed here reads as ended.
type output struct{ *os.File }

func (o output) Read(b []byte) (int, error) {
	n, err := o.File.Read(b)
	if errors.Is(err, os.ErrClosed) {
		err = io.EOF
	}
	return n, err
}

// Wait implements sandbox.Sandbox.
func (sb *inWorker) Wait(ctx context.Context) (sandbox.Exit, error) {
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
func (sb *inWorker) Close(ctx context.Context) error {
	return stopLadder(ctx, sb.spec.Limits.StopGrace, sb.done, sb.Stdio(), func() { sb.stop(errKilled) }, func() error { return sb.failed })
}
