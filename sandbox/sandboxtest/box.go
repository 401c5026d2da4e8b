package sandboxtest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"iter"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

// box is a started guest under test.
type box struct {
	t *testing.T
	sandbox.Sandbox
	out *bufio.Reader
}

// start starts a guest and has the test's end close it.
func (s *suite) start(t *testing.T, spec sandbox.Spec, egress sandbox.Egress) *box {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	sb, err := s.rt.Start(ctx, spec, egress)
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	if sb.ID() == "" {
		t.Error("a sandbox without an id")
	}
	s.remember(sb.ID())
	b := &box{t: t, Sandbox: sb, out: bufio.NewReader(sb.Stdio().Out)}
	t.Cleanup(func() { b.close(context.Background()) })
	return b
}

func (b *box) close(ctx context.Context) {
	b.t.Helper()
	within(b.t, "Close", func() error { return b.Close(ctx) })
}

func (b *box) wait() sandbox.Exit {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	e, err := b.Wait(ctx)
	if err != nil {
		b.t.Fatalf("Wait: %v", err)
	}
	return e
}

// ended checks the exit's cause and status.
func (b *box) ended(cause sandbox.Cause, code int) {
	b.t.Helper()
	if e := b.wait(); e.Cause != cause || e.Code != code {
		b.t.Errorf("exit %+v, want cause %s and status %d", e, cause, code)
	}
}

func (b *box) line() string {
	b.t.Helper()
	var line string
	within(b.t, "reading a line", func() (err error) { line, err = b.out.ReadString('\n'); return err })
	return strings.TrimSuffix(line, "\n")
}

// ready waits for the guest's word that it runs.
func (b *box) ready() {
	b.t.Helper()
	if got := b.line(); got != "ready" {
		b.t.Fatalf("the guest said %q", got)
	}
}

// ask has a guest that serves do one thing.
func (b *box) ask(line string) string {
	b.t.Helper()
	if _, err := io.WriteString(b.Stdio().In, line+"\n"); err != nil {
		b.t.Fatalf("%s: %v", line, err)
	}
	return b.line()
}

// all reads a stream to its end.
func (b *box) all(r io.Reader) string {
	b.t.Helper()
	var got []byte
	within(b.t, "reading to the end", func() (err error) { got, err = io.ReadAll(r); return err })
	return string(got)
}

// within fails the test where f fails or hangs.
func within(t *testing.T, what string, f func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	case <-time.After(patience):
		t.Fatalf("%s hangs", what)
	}
}

// egress refuses everything and counts its ends.
type egress struct{ closes atomic.Int32 }

var errRefused = errors.New("refused by the suite")

func (*egress) DialContext(context.Context, string, string) (net.Conn, error) { return nil, errRefused }

func (e *egress) Close() error { e.closes.Add(1); return nil }

func (*egress) Literals() iter.Seq2[netip.Prefix, []uint16] {
	return func(func(netip.Prefix, []uint16) bool) {}
}

func (*egress) Resolve(context.Context, []byte, func([]netip.AddrPort, time.Duration) error) ([]byte, error) {
	return nil, errRefused
}

func (*egress) ServeConn(_ context.Context, c net.Conn, _ netip.AddrPort) { _ = c.Close() }

func (*egress) Refused(string, netip.AddrPort) {}

// isClosed checks that the runtime let go of an egress that it was given.
func (e *egress) isClosed(t *testing.T, what string) {
	t.Helper()
	if e.closes.Load() == 0 {
		t.Errorf("%s: the egress was left open", what)
	}
}
