//go:build linux

package container

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

const refusedText = "connection refused"

// promptly is before the kernel sends a SYN again, in milliseconds: what fails
// by then was refused, not dropped.
const promptly = 900

// guard stands in for the unprivileged reader of the gateway's sockets: it
// answers each connection with the destination that was asked for, and each
// datagram with itself.
type guard struct {
	t  *testing.T
	wg sync.WaitGroup
	up []io.Closer
}

func serveGateway(t *testing.T, f Files) *guard {
	t.Helper()
	g := &guard{t: t}
	for _, file := range []*os.File{f.TCP4, f.TCP6} {
		l, err := net.FileListener(file)
		if err != nil {
			t.Fatal(err)
		}
		g.up = append(g.up, l)
		g.wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				dst, err := originalDestination(c.(*net.TCPConn))
				if err != nil {
					t.Error(err)
				}
				fmt.Fprint(c, "for ", dst)
				_ = c.Close()
			}
		})
	}
	for _, file := range []*os.File{f.UDP4, f.UDP6} {
		c, err := net.FilePacketConn(file)
		if err != nil {
			t.Fatal(err)
		}
		g.up = append(g.up, c)
		g.wg.Go(func() {
			b := make([]byte, 1500)
			for {
				n, from, err := c.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = c.WriteTo(append([]byte("re: "), b[:n]...), from)
			}
		})
	}
	t.Cleanup(g.close)
	return g
}

func (g *guard) close() {
	for _, c := range g.up {
		_ = c.Close()
	}
	g.wg.Wait()
}

func originalDestination(c *net.TCPConn) (netip.AddrPort, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, err
	}
	level, size := unix.SOL_IP, uint32(unix.SizeofSockaddrInet4)
	if c.LocalAddr().(*net.TCPAddr).IP.To4() == nil {
		level, size = unix.SOL_IPV6, unix.SizeofSockaddrInet6
	}
	b := make([]byte, size)
	var errno unix.Errno
	err = raw.Control(func(fd uintptr) {
		const originalDst = 80
		_, _, errno = unix.Syscall6(unix.SYS_GETSOCKOPT, fd, uintptr(level), originalDst,
			uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&size)), 0)
	})
	if err == nil && errno != 0 {
		err = errno
	}
	addr := b[4:8]
	if level == unix.SOL_IPV6 {
		addr = b[8:24]
	}
	a, _ := netip.AddrFromSlice(addr)
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[2:])), err
}

// refusalsSeen reads the reports that have come in, as "proto dst".
func refusalsSeen(t *testing.T, f *os.File) []string {
	t.Helper()
	var out []string
	b := make([]byte, 64<<10)
	for {
		if err := f.SetReadDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		n, err := f.Read(b)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		for m := b[:n]; len(m) >= unix.SizeofNlMsghdr; {
			size := int(binary.NativeEndian.Uint32(m))
			out = append(out, payloads(m[unix.SizeofNlMsghdr+4:size])...)
			m = m[min(len(m), (size+3)&^3):]
		}
	}
}

func payloads(attrs []byte) []string {
	const payload = 9 // NFULA_PAYLOAD
	var out []string
	for len(attrs) >= 4 {
		size, kind := int(binary.NativeEndian.Uint16(attrs)), binary.NativeEndian.Uint16(attrs[2:])
		if kind == payload {
			p := attrs[4:size]
			proto, addr, rest := p[9], p[16:20], p[20:]
			if p[0]>>4 == 6 {
				proto, addr, rest = p[6], p[24:40], p[40:]
			}
			a, _ := netip.AddrFromSlice(addr)
			out = append(out, fmt.Sprintf("%d %s", proto, netip.AddrPortFrom(a, binary.BigEndian.Uint16(rest[2:]))))
		}
		attrs = attrs[min(len(attrs), (size+3)&^3):]
	}
	return out
}

func opening(prefix string, ttl time.Duration, ports ...uint16) Opening {
	return Opening{Prefix: netip.MustParsePrefix(prefix), Ports: ports, TTL: ttl}
}

// startOnline starts a kit with a gateway that is served.
func startOnline(t *testing.T, tier sandbox.Isolation, open ...Opening) (*guest, *guard) {
	t.Helper()
	h := newHost(t)
	req := request()
	req.Spec.Isolation, req.Gateway, req.Open = tier, true, open
	g := start(t, h, req)
	return g, serveGateway(t, g.files)
}

