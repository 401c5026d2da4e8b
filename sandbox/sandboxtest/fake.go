package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/guest"
)

// FakeDigest is the one image that a Fake has.
const FakeDigest = "sha256:fafafafafafafafafafafafafafafafafafafafafafafafafafafafafafafafa"

const killSignal = 9

// Fake is a Runtime whose guests are goroutines that run package guest: no
// isolation at all, but the contract's life cycle over real pipes. It serves
// tests of what uses a Runtime, as tier wasm-inprocess. The zero value is
// ready for use.
type Fake struct {
	mu     sync.Mutex
	closed bool
	next   int
	boxes  map[*fakeBox]struct{}
}

var _ sandbox.Runtime = (*Fake)(nil)

// Start implements sandbox.Runtime.
func (f *Fake) Start(ctx context.Context, spec sandbox.Spec, egress sandbox.Egress) (sandbox.Sandbox, error) {
	b, err := f.start(ctx, spec, egress)
	if err != nil {
		if egress != nil {
			err = errors.Join(err, egress.Close())
		}
		return nil, fmt.Errorf("starting %q: %w", spec.Name, err)
	}
	return b, nil
}

func (f *Fake) start(ctx context.Context, spec sandbox.Spec, egress sandbox.Egress) (*fakeBox, error) {
	if err := errors.Join(spec.Validate(), ctx.Err()); err != nil {
		return nil, err
	}
	switch {
	case spec.Isolation != sandbox.WASMInProcess:
		return nil, &sandbox.UnavailableError{Tier: spec.Isolation, What: "the fake has one tier", Next: "ask for wasm-inprocess"}
	case spec.Image.Digest != FakeDigest:
		return nil, fmt.Errorf("%w: the fake has one image, %s", sandbox.ErrInvalid, FakeDigest)
	case len(spec.Mounts) > 0:
		return nil, fmt.Errorf("%w: the fake has no mounts", sandbox.ErrInvalid)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, sandbox.ErrClosed
	}
	b, err := newFakeBox(f, spec, egress)
	if err != nil {
		return nil, err
	}
	f.next++
	b.id = "fake-" + strconv.Itoa(f.next)
	if f.boxes == nil {
		f.boxes = map[*fakeBox]struct{}{}
	}
	f.boxes[b] = struct{}{}
	go b.run(spec)
	return b, nil
}

// Close implements sandbox.Runtime.
func (f *Fake) Close(ctx context.Context) error {
	f.mu.Lock()
	f.closed = true
	boxes := make([]*fakeBox, 0, len(f.boxes))
	for b := range f.boxes {
		boxes = append(boxes, b)
	}
	f.mu.Unlock()
	var wg sync.WaitGroup
	errs := make([]error, len(boxes))
	for i, b := range boxes {
		wg.Go(func() { errs[i] = b.Close(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// fakeBox is one guest on a goroutine, which run owns.
type fakeBox struct {
	fake   *Fake
	id     string
	limits sandbox.Limits
	egress sandbox.Egress
	stdio  sandbox.Stdio
	guest  []*os.File // its ends of the pipes
	life   context.Context
	end    context.CancelCauseFunc
	done   chan struct{}
	exit   sandbox.Exit // set before done
}

var (
	errKilled = errors.New("killed")
	errWall   = errors.New("its time was up")
)

func newFakeBox(f *Fake, spec sandbox.Spec, egress sandbox.Egress) (*fakeBox, error) {
	b := &fakeBox{fake: f, limits: spec.Limits.WithDefaults(), egress: egress, done: make(chan struct{})}
	var files []*os.File
	for range 3 {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, errors.Join(err, closeFiles(files))
		}
		files = append(files, r, w)
	}
	b.stdio = sandbox.Stdio{In: once{files[1]}, Out: once{files[2]}, Err: once{files[4]}}
	b.guest = []*os.File{files[0], files[3], files[5]}
	b.life, b.end = context.WithCancelCause(context.Background())
	return b, nil
}

// run runs the guest to its end and lets go of all it had but the caller's
// ends of the pipes.
func (b *fakeBox) run(spec sandbox.Spec) {
	defer close(b.done)
	// To be killed is to lose every stream, which no guest can ignore.
	unhook := context.AfterFunc(b.life, func() { _ = closeFiles(b.guest) })
	if b.limits.Wall > 0 {
		t := time.AfterFunc(b.limits.Wall, func() { b.end(errWall) })
		defer t.Stop()
	}
	code := guest.Run(b.life, guest.Process{
		Args: slices.Clone(spec.Args), Env: slices.Clone(spec.Env), Dir: spec.Dir, In: b.guest[0], Out: b.guest[1], Err: b.guest[2],
	})
	b.exit = sandbox.Exit{Cause: sandbox.Exited, Code: code}
	switch cause := context.Cause(b.life); {
	case errors.Is(cause, errKilled):
		b.exit = sandbox.Exit{Cause: sandbox.Killed, Code: 128 + killSignal, Signal: killSignal, Detail: cause.Error()}
	case errors.Is(cause, errWall):
		b.exit = sandbox.Exit{Cause: sandbox.Deadline, Code: 128 + killSignal, Signal: killSignal, Detail: cause.Error()}
	}
	if unhook() {
		_ = closeFiles(b.guest)
	}
	b.end(nil)
	if b.egress != nil {
		_ = b.egress.Close()
	}
	b.fake.mu.Lock()
	defer b.fake.mu.Unlock()
	delete(b.fake.boxes, b)
}

// ID implements sandbox.Sandbox.
func (b *fakeBox) ID() string { return b.id }

// Stdio implements sandbox.Sandbox.
func (b *fakeBox) Stdio() sandbox.Stdio { return b.stdio }

// Wait implements sandbox.Sandbox.
func (b *fakeBox) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-b.done:
		return b.exit, nil
	default:
	}
	select {
	case <-b.done:
		return b.exit, nil
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

// Close implements sandbox.Sandbox. A fake guest gets no TERM.
func (b *fakeBox) Close(ctx context.Context) error {
	err := b.stdio.In.Close()
	t := time.NewTimer(b.limits.StopGrace)
	defer t.Stop()
	select {
	case <-b.done:
	case <-t.C:
	case <-ctx.Done():
	}
	b.end(errKilled)
	<-b.done
	return errors.Join(err, b.stdio.Out.Close(), b.stdio.Err.Close())
}

// once is a file that can be closed again.
type once struct{ *os.File }

func (f once) Close() error {
	if err := f.File.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

func closeFiles(files []*os.File) error {
	var errs []error
	for _, f := range files {
		if err := f.Close(); !errors.Is(err, os.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
