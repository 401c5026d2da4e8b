package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

// StdioOptions tune RelayStdio. The zero value is usable.
type StdioOptions struct {
	// MaxLine bounds a line in both directions, in bytes; 0 means
	// DefaultMaxLine.
	MaxLine int
	// Stderr receives the server's stderr unmodified, but for lines over
	// MaxStderrLine bytes (default 64 KiB), which are cut. Nil discards it.
	Stderr        io.Writer
	MaxStderrLine int
	// Stray is called with each line on the server's stdout that is no
	// JSON-RPC, from one goroutine. The line is valid during the call only.
	// Nil logs it at level warn, quoted and cut.
	Stray func(line []byte)
	// Drain bounds how long a server may work on calls that are still pending
	// after the client's end of input; 0 means 30 seconds.
	Drain time.Duration
	// Stop bounds the sandbox's stop ladder; 0 means 15 seconds.
	Stop time.Duration
	// Logger receives the relay's own records; nil discards them.
	Logger *slog.Logger
}

func (o StdioOptions) withDefaults() StdioOptions {
	if o.MaxLine <= 0 {
		o.MaxLine = DefaultMaxLine
	}
	if o.MaxStderrLine <= 0 {
		o.MaxStderrLine = 64 << 10
	}
	if o.Drain <= 0 {
		o.Drain = 30 * time.Second
	}
	if o.Stop <= 0 {
		o.Stop = 15 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

const maxPending = 64 << 10 // ids that are remembered to be failed

type stdioRelay struct {
	opts StdioOptions
	sb   sandbox.Sandbox

	outMu     sync.Mutex // one line at a time
	out       io.Writer
	outErr    error
	outFailed chan struct{}

	mu       sync.Mutex
	pending  map[string][]byte // IDKey -> id as it stood
	ended    bool              // the client's input ended
	inputEnd chan struct{}     // closed with ended
	idle     chan struct{}     // closed when ended and nothing is pending
}

// RelayStdio joins a client's two streams to a sandbox and returns how the
// sandbox ended. Lines pass byte for byte in both directions, except: what the
// server prints that is no JSON-RPC goes to opts.Stray, and a line over the
// bound is dropped and answered (or its call failed) with an error.
//
// When clientIn ends, the server's stdin is closed, its pending calls get
// opts.Drain to finish, and sb.Close runs its ladder. When the server ends
// first, the client's pending calls are failed with the exit cause. When ctx
// ends or clientOut fails, sb.Close runs at once. The sandbox is closed in
// every case; the error is about the relay (ctx, or clientOut), not the
// server's exit status.
//
// A Read of clientIn that is blocked when the server has ended can only be
// ended by its owner: RelayStdio sets a read deadline where clientIn has one,
// else it leaves that one goroutine to end with the next Read.
func RelayStdio(ctx context.Context, clientIn io.Reader, clientOut io.Writer, sb sandbox.Sandbox, opts StdioOptions) (sandbox.Exit, error) { //nolint:revive // Stdio alone would read as the streams
	r := &stdioRelay{
		opts: opts.withDefaults(), sb: sb, out: clientOut, outFailed: make(chan struct{}),
		pending: map[string][]byte{}, inputEnd: make(chan struct{}), idle: make(chan struct{}),
	}
	std := sb.Stdio()
	var errs, input sync.WaitGroup
	errs.Go(func() { r.stderr(std.Err) })
	input.Go(func() { r.fromClient(clientIn, std.In) })
	served := make(chan struct{})
	go func() { defer close(served); r.fromServer(std.Out) }()

	relayErr := r.await(ctx, served)
	cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.opts.Stop)
	defer cancel()
	closeErr := sb.Close(cctx)
	exit, waitErr := sb.Wait(cctx)
	if waitErr == nil { // Out and Err end with the guest
		<-served
		errs.Wait()
	}
	if d, ok := clientIn.(interface{ SetReadDeadline(time.Time) error }); ok && d.SetReadDeadline(time.Unix(1, 0)) == nil {
		input.Wait()
	}
	r.failPending(exit)
	if waitErr != nil {
		waitErr = fmt.Errorf("waiting for the sandbox to end: %w", waitErr)
	}
	return exit, errors.Join(relayErr, closeErr, waitErr)
}

// await returns when the sandbox is to be stopped, and why if that is an error.
func (r *stdioRelay) await(ctx context.Context, served <-chan struct{}) error {
	var drained <-chan time.Time
	inputEnd := r.inputEnd
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-r.outFailed:
			return r.outErr
		case <-served:
			return nil
		case <-r.idle:
			return nil
		case <-drained:
			r.opts.Logger.Warn("pending calls did not finish after the end of input")
			return nil
		case <-inputEnd:
			inputEnd = nil
			t := time.NewTimer(r.opts.Drain)
			defer t.Stop()
			drained = t.C
		}
	}
}

func (r *stdioRelay) fromClient(in io.Reader, server io.WriteCloser) {
	defer r.endInput()
	defer server.Close() //nolint:errcheck // the guest sees the end either way
	lines := NewReader(in, r.opts.MaxLine)
	for {
		l, err := lines.Next()
		if err != nil {
			return
		}
		m, perr := Peek(l.Text)
		if l.Oversize > 0 {
			r.opts.Logger.Warn("dropped an oversize line from the client", "bytes", l.Oversize)
			if perr == nil && m.Kind == Request {
				r.write(append(ErrorLine(m.ID.Of(l.Text), codeInvalidRequest,
					fmt.Sprintf("message of %d bytes is over the limit of %d", l.Oversize, r.opts.MaxLine)), '\n'))
			}
			continue
		}
		if perr == nil {
			r.track(m, l.Text)
		}
		if _, err := server.Write(l.Raw()); err != nil {
			return
		}
	}
}