func TestGatewayLetsThroughOnlyWhatIsOpen(t *testing.T) {
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
		g, _ := startOnline(t, tier,
			opening("192.0.2.0/24", 0, 443, 8443), opening("2001:db8:1::/48", 0), opening("203.0.113.7/32", time.Minute, 80))
		for _, dst := range []string{
			"192.0.2.9:443", "192.0.2.255:8443", "203.0.113.7:80", "[2001:db8:1::5]:1", "[2001:db8:1:ffff::5]:65535",
		} {
			if a := g.do("dial", "tcp", dst); a.Err != "" || a.Out != "for "+dst {
				t.Errorf("%s: %q, %s", dst, a.Out, a.Err)
			}
		}
		want := []string{}
		for _, dst := range []string{
			"192.0.2.9:80", "192.0.3.1:443", "203.0.113.7:443", "8.8.8.8:443", "169.254.169.254:80", "10.0.0.1:22",
			"[2001:db8:2::1]:443", "[fe80::1]:80", "[2606:4700::1111]:443", "198.18.0.1:1053", "198.18.0.1:443",
			"[fd73:616e:6462::1]:1053",
		} {
			if strings.HasPrefix(dst, "[fe80") {
				continue // needs a zone: tried below
			}
			a := g.do("dial", "tcp", dst)
			if a.Err != refusedText || a.Ms > promptly {
				t.Errorf("%s: %q, %s after %d ms", dst, a.Out, a.Err, a.Ms)
			}
			want = append(want, "6 "+dst)
		}
		for _, dst := range []string{"192.0.2.9:443", "8.8.8.8:123", "[2001:db8:1::5]:443"} {
			if a := g.do("ask", "udp", dst, "x"); a.Err != refusedText || a.Ms > promptly {
				t.Errorf("udp %s: %q, %s after %d ms", dst, a.Out, a.Err, a.Ms)
			}
			want = append(want, "17 "+dst)
		}
		got := refusalsSeen(t, g.files.Refused)
		for _, w := range want {
			if !slices.Contains(got, w) {
				t.Errorf("no report of %s in %q", w, got)
			}
		}
		if a := g.do("dial", "tcp", "[fe80::1%eth0]:80"); a.Err == "" {
			t.Errorf("link-local answered %q", a.Out)
		}
	})
}

func TestGatewayTakesDNSForAnyResolver(t *testing.T) {
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
		g, _ := startOnline(t, tier)
		for _, dst := range []string{"1.1.1.1:53", "198.18.0.1:53", "[2001:db8::53]:53"} {
			if a := g.do("ask", "udp", dst, "query"); a.Out != "re: query" {
				t.Errorf("udp %s: %q, %s", dst, a.Out, a.Err)
			}
			if a := g.do("dial", "tcp", dst); a.Out != "for "+dst {
				t.Errorf("tcp %s: %q, %s", dst, a.Out, a.Err)
			}
		}
	})
}

func TestOpenAddsAndExtends(t *testing.T) {
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
		g, _ := startOnline(t, tier)
		const dst, dst6 = "203.0.113.1:443", "[2001:db8::1]:443"
		if a := g.do("dial", "tcp", dst); a.Err != refusedText {
			t.Fatalf("before: %q, %s", a.Out, a.Err)
		}
		short := []Opening{opening("203.0.113.1/32", 300*time.Millisecond, 443), opening("2001:db8::1/128", time.Hour)}
		if err := g.box.Open(short); err != nil {
			t.Fatal(err)
		}
		if a := g.do("dial", "tcp", dst6); a.Out != "for "+dst6 {
			t.Errorf("after: %q, %s", a.Out, a.Err)
		}
		if err := g.box.Open([]Opening{opening("203.0.113.1/32", time.Hour, 443)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond) // the first time-out passes
		if a := g.do("dial", "tcp", dst); a.Out != "for "+dst {
			t.Errorf("extended: %q, %s", a.Out, a.Err)
		}
		if err := g.box.Open([]Opening{opening("203.0.113.1/32", 50*time.Millisecond, 443)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(300 * time.Millisecond) // the new one too
		if a := g.do("dial", "tcp", dst); a.Err != refusedText {
			t.Errorf("expired: %q, %s", a.Out, a.Err)
		}
	})
}

func TestNothingIsReachedWithoutListeners(t *testing.T) {
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
		g, guard := startOnline(t, tier, opening("0.0.0.0/0", 0), opening("::/0", 0))
		if a := g.do("dial", "tcp", "192.0.2.1:80"); a.Out != "for 192.0.2.1:80" {
			t.Fatalf("with listeners: %q, %s", a.Out, a.Err)
		}
		guard.close()
		for _, f := range []*os.File{g.files.TCP4, g.files.TCP6, g.files.UDP4, g.files.UDP6} {
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		}
		for _, dst := range []string{"192.0.2.1:80", "127.0.0.1:80", "198.18.0.1:22", "[2001:db8::1]:80"} {
			if a := g.do("dial", "tcp", dst); a.Err == "" {
				t.Errorf("%s answered %q", dst, a.Out)
			}
		}
		if a := g.do("ask", "udp", "1.1.1.1:53", "query"); a.Err == "" {
			t.Errorf("dns answered %q", a.Out)
		}
	})
}

