//go:build linux

package wasm_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/images/gowasm"
	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wasm"
)

// built is where TestMain puts the guests and their compiled code: compiling
// one takes seconds, so all tests share it.
var built struct {
	dir, cache string
}

func TestMain(m *testing.M) {
	wasm.WorkerMain()
	probeMain()
	hostMain()
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "sandboxd-wasm-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	built.dir, built.cache = dir, filepath.Join(dir, "cache")
	if keep, err := os.UserCacheDir(); err == nil {
		built.cache = filepath.Join(keep, "sandboxd", "test-wasm")
	}
	cmd := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(dir, "guest.wasm"), "./testdata/guest")
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("building the guest: %w\n%s", err, out)
	}
	if err := buildFetch(filepath.Join(dir, "fetch.wasm")); err != nil {
		return 1, fmt.Errorf("building fetch: %w", err)
	}
	compile := exec.Command("go", "run", "./testdata/precompile", built.cache, filepath.Join(dir, "guest.wasm"), filepath.Join(dir, "fetch.wasm"))
	compile.Env = append(os.Environ(), "GOFLAGS=")
	if out, err := compile.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("compiling the guests: %w\n%s", err, out)
	}
	code = m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			return 1, err
		}
	}
	return code, nil
}

// buildFetch builds the shipped example, a server that knows nothing of WASM.
func buildFetch(to string) error {
	b, err := gowasm.New(gowasm.Config{CacheDir: built.cache + "-build"})
	if err != nil {
		return err
	}
	dir, err := filepath.Abs("../../images/wasm/fetch")
	if err != nil {
		return err
	}
	res, err := b.Build(context.Background(), gowasm.Target{Dir: dir}, false)
	if err != nil {
		return err
	}
	return res.CopyTo(to)
}

// image returns a built guest, or a file written for a test.
func image(t testing.TB, path string) sandbox.Image {
	t.Helper()
	if filepath.Ext(path) == "" {
		path = filepath.Join(built.dir, path+".wasm")
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	return sandbox.Image{Digest: "sha256:" + hex.EncodeToString(sum[:]), Path: path}
}

// tiers are what tests that are about both run in.
var tiers = []sandbox.Isolation{sandbox.WASMInProcess, sandbox.WASM}

// shared is one Runtime for many tests, as a server would have it.
func newRuntime(t testing.TB) *wasm.Runtime { t.Helper(); return runtimeWith(t, wasm.Config{}) }

// newBareRuntime is for guests that compare all that they are given.
func newBareRuntime(t testing.TB) *wasm.Runtime {
	t.Helper()
	return runtimeWith(t, wasm.Config{Bare: true})
}

func runtimeWith(t testing.TB, cfg wasm.Config) *wasm.Runtime {
	t.Helper()
	cfg.Logger = slog.New(slog.NewTextHandler(testWriter{t}, nil))
	cfg.CacheDir, cfg.WorkerCommand = built.cache, []string{"/proc/self/exe"}
	r, err := wasm.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := r.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return r
}

type testWriter struct{ testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	w.Logf("%s", bytes.TrimSpace(b))
	return len(b), nil
}

func spec(t testing.TB, tier sandbox.Isolation, args ...string) sandbox.Spec {
	t.Helper()
	return sandbox.Spec{
		Tenant: "tenant", Name: "guest", Isolation: tier, Image: image(t, "guest"),
		Args:   append([]string{"guest"}, args...),
		Limits: sandbox.Limits{MemoryBytes: 128 << 20, StopGrace: 100 * time.Millisecond},
	}
}

func mount(t testing.TB, src, target string, rw bool) sandbox.Mount {
	t.Helper()
	fd, err := unix.Open(src, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), src)
	t.Cleanup(func() { _ = f.Close() })
	return sandbox.Mount{Source: f, Target: target, ReadWrite: rw}
}

// running is a sandbox under test.
type running struct {
	t testing.TB
	sandbox.Sandbox
	out *bufio.Reader
}

func start(t testing.TB, r sandbox.Runtime, s sandbox.Spec, e sandbox.Egress) *running {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	sb, err := r.Start(ctx, s, e)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return &running{t, sb, bufio.NewReaderSize(sb.Stdio().Out, 1<<17)}
}

func (r *running) line() string {
	r.t.Helper()
	type result struct {
		s   string
		err error
	}
	c := make(chan result, 1)
	go func() {
		s, err := r.out.ReadString('\n')
		c <- result{s, err}
	}()
	select {
	case got := <-c:
		if got.err != nil {
			e, _ := io.ReadAll(r.Stdio().Err)
			r.t.Fatalf("reading a line: %q, %v; stderr: %s", got.s, got.err, e)
		}
		return got.s[:len(got.s)-1]
	case <-time.After(60 * time.Second):
		r.t.Fatal("no line within a minute")
	}
	return ""
}

func (r *running) expect(want string) {
	r.t.Helper()
	if got := r.line(); got != want {
		r.t.Fatalf("got %q, want %q", got, want)
	}
}

func (r *running) write(s string) {
	r.t.Helper()
	if _, err := io.WriteString(r.Stdio().In, s); err != nil {
		r.t.Fatal(err)
	}
}

// rest reads the output to its end.
func (r *running) rest() string {
	r.t.Helper()
	b, err := io.ReadAll(r.out)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(b)
}

func (r *running) wait() sandbox.Exit {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	exit, err := r.Wait(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return exit
}

// testEgress is an Egress with a table instead of a policy: it dials what the
// address asked for stands for, on loopback.
type testEgress struct {
	to map[string]string

	mu     sync.Mutex
	asked  []string
	conns  map[net.Conn]struct{}
	closed bool
}

func newEgress(to map[string]string) *testEgress {
	return &testEgress{to: to, conns: map[net.Conn]struct{}{}}
}

var errRefused = errors.New("refused by policy")

func (e *testEgress) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	e.mu.Lock()
	e.asked = append(e.asked, network+" "+address)
	target, ok := e.to[address]
	closed := e.closed
	e.mu.Unlock()
	if !ok || closed {
		return nil, errRefused
	}
	if target == "hang" {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	c, err := (&net.Dialer{}).DialContext(ctx, network, target)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.conns[c] = struct{}{}
	return c, nil
}

func (e *testEgress) log() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.asked...)
}

func (e *testEgress) isClosed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}

func (e *testEgress) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	for c := range e.conns {
		_ = c.Close()
	}
	return nil
}

func (e *testEgress) Literals() iter.Seq2[netip.Prefix, []uint16] {
	return func(func(netip.Prefix, []uint16) bool) {}
}

func (e *testEgress) Resolve(context.Context, []byte, func([]netip.AddrPort, time.Duration) error) ([]byte, error) {
	panic("a WASM tier must never send a query")
}
func (e *testEgress) ServeConn(context.Context, net.Conn, netip.AddrPort) {}
func (e *testEgress) Refused(string, netip.AddrPort)                      {}

// checkingEgress knows at look-up what policy refuses.
type checkingEgress struct{ *testEgress }

func (e checkingEgress) CheckName(host string) error {
	if host == "refused.test" {
		return errRefused
	}
	return nil
}