func (r *stdioRelay) fromServer(out io.Reader) {
	lines := NewReader(out, r.opts.MaxLine)
	var strays int64
	for {
		l, err := lines.Next()
		if err != nil {
			if strays > 0 {
				r.opts.Logger.Info("server wrote lines that are no JSON-RPC to its stdout", "lines", strays)
			}
			return
		}
		m, perr := Peek(l.Text)
		switch {
		case l.Oversize > 0:
			r.opts.Logger.Warn("dropped an oversize line from the server", "bytes", l.Oversize)
			if perr == nil && m.Kind == Response && r.settle(m.ID.Of(l.Text)) {
				r.write(append(ErrorLine(m.ID.Of(l.Text), codeTooLarge,
					fmt.Sprintf("result of %d bytes is over the limit of %d", l.Oversize, r.opts.MaxLine)), '\n'))
			}
		case perr != nil || m.Kind == Stray:
			if space(l.Text, 0) == len(l.Text) {
				continue // a blank line says nothing
			}
			strays++
			if r.opts.Stray != nil {
				r.opts.Stray(l.Text)
			} else if strays <= 100 {
				r.opts.Logger.Warn("stray line on the server's stdout", "line", Cut(l.Text, 200))
			}
		default:
			r.write(l.Raw())
			r.answered(m, l.Text)
		}
	}
}

func (r *stdioRelay) write(b []byte) {
	r.outMu.Lock()
	defer r.outMu.Unlock()
	if r.outErr != nil {
		return // the server's output is still drained, so that it can end
	}
	if _, err := r.out.Write(b); err != nil {
		r.outErr = fmt.Errorf("writing to the client: %w", err)
		close(r.outFailed)
	}
}

func (r *stdioRelay) track(m Message, line []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	each(m, line, func(m Message, line []byte) {
		id := m.ID.Of(line)
		if k, ok := IDKey(id); ok && m.Kind == Request && len(id) <= 1024 && len(r.pending) < maxPending {
			r.pending[k] = append([]byte(nil), id...)
		}
	})
}

func (r *stdioRelay) answered(m Message, line []byte) {
	each(m, line, func(m Message, line []byte) {
		if m.Kind == Response {
			r.settle(m.ID.Of(line))
		}
	})
}

// each calls f with a message, or with each one of a batch.
func each(m Message, line []byte, f func(Message, []byte)) {
	if m.Kind != Batch {
		f(m, line)
		return
	}
	for _, e := range Elements(line) {
		if em, err := Peek(e); err == nil {
			f(em, e)
		}
	}
}

// settle forgets a pending id and says whether it was one.
func (r *stdioRelay) settle(id []byte) bool {
	k, ok := IDKey(id)
	r.mu.Lock()
	defer r.mu.Unlock()
	_, was := r.pending[k]
	delete(r.pending, k)
	r.checkIdle()
	return ok && was
}

func (r *stdioRelay) endInput() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	close(r.inputEnd)
	r.checkIdle()
}

// checkIdle is called with mu held.
func (r *stdioRelay) checkIdle() {
	if !r.ended || len(r.pending) > 0 {
		return
	}
	select {
	case <-r.idle:
	default:
		close(r.idle)
	}
}

func (r *stdioRelay) failPending(exit sandbox.Exit) {
	r.mu.Lock()
	ids := make([][]byte, 0, len(r.pending))
	for _, id := range r.pending {
		ids = append(ids, id)
	}
	clear(r.pending)
	r.mu.Unlock()
	for _, id := range ids {
		r.write(append(ErrorLine(id, codeServerGone, (&ExitError{exit}).Error()), '\n'))
	}
}

func (r *stdioRelay) stderr(in io.Reader) {
	w := r.opts.Stderr
	if w == nil {
		w = io.Discard
	}
	CopyLines(w, in, r.opts.MaxStderrLine)
}

// CopyLines copies src to dst as it comes, line by line and unmodified, but
// for lines over maxLine bytes, which are cut there. It goes on reading when
// dst fails, so that a guest never blocks on its own log.
func CopyLines(dst io.Writer, src io.Reader, maxLine int) {
	buf := make([]byte, 32<<10)
	n := 0 // bytes of the current line so far
	for {
		k, err := src.Read(buf)
		for b := buf[:k]; len(b) > 0; {
			part, nl := b, bytes.IndexByte(b, '\n')
			if nl >= 0 {
				part = b[:nl]
			}
			b = b[len(part):]
			keep := part[:min(len(part), max(0, maxLine-n))]
			n += len(part)
			if nl >= 0 {
				b, n = b[1:], 0
				if len(keep) == len(part) {
					keep = part[:len(part)+1]
				} else {
					keep = append(append([]byte(nil), keep...), '\n')
				}
			}
			if dst != nil && len(keep) > 0 {
				if _, werr := dst.Write(keep); werr != nil {
					dst = nil
				}
			}
		}
		if err != nil {
			return
		}
	}
}
