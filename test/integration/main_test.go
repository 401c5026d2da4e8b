package integration

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/netguard"
	"github.com/sandboxd/sandboxd/test/integration/lab"
)

// program is the sandboxd under test; cache the folder of images that the
// ordinary user builds, kept between runs since it is large.
var program, cache, parts string

// operator is a file of settings that trusts this machine's own registry where
// it sits on a private address.
var operator string

func TestMain(m *testing.M) {
	confineMain()
	code, err := runAll(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "integration:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

func runAll(m *testing.M) (int, error) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			return 0, fmt.Errorf("these tests need root")
		}
		fmt.Fprintln(os.Stderr, "integration: skipped, since these tests need root")
		return 0, nil
	}
	dir, err := os.MkdirTemp("", "sb-it-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // the ordinary user runs it
		return 0, err
	}
	program = filepath.Join(dir, "sandboxd")
	if out, err := buildProgram(); err != nil {
		return 0, fmt.Errorf("build: %w\n%s", err, out)
	}
	var stderr bytes.Buffer
	build := exec.Command("../../images/engine/build.sh")
	build.Stderr = &stderr
	out, err := build.Output()
	if err != nil {
		return 0, fmt.Errorf("engine parts: %w\n%s", err, stderr.Bytes())
	}
	parts = strings.TrimSpace(string(out))
	operator = filepath.Join(dir, "operator.yaml")
	if err := writeOperator(operator); err != nil {
		return 0, err
	}
	cache = "/var/tmp/sandboxd-test-cache"
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return 0, err
	}
	if err := os.Chown(cache, lab.UserID, lab.UserID); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// engine is one running `sandboxd engine` with folders of its own.
type engine struct {
	t           testing.TB
	dir, socket string
	cmd         *exec.Cmd
	log         *syncBuffer
	done        chan struct{}
	under       []string // a command that runs it, before its own
}

// startEngine starts an engine, with more arguments if need be, that ends with
// the test.
func startEngine(t testing.TB, more ...string) *engine {
	t.Helper()
	e := newEngine(t)
	e.start(more...)
	return e
}

// newEngine makes its folders. Whoever starts it, the test's end ends it.
func newEngine(t testing.TB) *engine {
	t.Helper()
	dir, err := os.MkdirTemp("", "sbe-") // short: Unix sockets live below it
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	e := &engine{t: t, dir: dir, socket: filepath.Join(dir, "s", "engine.sock")}
	t.Cleanup(func() {
		e.stop()
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("the engine's folder could not be removed: %v", err)
		}
	})
	return e
}

func (e *engine) args(more ...string) []string {
	return append([]string{
		"engine", "--socket", e.socket, "--group", strconv.Itoa(lab.UserID), "--parts", parts,
		"--root", filepath.Join(e.dir, "root"), "--state", filepath.Join(e.dir, "st"), "--containerd", "own",
		"--instance", filepath.Base(strings.ToLower(e.dir)),
	}, more...)
}

func (e *engine) start(more ...string) {
	e.t.Helper()
	e.log = &syncBuffer{}
	command := append(append(slices.Clone(e.under), program), e.args(more...)...)
	e.cmd = exec.Command(command[0], command[1:]...)
	e.cmd.Stderr = e.log
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := e.cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	e.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) { _ = cmd.Wait(); close(done) }(e.cmd, e.done)
	until(e.t, "the engine listens", 30*time.Second, func() bool {
		select {
		case <-e.done:
			e.t.Fatalf("the engine ended:\n%s", e.log)
		default:
		}
		return strings.Contains(e.log.String(), "engine listening")
	})
}

// stop ends the engine politely and waits.
func (e *engine) stop() {
	e.t.Helper()
	_ = e.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-e.done:
	case <-time.After(60 * time.Second):
		_ = e.cmd.Process.Kill()
		<-e.done
		e.t.Errorf("the engine did not end on TERM:\n%s", e.log)
	}
}

// kill ends it as a crash would.
func (e *engine) kill() {
	e.t.Helper()
	_ = e.cmd.Process.Kill()
	<-e.done
}

// env is what a program needs to use this engine.
func (e *engine) env() []string {
	return append(npmEnv(), "SANDBOXD_ENGINE="+e.socket, "SANDBOXD_CACHE="+cache, "SANDBOXD_OPERATOR="+operator)
}

// writeOperator trusts the addresses of the registry that this machine's npm
// uses, where they are not public.
func writeOperator(file string) error {
	out, err := exec.Command("npm", "config", "get", "registry").Output()
	if err != nil {
		return err
	}
	u, err := url.Parse(strings.TrimSpace(string(out)))
	if err != nil {
		return err
	}
	addrs, err := (&net.Resolver{}).LookupNetIP(context.Background(), "ip", u.Hostname())
	if err != nil {
		return err
	}
	text := "{}"
	for _, a := range addrs {
		if p := netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()); netguard.CheckTrusted(p) == nil {
			text = fmt.Sprintf("registries: {npm: {trusted_cidrs: [%s]}}", p)
		}
	}
	return os.WriteFile(file, []byte(text), 0o644)
}

// npmEnv passes on what this machine's npm needs to trust its registry.
func npmEnv() []string {
	var out []string
	for _, kv := range os.Environ() {
		k, _, _ := strings.Cut(kv, "=")
		if k == "NODE_EXTRA_CA_CERTS" || strings.HasPrefix(k, "SSL_CERT") || strings.HasPrefix(strings.ToLower(k), "npm_config_") {
			out = append(out, kv)
		}
	}
	return out
}

// buildImage seals an image as the ordinary user, in the machine's own
// network, so that later runs need none, and without a sandbox, so that it
// needs no engine: the tests of the builder have one.
func buildImage(t testing.TB, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	cmd := lab.UserCommand(ctx, lab.UserDir(t), program, append([]string{"image", "build", "--build-unsandboxed"}, args...)...)
	cmd.Env = append(cmd.Env, append(npmEnv(), "SANDBOXD_CACHE="+cache)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("image build %v: %v\n%s", args, err, out)
	}
}

// until waits for a condition; a test that hangs says for what.
func until(t testing.TB, what string, bound time.Duration, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(bound)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", bound, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// syncBuffer collects output that another goroutine writes.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// buildProgram builds it as make does: static, since doctor's proof runs this
// very program inside an image that holds nothing else.
func buildProgram() ([]byte, error) {
	cmd := exec.Command("go", "build", "-trimpath", "-o", program, "../../cmd/sandboxd")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	return cmd.CombinedOutput()
}
