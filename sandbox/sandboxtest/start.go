package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

// testNoEgressNoNetwork: without an egress, a service of the host's is out of
// reach, and so it is with one that refuses.
func (s *suite) testNoEgressNoNetwork(t *testing.T) {
	s.needs(t, Network)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Errorf("a connection from %s", c.RemoteAddr())
			_ = c.Close()
		}
	}()
	for _, e := range []sandbox.Egress{nil, &egress{}} {
		b := s.start(t, s.spec("serve"), e)
		if got := b.ask("dial " + l.Addr().String()); !strings.HasPrefix(got, "error: ") {
			t.Errorf("with egress %T: %s", e, got)
		}
		b.close(t.Context())
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	<-accepted
}

// testEgressEnds: the egress ends with the guest, whichever way that ends.
func (s *suite) testEgressEnds(t *testing.T) {
	byItself, closed := &egress{}, &egress{}
	b := s.start(t, s.spec("exit", "0"), byItself)
	b.wait()
	byItself.isClosed(t, "Wait")
	b = s.start(t, s.spec("stubborn"), closed)
	b.ready()
	if closed.closes.Load() > 0 {
		t.Error("the egress of a running sandbox is closed")
	}
	b.close(t.Context())
	closed.isClosed(t, "Close")
}

// testFailedStarts: what cannot start is refused with the reason, and its
// egress closed.
func (s *suite) testFailedStarts(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*sandbox.Spec)
		want error
	}{
		"no program":   {func(s *sandbox.Spec) { s.Args = nil }, sandbox.ErrInvalid},
		"no tier":      {func(s *sandbox.Spec) { s.Isolation = 0 }, sandbox.ErrInvalid},
		"limits":       {func(s *sandbox.Spec) { s.Limits.MemoryBytes = 1 }, sandbox.ErrInvalid},
		"digest":       {func(s *sandbox.Spec) { s.Image.Digest = "latest" }, sandbox.ErrInvalid},
		"environment":  {func(s *sandbox.Spec) { s.Env = []string{"A"} }, sandbox.ErrInvalid},
		"mount source": {func(s *sandbox.Spec) { s.Mounts = []sandbox.Mount{{Target: "/data"}} }, sandbox.ErrInvalid},
		"image": {func(s *sandbox.Spec) {
			s.Image = sandbox.Image{Digest: "sha256:" + strings.Repeat("0", 64), Path: "/nonexistent"}
		}, sandbox.ErrInvalid},
		"another tier": {func(s *sandbox.Spec) { s.Isolation = sandbox.Kata }, sandbox.ErrUnavailable},
	} {
		e, spec := &egress{}, s.spec("echo")
		c.edit(&spec)
		if _, err := s.rt.Start(t.Context(), spec, e); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		e.isClosed(t, name)
	}
}

// testCancelledStarts gives starts up at random moments: each is a sandbox or
// an error, and either way nothing stays.
func (s *suite) testCancelledStarts(t *testing.T) {
	for range 3 {
		e := &egress{}
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(300))*time.Millisecond) //nolint:gosec // any moment will do
		sb, err := s.rt.Start(ctx, s.spec("stubborn"), e)
		cancel()
		if err == nil {
			s.remember(sb.ID())
			within(t, "Close right after Start", func() error { return sb.Close(t.Context()) })
		}
		e.isClosed(t, fmt.Sprintf("a start that gave %v", err))
	}
}

// testMounts: a read-only folder can be read, a writable one written, and a
// link leads out of neither.
func (s *suite) testMounts(t *testing.T) {
	s.needs(t, Mounts)
	ro, rw := hostFolder(t), hostFolder(t)
	outside := filepath.Join(hostFolder(t).Name(), "f")
	if err := os.Symlink(outside, filepath.Join(rw.Name(), "link")); err != nil {
		t.Fatal(err)
	}
	spec := s.spec("serve")
	spec.Mounts = []sandbox.Mount{{Source: ro, Target: "/ro"}, {Source: rw, Target: "/rw", ReadWrite: true}}
	b := s.start(t, spec, nil)
	for _, c := range []struct {
		ask string
		ok  bool
	}{
		{"read /ro/f", true},
		{"read /rw/f", true},
		{"write /rw/new", true},
		{"write /ro/new", false},
		{"write /ro/f", false},
		{"read /rw/link", false},
		{"read /rw/../../.." + outside, false},
		{"read " + outside, false},
	} {
		if got := b.ask(c.ask); strings.HasPrefix(got, "error: ") == c.ok {
			t.Errorf("%s: %s", c.ask, got)
		}
	}
	if got, err := os.ReadFile(filepath.Join(rw.Name(), "new")); err != nil || string(got) != "written by the guest" {
		t.Errorf("on the host: %q, %v", got, err)
	}
	for name, want := range map[string]error{"new": os.ErrNotExist, "f": nil} {
		if got, err := os.ReadFile(filepath.Join(ro.Name(), name)); !errors.Is(err, want) || err == nil && string(got) != ofTheHost {
			t.Errorf("%s of the read-only folder: %q, %v", name, got, err)
		}
	}
}

const ofTheHost = "of the host"

// hostFolder is a folder that everyone may read, with one file in it.
func hostFolder(t *testing.T) *os.File {
	t.Helper()
	dir, err := os.MkdirTemp("", "sandboxtest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(filepath.Join(dir, "f"), []byte(ofTheHost), 0o644)); err != nil { //nolint:gosec // to be read by all
		t.Fatal(err)
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// testManyAtOnce: sandboxes side by side each talk to their own caller.
func (s *suite) testManyAtOnce(t *testing.T) {
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		seen = map[string]bool{}
	)
	for i := range 4 {
		wg.Go(func() {
			sb, err := s.rt.Start(t.Context(), s.spec("serve"), nil)
			if err != nil {
				t.Error(err)
				return
			}
			s.remember(sb.ID())
			mu.Lock()
			if seen[sb.ID()] {
				t.Errorf("two sandboxes are called %s", sb.ID())
			}
			seen[sb.ID()] = true
			mu.Unlock()
			want := fmt.Sprintf("guest %d\n", i)
			got := make([]byte, len(want))
			if _, err := fmt.Fprint(sb.Stdio().In, "echo "+want); err != nil {
				t.Error(err)
			}
			if _, err := io.ReadFull(sb.Stdio().Out, got); err != nil || string(got) != want {
				t.Errorf("%q came back as %q, %v", want, got, err)
			}
			if err := sb.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	within(t, "many at once", func() error { wg.Wait(); return nil })
}
