//go:build linux

package engine

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/container"
)

// rawPeer is a caller that may break every rule.
type rawPeer struct {
	*packetConn
	t *testing.T
}

func dialRaw(t *testing.T, e *testEngine, hello bool) rawPeer {
	t.Helper()
	c, err := net.Dial("unixpacket", e.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	p := rawPeer{newPacketConn(c.(*net.UnixConn)), t}
	if hello {
		p.must(1, &helloMsg{Version: protocolVersion})
		p.expect(1, kindWelcome)
	}
	return p
}

func (p rawPeer) must(id uint32, m message, files ...*os.File) {
	p.t.Helper()
	if err := p.send(id, m, files...); err != nil {
		p.t.Fatal(err)
	}
}

func (p rawPeer) expect(id uint32, k kind) message {
	p.t.Helper()
	got, m, files, err := p.recv()
	closeAll(files)
	if err != nil {
		p.t.Fatalf("waiting for %s: %v", k, err)
	}
	if got != id || m.kind() != k {
		p.t.Fatalf("got %s for %d: %+v; want %s for %d", m.kind(), got, m, k, id)
	}
	return m
}

// expectEnd drains until the engine has closed the connection.
func (p rawPeer) expectEnd() {
	p.t.Helper()
	for {
		_, _, files, err := p.recv()
		closeAll(files)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil && !errors.Is(err, syscall.ECONNRESET) {
			p.t.Fatalf("waiting for the end: %v", err)
		}
	}
}

func (p rawPeer) raw(b []byte, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	_, _, err := p.c.WriteMsgUnix(b, oob, nil)
	return err
}

func withImage(t *testing.T, e *testEngine) sandbox.Image {
	t.Helper()
	image := layout(t, t.Name())
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	e.host.images[image.Digest] = true
	return image
}

// TestHostileMessages: whatever a caller sends, its connection ends, its
// sandboxes with it, and other callers notice nothing.
func TestHostileMessages(t *testing.T) {
	e := startEngine(t, nil)
	image := withImage(t, e)
	neighbour := dialTest(t, e)
	quiet, err := neighbour.Start(t.Context(), testSpec(image, "/bin/cat"), nil)
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	fds := func(n int) []int {
		list := make([]int, n)
		for i := range list {
			list[i] = int(null.Fd())
		}
		return list
	}
	start := &startMsg{Spec: testSpec(image, "/bin/sleep", "600")}
	for name, attack := range map[string]func(p rawPeer) error{
		"garbage":             func(p rawPeer) error { return p.raw([]byte("GET / HTTP/1.1\r\n\r\n")) },
		"one byte":            func(p rawPeer) error { return p.raw([]byte{4}) },
		"half a start":        func(p rawPeer) error { b := marshal(3, start); return p.raw(b[:len(b)/2]) },
		"a start and more":    func(p rawPeer) error { return p.raw(append(marshal(3, start), 0)) },
		"an unknown kind":     func(p rawPeer) error { return p.raw([]byte{77, 0, 0, 0, 3}) },
		"a reply":             func(p rawPeer) error { return p.send(3, &doneMsg{}) },
		"an exit":             func(p rawPeer) error { return p.send(2, &exitedMsg{}) },
		"hello again":         func(p rawPeer) error { return p.send(3, &helloMsg{Version: protocolVersion}) },
		"an id in use":        func(p rawPeer) error { return p.send(2, start) },
		"a stray descriptor":  func(p rawPeer) error { return p.send(3, &listMsg{}, null) },
		"a missing mount":     func(p rawPeer) error { return p.raw(marshal(3, start), fds(1)...) },
		"too many":            func(p rawPeer) error { return p.raw(marshal(3, start), fds(maxFiles+1)...) },
		"253 descriptors":     func(p rawPeer) error { return p.raw(marshal(3, start), fds(253)...) },
		"descriptors alone":   func(p rawPeer) error { return p.raw([]byte{0}, fds(3)...) },
		"a big message":       func(p rawPeer) error { return p.raw(make([]byte, maxMessage+1)) },
		"an empty message":    func(p rawPeer) error { return p.raw([]byte{}) },
		"a closed connection": func(p rawPeer) error { p.close(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			p := dialRaw(t, e, true)
			p.must(2, start)
			p.expect(2, kindStarted)
			if err := attack(p); err != nil {
				t.Fatal(err)
			}
			if name != "a closed connection" {
				p.expectEnd()
			}
			e.host.await(t, "the attacker's sandbox to go", func() bool { return len(e.host.boxes) == 1 })
		})
	}
	if _, err := quiet.Stdio().In.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	if n, err := quiet.Stdio().Out.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Error(n, err)
	}
}

