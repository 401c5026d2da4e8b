package wasip1

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestPipeKeepsOrder moves random pieces through a small pipe, in both
// directions of its use.
func TestPipeKeepsOrder(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	data := make([]byte, 1<<20)
	for i := range data {
		data[i] = byte(rnd.Uint32())
	}
	wake := make(chan struct{}, 1)
	notify := func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	t.Run("to the guest", func(t *testing.T) {
		p := NewPipe(1000)
		p.setWake(notify)
		go func() {
			for b := data; len(b) > 0; {
				n := min(len(b), 1+(len(b)%3001))
				if k, err := p.Write(b[:n]); k != n || err != nil {
					t.Errorf("%d, %v", k, err)
				}
				b = b[n:]
			}
			_ = p.Writer().Close()
		}()
		var got []byte
		buf := make([]byte, 777)
		for {
			n, e := p.tryRead(buf)
			got = append(got, buf[:n]...)
			if e == EAGAIN {
				<-wake
			} else if n == 0 {
				break
			}
		}
		if !bytes.Equal(got, data) {
			t.Error("bytes were lost or moved")
		}
	})
	t.Run("from the guest", func(t *testing.T) {
		p := NewPipe(1000)
		p.setWake(notify)
		done := make(chan []byte)
		go func() {
			b, err := io.ReadAll(p.Reader())
			if err != nil {
				t.Error(err)
			}
			done <- b
		}()
		for b := data; len(b) > 0; {
			n, e := p.tryWrite(b[:min(len(b), 1777)])
			if e == EAGAIN {
				<-wake
			}
			b = b[n:]
		}
		p.closeWrite(Success)
		if !bytes.Equal(<-done, data) {
			t.Error("bytes were lost or moved")
		}
	})
}

func TestPipeEnds(t *testing.T) {
	p := NewPipe(10)
	p.closeRead()
	if _, err := p.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("write: %v", err)
	}
	if _, e := p.tryWrite([]byte("x")); e != EPIPE {
		t.Errorf("write: %v", e)
	}
	p = NewPipe(10)
	if n, e := p.tryWrite(make([]byte, 20)); n != 10 || e != Success {
		t.Errorf("%d, %v", n, e)
	}
	if _, e := p.tryWrite([]byte("x")); e != EAGAIN {
		t.Errorf("full: %v", e)
	}
	p.closeWrite(ECONNRESET)
	b := make([]byte, 20)
	if n, e := p.tryRead(b); n != 10 || e != Success {
		t.Errorf("%d, %v", n, e)
	}
	if n, e := p.tryRead(b); n != 0 || e != ECONNRESET {
		t.Errorf("%d, %v", n, e)
	}
}

func TestLookups(t *testing.T) {
	var l lookups
	first := l.address("first.test")
	if first.String() != "198.18.0.1" || l.address("first.test") != first {
		t.Errorf("first address %s", first)
	}
	for i := range maxNames {
		name := fmt.Sprintf("n%d.test", i)
		if got, ok := l.name(l.address(name)); !ok || got != name {
			t.Fatalf("%s became %s", name, got)
		}
	}
	if got, ok := l.name(first); !ok || got == "first.test" {
		t.Errorf("the oldest name is still there: %q", got)
	}
	if len(l.byName) != maxNames {
		t.Errorf("%d names", len(l.byName))
	}
	for _, a := range []string{"198.18.0.0", "10.0.0.1", "::1", "198.19.0.1"} {
		if _, ok := l.name(mustAddr(t, a)); ok {
			t.Errorf("%s stands for a name", a)
		}
	}
}

func mustAddr(t *testing.T, s string) netip.Addr {
	t.Helper()
	a, err := netip.ParseAddr(s)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestPlainName(t *testing.T) {
	for name, want := range map[string]bool{
		"example.com": true, "a_b.test": true, "xn--bcher-kva.example": true, "localhost": true,
		"": false, "a b": false, "a:80": false, "[::1]": false, "a%eth0": false, "a/b": false, "UPPER": false, "bücher.example": false, "a\x00b": false,
	} {
		if got := plainName(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}

func TestErrnos(t *testing.T) {
	for err, want := range map[error]Errno{
		nil: Success, io.EOF: Success, syscall.ENOENT: ENOENT, os.ErrNotExist: ENOENT, errors.New("path escapes from parent"): EPERM,
		&os.PathError{Err: syscall.EROFS}: EROFS, os.ErrClosed: EBADF,
	} {
		if got := fsErrno(err); got != want {
			t.Errorf("%v: %d, want %d", err, got, want)
		}
	}
	for err, want := range map[error]Errno{
		nil: Success, errors.New("refused by policy"): ECONNREFUSED, syscall.ECONNRESET: ECONNRESET, os.ErrDeadlineExceeded: ETIMEDOUT, ENFILE: ENFILE,
	} {
		if got := DialErrno(err); got != want {
			t.Errorf("%v: %d, want %d", err, got, want)
		}
	}
}

func TestLeaves(t *testing.T) {
	for _, tc := range []struct {
		at, target string
		want       bool
	}{
		{"x", "a", false},
		{"x", "../a", true},
		{"x", "a/../..", true},
		{"x", "a/../b", false},
		{"x", "/a", true},
		{"d/x", "../a", false},
		{"d/x", "../../a", true},
		{"d/x", "b/../../a", false},
		{"./d//x", "../a", false},
	} {
		if got := leaves(tc.at, tc.target); got != tc.want {
			t.Errorf("%s -> %s: %v", tc.at, tc.target, got)
		}
	}
}
