//go:build linux

package wasm_test

import (
	"bufio"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/sandbox"
)

// tcpServer runs handle for each connection until the test ends.
func tcpServer(t testing.TB, handle func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				handle(c)
			}()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return l.Addr().String()
}

func echoLines(c net.Conn) {
	s := bufio.NewScanner(c)
	for s.Scan() {
		if s.Text() == "ping 0" || strings.HasPrefix(s.Text(), "ping") || s.Text() == "hello" {
			fmt.Fprintln(c, s.Text())
		}
	}
}

func hostPort(url string) string { return url[strings.Index(url, "//")+2:] }

func TestHTTPThroughEgress(t *testing.T) {
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/redirect" {
				http.Redirect(w, r, "http://refused.test/", http.StatusFound)
				return
			}
			fmt.Fprintf(w, "hello %s", r.Host)
		}))
		defer plain.Close()
		secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.Copy(w, io.LimitReader(zeros{}, 5<<20))
		}))
		defer secure.Close()
		ca := filepath.Join(t.TempDir(), "ca.pem")
		if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o600); err != nil {
			t.Fatal(err)
		}
		e := newEgress(map[string]string{"allowed.test:80": hostPort(plain.URL), "example.com:443": hostPort(secure.URL), "wrong-name.test:443": hostPort(secure.URL)})
		s := spec(t, tier, "get", "http://allowed.test/", "https://example.com/", "http://allowed.test/redirect", "http://other.test/", "https://wrong-name.test/", "http://169.254.169.254/", "http://[::1]:80/")
		s.Env = []string{"SSL_CERT_FILE=/etc/ssl/ca.pem"}
		s.Mounts = []sandbox.Mount{mount(t, ca, "/etc/ssl/ca.pem", false)}
		sb := start(t, newRuntime(t), s, e)
		for _, want := range []string{
			`status=200 bytes=18 err=<nil> body="hello allowed.test"`,
			`status=200 bytes=5242880 err=<nil>`,
			`error: Get "http://refused.test/": dial tcp: connect: Connection refused`,
			`error: Get "http://other.test/": dial tcp: connect: Connection refused`,
			`error: Get "https://wrong-name.test/": tls: failed to verify certificate`,
			`error: Get "http://169.254.169.254/": dial tcp: connect: Connection refused`,
			`error: Get "http://[::1]:80/": dial tcp: connect: Connection refused`,
		} {
			if got := sb.line(); !strings.HasPrefix(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		want := []string{
			"tcp allowed.test:80", "tcp example.com:443", "tcp refused.test:80", "tcp other.test:80", "tcp wrong-name.test:443", "tcp 169.254.169.254:80", "tcp [::1]:80",
		}
		if d := cmp.Diff(want, e.log()); d != "" {
			t.Errorf("asked of the egress: %s", d)
		}
	})
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func TestRefusals(t *testing.T) {
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		e := newEgress(map[string]string{"hang.test:80": "hang", "closed.test:80": "127.0.0.1:1"})
		sb := start(t, newRuntime(t), spec(t, tier, "dial", "refused.test:80", "other.test:80", "hang.test:80", "closed.test:80", "bad_name!:80", "10.0.0.1:22"), checkingEgress{e})
		for _, want := range []string{
			"refused.test:80: error: dial tcp: lookup refused.test: Permission denied (true)",
			"other.test:80: error: dial tcp: connect: Connection refused (true)",
			"hang.test:80: error: dial tcp: context deadline exceeded (false)",
			"closed.test:80: error: dial tcp: connect: Connection refused (true)",
			"bad_name!:80: error: dial tcp: lookup bad_name!: No such file or directory (true)",
			"10.0.0.1:22: error: dial tcp: connect: Connection refused (true)",
		} {
			sb.expect(want)
		}
		for _, a := range e.log() {
			if strings.Contains(a, "refused.test") || strings.Contains(a, "bad_name") {
				t.Errorf("a refused look-up still dialled: %s", a)
			}
		}
	})
}

func TestNoEgressNoNetwork(t *testing.T) {
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		sb := start(t, newRuntime(t), spec(t, tier, "dial", "allowed.test:80", "127.0.0.1:80"), nil)
		sb.expect("allowed.test:80: error: dial tcp: lookup allowed.test: Permission denied (true)")
		sb.expect("127.0.0.1:80: error: dial tcp: lookup 127.0.0.1: Permission denied (true)")
	})
}

func TestConversation(t *testing.T) {
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		e := newEgress(map[string]string{"echo.test:7": tcpServer(t, echoLines)})
		sb := start(t, newRuntime(t), spec(t, tier, "pingpong", "echo.test:7"), e)
		sb.expect("remote 198.18.0.1:7")
		sb.expect("done")
	})
}

