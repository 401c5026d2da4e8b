//go:build linux

package engine

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/container"
	"github.com/sandboxd/sandboxd/sandbox/container/daemon"
)

// startRealEngine serves real containers on a containerd of the test's own.
func startRealEngine(t *testing.T, group string) (*Server, string) {
	t.Helper()
	lack := func(what string) {
		t.Helper()
		if os.Getenv("CI") != "" {
			t.Fatal(what)
		}
		t.Skip(what)
	}
	if os.Geteuid() != 0 {
		lack("containers need root")
	}
	parts := os.Getenv("SANDBOXD_ENGINE_DIR")
	if parts == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		parts = filepath.Join(cache, "sandboxd", "engine", "current")
	}
	if _, err := os.Stat(filepath.Join(parts, "containerd")); err != nil {
		lack("containers need the engine's parts: run make engine")
	}
	dir := publicDir(t)
	logger := slog.New(slog.NewTextHandler(&testLog{t: t}, &slog.HandlerOptions{Level: slog.LevelInfo}))
	d, err := daemon.Start(t.Context(), daemon.Config{
		System: "none", BinDir: parts, Root: filepath.Join(dir, "root"), State: filepath.Join(dir, "s"), Logger: logger,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	host, err := container.New(container.Config{
		Address: d.Address(), Runc: filepath.Join(parts, "runc"), Runsc: filepath.Join(parts, "runsc"),
		Shim: filepath.Join(parts, "containerd-shim-runc-v2"), Init: filepath.Join(parts, "sandbox-init"),
		StateDir: filepath.Join(dir, "state"), Instance: fmt.Sprintf("engine-test-%d", os.Getpid()), Logger: logger,
	})
	if err != nil {
		t.Fatal(err)
	}
	sockets := filepath.Join(dir, "run")
	srv, err := NewServer(Config{
		Socket: filepath.Join(sockets, "engine.sock"), Group: group, Logger: logger,
		Tiers: []sandbox.Isolation{sandbox.Container, sandbox.GVisor},
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(context.Background(), host) }()
	t.Cleanup(func() {
		if err := errors.Join(srv.Close(context.Background()), <-ended); err != nil {
			t.Error(err)
		}
	})
	awaitSocket(t, srv.cfg.Socket)
	return srv, srv.cfg.Socket
}

// testLog logs to the test while it runs.
type testLog struct{ t *testing.T }

func (w *testLog) Write(b []byte) (int, error) {
	w.t.Logf("%s", bytes.TrimSpace(b))
	return len(b), nil
}

// guestImage builds an image of the guest and nothing else.
func guestImage(t *testing.T) sandbox.Image {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "guest")
	build := exec.Command("go", "build", "-trimpath", "-o", bin, "./testdata/guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return imageOf(t, bin)
}

// imageOf makes an image of a program and nothing else.
func imageOf(t *testing.T, bin string) sandbox.Image {
	t.Helper()
	b, err := os.ReadFile(bin)
	if err != nil {
		t.Fatal(err)
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	passwd := "mcp:x:65532:65532::/home/mcp:/none\n"
	for _, f := range []struct {
		name    string
		mode    int64
		content string
	}{{"etc/", 0o755, ""}, {"home/mcp/", 0o755, ""}, {"tmp/", 0o1777, ""}, {"etc/passwd", 0o644, passwd}, {"guest", 0o755, string(b)}} {
		h := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), Typeflag: tar.TypeReg}
		if strings.HasSuffix(f.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return layoutOf(t, layer.Bytes())
}

// tableEgress answers look-ups from a table and tells each connection where it
// wanted to go.
type tableEgress struct {
	mu      sync.Mutex
	refused []string
	seen    chan struct{}
	closed  bool
}

func (e *tableEgress) DialContext(context.Context, string, string) (net.Conn, error) {
	return nil, errors.ErrUnsupported
}

func (e *tableEgress) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	return nil
}

func (*tableEgress) Literals() iter.Seq2[netip.Prefix, []uint16] {
	return func(yield func(netip.Prefix, []uint16) bool) {
		_ = yield(netip.MustParsePrefix("203.0.113.0/24"), []uint16{8080}) && yield(netip.MustParsePrefix("2001:db8:1::/64"), nil)
	}
}

func (*tableEgress) Resolve(_ context.Context, query []byte, pin func([]netip.AddrPort, time.Duration) error) ([]byte, error) {
	m := new(dns.Msg)
	if err := m.Unpack(query); err != nil {
		return nil, err
	}
	r := new(dns.Msg).SetReply(m)
	q := m.Question[0]
	if q.Name != "ok.test." {
		return r.SetRcode(m, dns.RcodeNameError).Pack()
	}
	var addr netip.Addr
	switch q.Qtype {
	case dns.TypeA:
		addr = netip.MustParseAddr("192.0.2.80")
		r.Answer = append(r.Answer, &dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: 60}, A: addr.AsSlice()})
	case dns.TypeAAAA:
		addr = netip.MustParseAddr("2001:db8::80")
		r.Answer = append(r.Answer, &dns.AAAA{Hdr: dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: 60}, AAAA: addr.AsSlice()})
	default:
		return r.Pack()
	}
	if err := pin([]netip.AddrPort{netip.AddrPortFrom(addr, 80), netip.AddrPortFrom(addr, 443)}, time.Minute); err != nil {
		return nil, err
	}
	return r.Pack()
}