func TestHelloComesFirst(t *testing.T) {
	e := startEngine(t, nil)
	for name, m := range map[string]message{
		"list": &listMsg{}, "an old version": &helloMsg{}, "a start": &startMsg{},
	} {
		p := dialRaw(t, e, false)
		p.must(1, m)
		p.expectEnd()
		e.host.mu.Lock()
		if n := len(e.host.requests); n > 0 {
			t.Errorf("%s: %d starts", name, n)
		}
		e.host.mu.Unlock()
	}
}

// TestCallersCannotReachOthers: an id on one connection means nothing on
// another, whoever asks.
func TestCallersCannotReachOthers(t *testing.T) {
	e := startEngine(t, nil)
	image := withImage(t, e)
	owner, other := dialRaw(t, e, true), dialRaw(t, e, true)
	owner.must(2, &startMsg{Spec: testSpec(image, "/bin/sleep", "600"), Gateway: true})
	owner.expect(2, kindStarted)
	open := []container.Opening{{Prefix: netip.MustParsePrefix("192.0.2.1/32"), Ports: []uint16{443}, TTL: time.Minute}}
	for id := range uint32(8) {
		other.must(100+id, &openMsg{Target: id, Open: open})
		if m := other.expect(100+id, kindError).(*errorMsg); m.Code != codeClosed {
			t.Errorf("open on %d: %+v", id, m)
		}
		other.must(200+id, &stopMsg{Target: id, Kill: true})
		other.expect(200+id, kindDone)
	}
	owner.must(3, &openMsg{Target: 2, Open: open})
	owner.expect(3, kindDone)
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	if len(e.host.boxes) != 1 {
		t.Errorf("%d boxes, want 1", len(e.host.boxes))
	}
	for _, b := range e.host.boxes {
		b.mu.Lock()
		if len(b.opened) != 1 {
			t.Errorf("%d openings, want 1", len(b.opened))
		}
		b.mu.Unlock()
	}
}

func TestRequestsAreBounded(t *testing.T) {
	e := startEngine(t, nil)
	image := withImage(t, e)
	p := dialRaw(t, e, true)
	spec := func(change func(*startMsg)) *startMsg {
		m := &startMsg{Spec: testSpec(image, "/bin/sleep", "600"), Gateway: true}
		change(m)
		return m
	}
	opening := func(prefix string, ports ...uint16) []container.Opening {
		return []container.Opening{{Prefix: netip.MustParsePrefix(prefix), Ports: ports}}
	}
	for name, m := range map[string]*startMsg{
		"no program":         spec(func(m *startMsg) { m.Spec.Args = nil }),
		"a NUL argument":     spec(func(m *startMsg) { m.Spec.Args = []string{"a\x00b"} }),
		"no environment key": spec(func(m *startMsg) { m.Spec.Env = []string{"=x"} }),
		"a digest path":      spec(func(m *startMsg) { m.Spec.Image.Digest = "../../etc/passwd" }),
		"a relative folder":  spec(func(m *startMsg) { m.Spec.Dir = "a" }),
		"an unclean folder":  spec(func(m *startMsg) { m.Spec.Dir = "/a/../b" }),
		"a name with lines":  spec(func(m *startMsg) { m.Spec.Name = "a\nb" }),
		"all the memory":     spec(func(m *startMsg) { m.Spec.Limits.MemoryBytes = 1 << 62 }),
		"all the processes":  spec(func(m *startMsg) { m.Spec.Limits.PIDs = 1 << 22 }),
		"a long grace":       spec(func(m *startMsg) { m.Spec.Limits.StopGrace = time.Hour }),
		"a mapped address":   spec(func(m *startMsg) { m.Open = opening("::ffff:10.0.0.0/104") }),
		"host bits":          spec(func(m *startMsg) { m.Open = opening("192.0.2.1/24") }),
		"port 0":             spec(func(m *startMsg) { m.Open = opening("192.0.2.0/24", 0) }),
		"no gateway":         spec(func(m *startMsg) { m.Open, m.Gateway = opening("192.0.2.0/24"), false }),
	} {
		p.must(7, m)
		if r := p.expect(7, kindError).(*errorMsg); r.Code != codeInvalid {
			t.Errorf("%s: %+v", name, r)
		}
	}
	p.must(7, spec(func(m *startMsg) { m.Spec.Isolation = sandbox.Kata }))
	if r := p.expect(7, kindError).(*errorMsg); r.Code != codeUnavailable || r.Tier != sandbox.Kata {
		t.Errorf("kata: %+v", r)
	}
	p.must(8, &startMsg{Spec: testSpec(image, "/bin/sleep", "600"), Gateway: true})
	p.expect(8, kindStarted)
	p.must(9, &openMsg{Target: 8, Open: opening("192.0.2.0/24", 443)})
	if r := p.expect(9, kindError).(*errorMsg); r.Code != codeInvalid {
		t.Errorf("an opening for ever: %+v", r)
	}
	// Distinct endpoints run out; the same one again costs nothing.
	quota := false
	for i := range 2 * maxLiveOpenings / maxPorts {
		o := container.Opening{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 32), TTL: time.Hour}
		for port := range uint16(maxPorts) {
			o.Ports = append(o.Ports, port+1)
		}
		p.must(10, &openMsg{Target: 8, Open: []container.Opening{o}})
		_, m, _, err := p.recv()
		if err != nil {
			t.Fatal(err)
		}
		if r, ok := m.(*errorMsg); ok {
			quota = r.Code == codeQuota && i == maxLiveOpenings/maxPorts
			break
		}
	}
	if !quota {
		t.Error("openings did not run out where they should")
	}
}

