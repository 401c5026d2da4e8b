package relay

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

// ConnOptions tune a Conn. The zero value is usable.
type ConnOptions struct {
	// MaxLine bounds a line from the server; 0 means DefaultMaxLine.
	MaxLine int
	// Handle receives each JSON-RPC line, in order, from one goroutine; the
	// line is the handler's to keep. While it runs nothing more is read: that
	// is the back-pressure. It must not call Close, and must return soon after
	// Gone is closed.
	Handle func(m Message, line []byte)
	// Oversize receives the skeleton of each response that was over MaxLine,
	// from the same goroutine.
	Oversize func(m Message, skeleton []byte, size int64)
	// Stray receives each line on stdout that is no JSON-RPC (valid during the
	// call only), from the same goroutine. Nil drops it; it is counted anyway.
	Stray func(line []byte)
	// Stderr receives the server's stderr in whole or cut lines; nil drops it.
	Stderr io.Writer
	// Stop bounds the sandbox's stop ladder; 0 means 15 seconds.
	Stop time.Duration
	// Logger receives the relay's own records; nil discards them.
	Logger *slog.Logger
}

const (
	sendQueue     = 256
	batchBytes    = 64 << 10
	maxStderrLine = 16 << 10
)

// Conn is the client's end of one sandboxed stdio server, line by line. It
// owns the sandbox and is safe for concurrent use.
type Conn struct {
	sb     sandbox.Sandbox
	opts   ConnOptions
	send   chan []byte
	closed chan struct{} // closed by Close or when the server is going
	once   sync.Once
	done   chan struct{} // closed when the sandbox is gone
	exit   sandbox.Exit  // valid after done
	err    error         // valid after done
	strays atomic.Int64
}

// NewConn takes over a running sandbox. Handle must be set.
func NewConn(sb sandbox.Sandbox, opts ConnOptions) *Conn {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Stop <= 0 {
		opts.Stop = 15 * time.Second
	}
	c := &Conn{
		sb: sb, opts: opts, send: make(chan []byte, sendQueue),
		closed: make(chan struct{}), done: make(chan struct{}),
	}
	std := sb.Stdio()
	var wg sync.WaitGroup
	wg.Go(func() { defer c.shut(); c.read(std.Out) })
	wg.Go(func() { defer c.shut(); c.write(std.In) })
	wg.Go(func() { CopyLines(orDiscard(opts.Stderr), std.Err, maxStderrLine) })
	go c.end(&wg)
	return c
}

func orDiscard(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

func (c *Conn) shut() { c.once.Do(func() { close(c.closed) }) }

// end owns the other goroutines: it stops the sandbox once one of them gave
// up, waits for all, and publishes the exit.
func (c *Conn) end(wg *sync.WaitGroup) {
	<-c.closed
	ctx, cancel := context.WithTimeout(context.Background(), c.opts.Stop)
	defer cancel()
	closeErr := c.sb.Close(ctx)
	exit, err := c.sb.Wait(ctx)
	if err != nil {
		// Nothing is known about its streams then: publish first, wait after.
		c.exit, c.err = sandbox.Exit{Cause: sandbox.HostFault, Detail: "the sandbox did not end in time"}, errors.Join(closeErr, err)
		close(c.done)
		wg.Wait()
		return
	}
	wg.Wait() // the streams end with the guest
	c.exit, c.err = exit, closeErr
	close(c.done)
}

// Done is closed when the sandbox is gone.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Gone is closed as soon as the server can answer nothing any more, which is
// before Done.
func (c *Conn) Gone() <-chan struct{} { return c.closed }

// Exit says how the sandbox ended; it waits for that.
func (c *Conn) Exit() sandbox.Exit {
	<-c.done
	return c.exit
}

// Strays counts the lines so far that were no JSON-RPC.
func (c *Conn) Strays() int64 { return c.strays.Load() }

// Close stops the sandbox by its ladder and waits for it, or for ctx.
func (c *Conn) Close(ctx context.Context) error {
	c.shut()
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Send queues one message, which must hold no newline and is not to be
// changed any more. It waits while the server takes nothing, until ctx ends.
// Its error is ctx's, or ErrClosed once the server is gone.
func (c *Conn) Send(ctx context.Context, msg []byte) error {
	select {
	case <-c.closed:
		return ErrClosed
	default:
	}
	select {
	case c.send <- msg:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.closed:
		return ErrClosed
	}
}

// TrySend queues a message unless the queue is full, for answers that must
// not block reading.
func (c *Conn) TrySend(msg []byte) bool {
	select {
	case c.send <- msg:
		return true
	default:
		return false
	}
}

// write sends what is queued, several messages to a system call.
func (c *Conn) write(in io.WriteCloser) {
	defer in.Close() //nolint:errcheck // the guest sees the end either way
	var buf []byte
	for {
		select {
		case <-c.closed:
			return
		case msg := <-c.send:
			buf = append(append(buf[:0], msg...), '\n')
		}
	more:
		for len(buf) < batchBytes {
			select {
			case msg := <-c.send:
				buf = append(append(buf, msg...), '\n')
			default:
				break more
			}
		}
		if _, err := in.Write(buf); err != nil {
			return
		}
		if cap(buf) > 4*batchBytes {
			buf = nil
		}
	}
}

func (c *Conn) read(out io.Reader) {
	lines := NewReader(out, c.opts.MaxLine)
	for {
		l, err := lines.Next()
		if err != nil {
			return
		}
		m, perr := Peek(l.Text)
		switch {
		case l.Oversize > 0:
			c.opts.Logger.Warn("dropped an oversize line from the server", "bytes", l.Oversize)
			if perr == nil && m.Kind == Response && c.opts.Oversize != nil {
				c.opts.Oversize(m, l.Text, l.Oversize)
			}
		case perr != nil || m.Kind == Stray:
			if space(l.Text, 0) == len(l.Text) {
				continue
			}
			c.strays.Add(1)
			if c.opts.Stray != nil {
				c.opts.Stray(l.Text)
			}
		default:
			// Spans are offsets, so they hold for the taken copy too.
			c.opts.Handle(m, lines.Take(l))
		}
	}
}