func TestHalfClose(t *testing.T) {
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		e := newEgress(map[string]string{"count.test:9": tcpServer(t, func(c net.Conn) {
			n, err := io.Copy(io.Discard, c)
			fmt.Fprintf(c, "%d,%v", n, err)
		})})
		sb := start(t, newRuntime(t), spec(t, tier, "half", "count.test:9"), e)
		sb.expect("sent=1048576 got=1048576,<nil> err=<nil>")
	})
}

func TestManyConnections(t *testing.T) {
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		e := newEgress(map[string]string{"echo.test:7": tcpServer(t, echoLines)})
		sb := start(t, newRuntime(t), spec(t, tier, "many", "echo.test:7", "300"), e)
		sb.expect("ok=300 errors=map[]")
		s := spec(t, tier, "many", "echo.test:7", "40")
		s.Limits.Files = 20 // three of them are the standard streams
		e = newEgress(map[string]string{"echo.test:7": tcpServer(t, echoLines)})
		sb = start(t, newRuntime(t), s, e)
		sb.expect("ok=17 errors=map[dial tcp: sock_open: Too many open files:23]")
	})
}

// TestCloseCutsConnections: what a guest leaves open ends with it.
func TestCloseCutsConnections(t *testing.T) {
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		came, gone := make(chan struct{}), make(chan error, 1)
		e := newEgress(map[string]string{"echo.test:7": tcpServer(t, func(c net.Conn) {
			close(came)
			_, err := io.Copy(io.Discard, c)
			gone <- err
		})})
		sb := start(t, newRuntime(t), spec(t, tier, "many", "echo.test:7", "1"), e) // waits for an answer for ever
		select {
		case <-came:
		case <-time.After(time.Minute):
			t.Fatal("no connection")
		}
		if err := sb.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		select {
		case <-gone:
		case <-time.After(5 * time.Second):
			t.Error("the connection is still open")
		}
	})
}

// TestClosedSocketsFreeTheirConnections: a guest that opens and closes many
// connections, to a server that never closes one, stays within its limit.
func TestClosedSocketsFreeTheirConnections(t *testing.T) {
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		release := make(chan struct{})
		defer close(release)
		e := newEgress(map[string]string{"sink.test:9": tcpServer(t, func(net.Conn) {
			<-release
		})})
		s := spec(t, tier, append([]string{"dial"}, repeat("sink.test:9", 100)...)...)
		s.Limits.Files = 20
		sb := start(t, newRuntime(t), s, e)
		for range 100 {
			sb.expect("sink.test:9: ok")
		}
	})
}

func TestDescriptorGuessing(t *testing.T) {
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		s := spec(t, tier, "fds")
		s.Mounts = []sandbox.Mount{mount(t, t.TempDir(), "/d", false)}
		sb := start(t, newRuntime(t), s, newEgress(nil))
		sb.expect("open: 0 1 2 3 4 5 ") // the mount, HOME and /tmp
	})
}

func TestSocketAfterClose(t *testing.T) {
	e := newEgress(map[string]string{"echo.test:7": tcpServer(t, echoLines)})
	sb := start(t, newRuntime(t), spec(t, sandbox.WASMInProcess, "reuse", "echo.test:7"), e)
	sb.expect("8 8 8 8")
}

// TestForgedAddresses: an address that stands for a name works for the guest
// alone that looked the name up; for others it is a literal like any other.
func TestForgedAddresses(t *testing.T) {
	e := newEgress(map[string]string{"allowed.test:80": "hang"})
	r := newRuntime(t)
	first := start(t, r, spec(t, sandbox.WASMInProcess, "dial", "allowed.test:80"), newEgress(map[string]string{"allowed.test:80": tcpServer(t, echoLines)}))
	first.expect("allowed.test:80: ok")
	sb := start(t, r, spec(t, sandbox.WASMInProcess, "forge"), e)
	for _, a := range []string{"198.18.0.1:80", "198.18.0.2:80", "198.19.255.255:80"} {
		sb.expect(a + " dial tcp: connect: Connection refused")
	}
	sb.expect("lookup <nil>")
	if d := cmp.Diff([]string{"tcp 198.18.0.1:80", "tcp 198.18.0.2:80", "tcp 198.19.255.255:80"}, e.log()); d != "" {
		t.Error(d)
	}
}

// TestWildPointers calls the host functions with arguments that no honest
// guest would use. The guest must survive with errors, and so must the host.
func TestWildPointers(t *testing.T) {
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		r := newRuntime(t)
		for seed := range 3 {
			s := spec(t, tier, "fuzz", "20000", fmt.Sprint(seed))
			s.Mounts = []sandbox.Mount{mount(t, t.TempDir(), "/d", true)}
			s.Env = []string{"A=1"}
			sb := start(t, r, s, newEgress(nil))
			sb.expect("survived true")
			if exit := sb.wait(); exit.Cause != sandbox.Exited || exit.Code != 0 {
				t.Errorf("exit %+v", exit)
			}
		}
	})
}