func (*tableEgress) ServeConn(_ context.Context, c net.Conn, dst netip.AddrPort) {
	_, _ = io.WriteString(c, dst.String()+"\n")
}

func (e *tableEgress) Refused(network string, dst netip.AddrPort) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refused = append(e.refused, network+" "+dst.String())
	select {
	case e.seen <- struct{}{}:
	default:
	}
}

// ask has the guest do one thing.
func ask(t *testing.T, sb sandbox.Sandbox, out *bufio.Reader, line string) string {
	t.Helper()
	if _, err := io.WriteString(sb.Stdio().In, line+"\n"); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	got, err := out.ReadString('\n')
	if err != nil {
		rest, _ := io.ReadAll(sb.Stdio().Err)
		t.Fatalf("%s: %v: %s", line, err, rest)
	}
	return strings.TrimSpace(got)
}

// TestRealContainers runs both tiers end to end: image, mounts, streams,
// egress through the caller, exit, and nothing left.
func TestRealContainers(t *testing.T) {
	srv, socket := startRealEngine(t, "")
	image := guestImage(t)
	c, err := Dial(t.Context(), ClientConfig{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	for _, tier := range []sandbox.Isolation{sandbox.Container, sandbox.GVisor} {
		t.Run(tier.String(), func(t *testing.T) {
			data := publicDir(t)
			if err := os.WriteFile(filepath.Join(data, "f"), []byte("of the host"), 0o644); err != nil {
				t.Fatal(err)
			}
			source, err := os.Open(data)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = source.Close() }()
			e := &tableEgress{seen: make(chan struct{}, 1)}
			spec := sandbox.Spec{
				Tenant: "t", Name: "guest", Isolation: tier, Image: image, Args: []string{"/guest"},
				Mounts: []sandbox.Mount{{Source: source, Target: "/data"}},
				Limits: sandbox.Limits{StopGrace: 500 * time.Millisecond},
			}
			sb, err := c.Start(t.Context(), spec, e)
			if err != nil {
				t.Fatal(err)
			}
			out := bufio.NewReader(sb.Stdio().Out)
			var got []string
			lines := []string{
				"echo hello", "read /data/f", "lookup ok.test", "lookup other.test",
				"tcp 192.0.2.80:80", "tcp [2001:db8::80]:443", "tcp ok.test:443", "tcp 203.0.113.9:8080", "tcp [2001:db8:1::5]:22",
				"tcp 192.0.2.80:81", "tcp 203.0.113.9:8081", "tcp 169.254.169.254:80", "tcp [2001:db8:2::1]:80",
			}
			for _, line := range lines {
				a := ask(t, sb, out, line)
				if strings.HasPrefix(a, "error: lookup other.test") {
					a = "no such host"
				}
				if line == "tcp ok.test:443" {
					a = strings.TrimPrefix(strings.TrimPrefix(a, "192.0.2.80"), "[2001:db8::80]")
				}
				got = append(got, a)
			}
			want := []string{
				"hello", "of the host", "192.0.2.80 2001:db8::80", "no such host",
				"192.0.2.80:80", "[2001:db8::80]:443", ":443", "203.0.113.9:8080", "[2001:db8:1::5]:22",
				"refused", "refused", "refused", "refused",
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			if a := ask(t, sb, out, "write /data/g"); !strings.HasPrefix(a, "error: ") {
				t.Errorf("a read-only mount was written: %s", a)
			}
			e.await(t, "tcp 169.254.169.254:80")
			list, err := c.List(t.Context())
			if err != nil || len(list) != 1 || list[0].ID != sb.ID() || list[0].Isolation != tier {
				t.Errorf("list %+v, %v", list, err)
			}
			if err := sb.Stdio().In.Close(); err != nil {
				t.Error(err)
			}
			if exit, err := sb.Wait(t.Context()); err != nil || exit.Cause != sandbox.Exited || exit.Code != 0 {
				t.Errorf("exit %+v, %v", exit, err)
			}
			if _, err := out.ReadByte(); !errors.Is(err, io.EOF) {
				t.Errorf("stdout after the end: %v", err)
			}
			if err := sb.Close(t.Context()); err != nil || !e.closed {
				t.Errorf("Close: %v, egress closed %v", err, e.closed)
			}
		})
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	awaitNoPeers(t, &testEngine{srv: srv})
}

func (e *tableEgress) await(t *testing.T, report string) {
	t.Helper()
	late := time.After(10 * time.Second)
	for {
		e.mu.Lock()
		found := strings.Contains(strings.Join(e.refused, "\n"), report)
		e.mu.Unlock()
		if found {
			return
		}
		select {
		case <-e.seen:
		case <-late:
			t.Fatalf("no report of %s among %q", report, e.refused)
		}
	}
}

// TestRealCallerKilled: an ordinary user starts real containers and is killed
// at random points; nothing of them is left.
func TestRealCallerKilled(t *testing.T) {
	srv, socket := startRealEngine(t, fmt.Sprint(ordinarySupplementary))
	image := guestImage(t)
	rounds := 4
	if testing.Short() {
		rounds = 2
	}
	for i := range rounds {
		cmd, _, out := asUser(t, userTask{Socket: socket, Image: image, Starts: 3, Command: []string{"/guest"}}, ordinarySupplementary)
		for range i % 4 {
			if !out.Scan() || out.Text() != "started" {
				t.Fatalf("round %d: %q", i, out.Text())
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		awaitNoPeers(t, &testEngine{srv: srv})
		expectNothingLeft(t, filepath.Dir(filepath.Dir(socket)))
	}
}

// expectNothingLeft looks for guests, their shims and their mounts.
func expectNothingLeft(t *testing.T, dir string) {
	t.Helper()
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		b, _ := os.ReadFile(p) // gone meanwhile
		line := strings.ReplaceAll(string(b), "\x00", " ")
		if strings.HasPrefix(line, "/guest ") || strings.Contains(line, "shim") && strings.Contains(line, dir) {
			t.Errorf("left running: %s: %s", p, line)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir) {
			t.Errorf("left mounted: %s", line)
		}
	}
}

// TestRealUsersFolder: an ordinary user's folders, one read-only and one not,
// through id-mapped mounts.
func TestRealUsersFolder(t *testing.T) {
	_, socket := startRealEngine(t, fmt.Sprint(ordinarySupplementary))
	image := guestImage(t)
	// A user of the password file: the mount's ids come from there.
	const uid, gid = 1, 1
	if u, err := user.LookupId("1"); err != nil || u.Gid != "1" {
		t.Fatalf("user 1: %+v, %v", u, err)
	}
	var mounts []userMount
	for _, write := range []bool{false, true} {
		dir := publicDir(t)
		file := filepath.Join(dir, "f")
		if err := errors.Join(os.WriteFile(file, []byte("private"), 0o600), os.Chown(file, uid, gid), os.Chown(dir, uid, gid)); err != nil {
			t.Fatal(err)
		}
		mounts = append(mounts, userMount{dir, write})
	}
	_, _, out := asUser(t, userTask{
		Socket: socket, Image: image, UID: uid, GID: gid, Mounts: mounts, Command: []string{"/guest"},
		Ask: []string{"read /m0/f", "write /m0/g", "write /m1/g", "read /m1/f"},
	}, ordinarySupplementary)
	var got []string
	for out.Scan() {
		got = append(got, out.Text())
	}
	want := []string{"private", "error: open /m0/g: read-only file system", "ok", "private"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	fi, err := os.Stat(filepath.Join(mounts[1].Path, "g"))
	if err != nil || fi.Sys().(*syscall.Stat_t).Uid != uid {
		t.Errorf("what the guest wrote: %+v, %v", fi, err)
	}
}