// TestMountsAreChecked: only folders and regular files that hold data.
func TestMountsAreChecked(t *testing.T) {
	e := startEngine(t, nil)
	image := withImage(t, e)
	dir := publicDir(t)
	fifo := dir + "/fifo"
	if err := unix.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	open := func(path string, flags int) *os.File {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), path)
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = r.Close(), w.Close() }()
	p := dialRaw(t, e, true)
	for name, tc := range map[string]struct {
		f      *os.File
		target string
	}{
		"no O_PATH":      {open(dir, unix.O_RDONLY), "/m"},
		"a pipe":         {r, "/m"},
		"a fifo":         {open(fifo, unix.O_PATH), "/m"},
		"a device":       {open("/dev/null", unix.O_PATH), "/m"},
		"the devices":    {open("/dev", unix.O_PATH), "/m"},
		"proc":           {open("/proc", unix.O_PATH), "/m"},
		"a file in proc": {open("/proc/self/environ", unix.O_PATH), "/m"},
		"sysfs":          {open("/sys", unix.O_PATH), "/m"},
		"a namespace":    {open("/proc/self/ns/net", unix.O_PATH), "/m"},
		"a socket":       {open(e.socket, unix.O_PATH), "/m"},
		"a symlink":      {open("/proc/self/exe", unix.O_PATH|unix.O_NOFOLLOW), "/m"},
		"over proc":      {open(dir, unix.O_PATH), "/proc/sys"},
		"over dev":       {open(dir, unix.O_PATH), "/dev"},
		"over root":      {open(dir, unix.O_PATH), "/"},
		"unclean":        {open(dir, unix.O_PATH), "/a/../etc"},
		"NUL":            {open(dir, unix.O_PATH), "/a\x00"},
	} {
		m := &startMsg{Spec: testSpec(image, "/bin/sleep", "600")}
		m.Spec.Mounts = []sandbox.Mount{{Target: tc.target}}
		p.must(5, m, tc.f)
		if r := p.expect(5, kindError).(*errorMsg); r.Code != codeInvalid {
			t.Errorf("%s: %+v", name, r)
		}
	}
	m := &startMsg{Spec: testSpec(image, "/bin/sleep", "600")}
	m.Spec.Mounts = []sandbox.Mount{{Target: "/m"}}
	p.must(6, m, open(dir, unix.O_PATH))
	p.expect(6, kindStarted)
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	if got := e.host.mounted; len(got) != 1 || got[0] != dir {
		t.Errorf("mounted %q", got)
	}
}

// TestCallerThatTakesNoReplies fills its own queue; it is dropped, and the
// engine serves on.
func TestCallerThatTakesNoReplies(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the write timeout")
	}
	e := startEngine(t, nil)
	image := withImage(t, e)
	p := dialRaw(t, e, true)
	p.must(2, &startMsg{Spec: testSpec(image, "/bin/sleep", "600")})
	p.expect(2, kindStarted)
	b := marshal(0, &listMsg{})
	for id := uint32(10); ; id++ {
		b[1], b[2], b[3], b[4] = byte(id>>24), byte(id>>16), byte(id>>8), byte(id)
		if p.raw(bytes.Clone(b)) != nil {
			break
		}
	}
	e.host.awaitEmpty(t)
	c := dialTest(t, e)
	if _, err := c.List(t.Context()); err != nil {
		t.Error(err)
	}
}