func TestWithoutGatewayThereIsOnlyLoopback(t *testing.T) {
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
		req := request()
		req.Spec.Isolation = tier
		g := start(t, newHost(t), req)
		for _, dst := range []string{"192.0.2.1:80", "1.1.1.1:53", "198.18.0.1:1053", "[2001:db8::1]:80"} {
			if a := g.do("dial", "tcp", dst); a.Err == "" || a.Ms > promptly {
				t.Errorf("%s: %q, %s after %d ms", dst, a.Out, a.Err, a.Ms)
			}
		}
		if got := g.must("interfaces"); got != "lo" {
			t.Errorf("interfaces %q", got)
		}
		for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
			if got := g.must("loopback", at); got != "self" {
				t.Errorf("own loopback %s: %q", at, got)
			}
		}
	})
}

func TestOpenRefusesWhatIsNoOpening(t *testing.T) {
	for _, o := range []Opening{
		{},
		opening("10.0.0.1/8", 0), opening("10.0.0.0/8", time.Minute), opening("::ffff:10.0.0.0/104", 0),
		opening("10.0.0.0/8", -1),
		{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Ports: []uint16{}},
	} {
		if err := checkOpening(o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}

// TestOpensAsMuchAsAPolicyNeeds: a policy that opens all public addresses but a
// few is thousands of networks, and a look-up may come with many ports.
func TestOpensAsMuchAsAPolicyNeeds(t *testing.T) {
	need(t)
	var open []Opening
	for i := range 2048 {
		a := netip.AddrFrom4([4]byte{11, byte(i >> 8), byte(i), 0})
		open = append(open, Opening{Prefix: netip.PrefixFrom(a, 24)})
	}
	var files Files
	n, err := newNetwork(true)
	if err == nil {
		err = n.serve(open, &files)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(n.close(), closeFiles(files)); err != nil {
			t.Error(err)
		}
	})
	var many []uint16
	for p := range uint16(256) {
		many = append(many, 1000+2*p)
	}
	pins := []Opening{opening("203.0.113.1/32", time.Hour, 443, 443), opening("203.0.113.1/32", time.Minute, 443)}
	for i := range 32 {
		a := netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
		pins = append(pins, Opening{Prefix: hostPrefix(a), Ports: many, TTL: time.Hour})
	}
	for range 2 {
		if err := n.open(pins); err != nil {
			t.Fatal(err)
		}
	}
	err = n.open([]Opening{{Prefix: netip.MustParsePrefix("192.0.2.0/24"), Ports: make([]uint16, 1)}})
	if err != nil {
		t.Errorf("what fits after all that: %v", err)
	}
	over := slices.Concat(open, open, open)
	if err := n.open(over); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("%d networks: %v", len(over), err)
	}
}

func TestPortRuns(t *testing.T) {
	for _, tc := range []struct {
		ports []uint16
		want  string
	}{
		{nil, "[{0 65535}]"},
		{[]uint16{443}, "[{443 443}]"},
		{[]uint16{8002, 8000, 8001, 8001, 443, 65535}, "[{443 443} {8000 8002} {65535 65535}]"},
		{[]uint16{65534, 65535, 0}, "[{0 0} {65534 65535}]"},
	} {
		if got := fmt.Sprint(portRuns(tc.ports)); got != tc.want {
			t.Errorf("%v: %s, want %s", tc.ports, got, tc.want)
		}
	}
}

// TestLocalEndpoint: an opened port of loopback leads to the gateway, from an
// unchanged client, and only that port does.
func TestLocalEndpoint(t *testing.T) {
	g, _ := startOnline(t, sandbox.Container, opening("127.0.0.1/32", 0, 5432), opening("127.0.0.2/32", 0, 6379))
	for _, dst := range []string{"127.0.0.1:5432", "localhost:5432", "127.0.0.2:6379"} {
		want := "for " + strings.Replace(dst, "localhost", "127.0.0.1", 1)
		if a := g.do("dial", "tcp", dst); a.Out != want {
			t.Errorf("%s: %q, %s", dst, a.Out, a.Err)
		}
	}
	for _, dst := range []string{"127.0.0.1:5433", "127.0.0.2:5432", "127.0.0.1:1053", "[::1]:5432"} {
		if a := g.do("dial", "tcp", dst); a.Err != refusedText || a.Ms > promptly {
			t.Errorf("%s: %q, %s after %d ms", dst, a.Out, a.Err, a.Ms)
		}
	}
	if got := g.must("loopback", "127.0.0.1:0"); got != "self" {
		t.Errorf("own loopback: %q", got)
	}
}
