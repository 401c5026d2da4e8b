//go:build linux

package gateway

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	gatewayTCP, gatewayUDP = 15001, 15053
	logGroup               = 7
)

// lab is a pair of namespaces of the test's own: the guest's, and the
// gateway's with rules of the same form as the engine's. Neither leads out.
type lab struct {
	t              *testing.T
	gateway, guest string
}

const rules = `table inet gw {
 set open4 { type ipv4_addr . inet_service; flags timeout; }
 set open6 { type ipv6_addr . inet_service; flags timeout; }
 chain filter { type filter hook prerouting priority -150;
  iifname != "gw0" accept
  ct state established accept
  icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit } accept
  icmpv6 type mld2-listener-report drop
  udp dport 53 accept
  tcp dport 53 accept
  ip daddr . tcp dport @open4 accept
  ip6 daddr . tcp dport @open6 accept
  log group 7
  meta l4proto tcp reject with tcp reset
  reject
 }
 chain nat { type nat hook prerouting priority -100;
  udp dport 53 redirect to :15053
  meta l4proto tcp redirect to :15001
 }
}`

func newLab(t *testing.T) *lab {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("this test needs root, to make network namespaces")
		}
		t.Skip("this test needs root, to make network namespaces")
	}
	l := &lab{t, fmt.Sprintf("sbxgw-%d", os.Getpid()), fmt.Sprintf("sbxguest-%d", os.Getpid())}
	for _, ns := range []string{l.gateway, l.guest} {
		l.run("", "ip", "netns", "add", ns)
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", ns).Run() })
	}
	for _, c := range [][]string{
		{l.gateway, "link", "add", "gw0", "type", "veth", "peer", "name", "eth0", "netns", l.guest},
		{l.gateway, "addr", "add", "10.200.0.1/24", "dev", "gw0"},
		{l.gateway, "addr", "add", "fd00:200::1/64", "dev", "gw0", "nodad"},
		{l.guest, "addr", "add", "10.200.0.2/24", "dev", "eth0"},
		{l.guest, "addr", "add", "fd00:200::2/64", "dev", "eth0", "nodad"},
		{l.gateway, "link", "set", "lo", "up"},
		{l.gateway, "link", "set", "gw0", "up"},
		{l.guest, "link", "set", "lo", "up"},
		{l.guest, "link", "set", "eth0", "up"},
		{l.guest, "route", "add", "default", "via", "10.200.0.1"},
		{l.guest, "-6", "route", "add", "default", "via", "fd00:200::1"},
	} {
		l.run("", "ip", append([]string{"-n"}, c...)...)
	}
	l.run(rules, "ip", "netns", "exec", l.gateway, "nft", "-f", "-")
	return l
}

func (l *lab) run(stdin, name string, args ...string) {
	l.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		l.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// within runs f on a thread that has entered a namespace and ends with it.
func (l *lab) within(ns string, f func()) {
	l.t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		h, err := os.Open("/run/netns/" + ns)
		if err == nil {
			err = unix.Setns(int(h.Fd()), unix.CLONE_NEWNET)
			_ = h.Close()
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) dial(network, address string) (net.Conn, error) {
	var c net.Conn
	var err error
	l.within(l.guest, func() { c, err = (&net.Dialer{Timeout: 5 * time.Second}).Dial(network, address) })
	if err == nil {
		l.t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	}
	return c, err
}

func (l *lab) open(endpoint netip.AddrPort) error {
	set := "open4"
	if endpoint.Addr().Is6() {
		set = "open6"
	}
	return exec.Command("ip", "netns", "exec", l.gateway, "nft", "add", "element", "inet", "gw", set,
		fmt.Sprintf("{ %s . %d timeout 60s }", endpoint.Addr(), endpoint.Port())).Run()
}

type fakeEgress struct {
	refused chan string
	slow    chan struct{} // slow.test is answered when this is closed
	mu      sync.Mutex
	pinErr  error
}

func (*fakeEgress) Literals() iter.Seq2[netip.Prefix, []uint16] {
	return func(func(netip.Prefix, []uint16) bool) {}
}

func (e *fakeEgress) Refused(network string, dst netip.AddrPort) {
	select {
	case e.refused <- network + " " + dst.String():
	default:
	}
}

// ServeConn tells the guest where it wanted to go, then echoes.
func (*fakeEgress) ServeConn(_ context.Context, c net.Conn, dst netip.AddrPort) {
	_, _ = io.WriteString(c, dst.String()+"\n")
	_, _ = io.Copy(c, c)
}

func (e *fakeEgress) Resolve(ctx context.Context, q []byte, pin func([]netip.AddrPort, time.Duration) error) ([]byte, error) {
	m := new(dns.Msg)
	if err := m.Unpack(q); err != nil {
		return nil, err
	}
	records := 1
	switch m.Question[0].Name {
	case "slow.test.":
		select {
		case <-e.slow:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	case "big.test.":
		records = 40
	case "silent.test.":
		return nil, errors.New("nothing to say")
	case "pinned.test.":
		if err := pin([]netip.AddrPort{netip.MustParseAddrPort("192.0.2.0:80")}, time.Minute); err != nil {
			return nil, err
		}
	}
	return answerOf(q, records), nil
}

// serve runs a Gateway on sockets in the gateway's namespace.
func (l *lab) serve(e *fakeEgress) *Gateway {
	l.t.Helper()
	var cfg Config
	l.within(l.gateway, func() {
		for _, family := range []string{"4", "6"} {
			tl, err := net.Listen("tcp"+family, fmt.Sprintf(":%d", gatewayTCP))
			if err != nil {
				panic(err)
			}
			uc, err := net.ListenPacket("udp"+family, fmt.Sprintf(":%d", gatewayUDP))
			if err != nil {
				panic(err)
			}
			tf, _ := tl.(*net.TCPListener).File()
			uf, _ := uc.(*net.UDPConn).File()
			_, _ = tl.Close(), uc.Close()
			cfg.TCP, cfg.UDP = append(cfg.TCP, tf), append(cfg.UDP, uf)
		}
		cfg.Refused = nflogSocket()
	})
	cfg.Egress, cfg.Logger = e, slog.New(slog.DiscardHandler)
	cfg.Pin = func(_ context.Context, endpoints []netip.AddrPort, _ time.Duration) error {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.pinErr != nil {
			return e.pinErr
		}
		return l.open(endpoints[0])
	}
	g, err := New(cfg)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(g.Close)
	return g
}

// nflogSocket binds a netlink socket to the log group, as the engine does.
func nflogSocket() *os.File {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		panic(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		panic(err)
	}
	be, ne := binary.BigEndian, binary.NativeEndian
	config := func(attr uint16, value []byte) {
		body := be.AppendUint16([]byte{unix.AF_UNSPEC, 0}, logGroup)
		body = ne.AppendUint16(ne.AppendUint16(body, uint16(attrHeader+len(value))), attr)
		body = append(body, value...)
		body = append(body, make([]byte, align4(len(body))-len(body))...)
		msg := ne.AppendUint32(nil, uint32(nlHeader+len(body)))
		msg = ne.AppendUint16(msg, 4<<8|1) // NFULNL_MSG_CONFIG
		msg = ne.AppendUint16(msg, unix.NLM_F_REQUEST)
		msg = append(append(msg, make([]byte, 8)...), body...)
		if err := unix.Sendto(fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			panic(err)
		}
	}
	config(1, []byte{1})                       // bind
	config(2, []byte{0, 0, 0, 96, 2, 0, 0, 0}) // copy 96 bytes of each packet
	config(5, []byte{0, 0, 0, 1})              // and report it at once
	return os.NewFile(uintptr(fd), "nflog")
}

func exchange(t *testing.T, c net.Conn, q []byte) *dns.Msg {
	t.Helper()
	dc := &dns.Conn{Conn: c}
	if _, err := dc.Write(q); err != nil {
		t.Fatal(err)
	}
	m, err := dc.ReadMsg()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestGatewayInNamespaces(t *testing.T) {
	l := newLab(t)
	e := &fakeEgress{refused: make(chan string, 64), slow: make(chan struct{})}
	g := l.serve(e)

	t.Run("an open endpoint is served with its destination", func(t *testing.T) {
		for _, dst := range []string{"192.0.2.7:443", "[2001:db8::7]:443"} {
			if err := l.open(netip.MustParseAddrPort(dst)); err != nil {
				t.Fatal(err)
			}
			c, err := l.dial("tcp", dst)
			if err != nil {
				t.Fatal(err)
			}
			b := make([]byte, len(dst)+1+4)
			if _, err := c.Write([]byte("ping")); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(c, b); err != nil || string(b) != dst+"\nping" {
				t.Errorf("%s: %q, %v", dst, b, err)
			}
		}
	})
	t.Run("anything else is refused at once and reported", func(t *testing.T) {
		for _, dst := range []string{"192.0.2.7:444", "169.254.169.254:80", "[2001:db8::8]:443", "10.200.0.1:15001", "[fd00:200::1]:15001"} {
			begin := time.Now()
			if _, err := l.dial("tcp", dst); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s: %v", dst, err)
			}
			if d := time.Since(begin); d > time.Second {
				t.Errorf("%s: refused after %s", dst, d)
			}
			if got := awaitReport(t, e); got != "tcp "+dst {
				t.Errorf("reported %q, want %q", got, dst)
			}
		}
		for _, dst := range []string{"192.0.2.7:443", "[2001:db8::7]:123"} {
			c, err := l.dial("udp", dst)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("udp %s: %v", dst, err)
			}
			if got := awaitReport(t, e); got != "udp "+dst {
				t.Errorf("reported %q, want %q", got, dst)
			}
		}
	})
	t.Run("the listener itself is no destination", func(t *testing.T) {
		if err := l.open(netip.MustParseAddrPort("10.200.0.1:15001")); err != nil {
			t.Fatal(err)
		}
		c, err := l.dial("tcp", "10.200.0.1:15001")
		if err == nil {
			_, err = c.Read(make([]byte, 1))
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Error(err)
		}
		if got := awaitReport(t, e); got != "tcp 10.200.0.1:15001" {
			t.Errorf("reported %q", got)
		}
	})
	t.Run("DNS to any resolver", func(t *testing.T) { l.testDNS(t) })
	t.Run("a slow look-up holds up no other", func(t *testing.T) {
		slow, err := l.dial("udp", "192.0.2.53:53")
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := slow.Write(query(t, "slow.test.", false)); err != nil {
				t.Fatal(err)
			}
		}
		quick, err := l.dial("udp", "192.0.2.53:53")
		if err != nil {
			t.Fatal(err)
		}
		exchange(t, quick, query(t, "quick.test.", false))
		close(e.slow)
		if _, err := slow.Read(make([]byte, 512)); err != nil {
			t.Error(err)
		}
	})
	t.Run("a pin is in place before its answer", func(t *testing.T) { l.testPin(t, e) })
	t.Run("after Close nothing is reached", func(t *testing.T) {
		held, err := l.dial("tcp", "192.0.2.7:443")
		if err != nil {
			t.Fatal(err)
		}
		g.Close()
		if _, err := io.ReadAll(held); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Error(err)
		}
		if _, err := l.dial("tcp", "192.0.2.7:443"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Error(err)
		}
	})
}

func awaitReport(t *testing.T, e *fakeEgress) string {
	t.Helper()
	select {
	case got := <-e.refused:
		return got
	case <-time.After(10 * time.Second):
		t.Fatal("no report")
		return ""
	}
}

func (l *lab) testDNS(t *testing.T) {
	for _, resolver := range []string{"192.0.2.53:53", "10.200.0.1:53", "[2001:db8::53]:53", "[fd00:200::1]:53"} {
		// The socket is connected, so an answer from elsewhere is lost.
		c, err := l.dial("udp", resolver)
		if err != nil {
			t.Fatal(err)
		}
		if m := exchange(t, c, query(t, "a.test.", false)); len(m.Answer) != 1 {
			t.Errorf("%s: %v", resolver, m)
		}
		if m := exchange(t, c, query(t, "big.test.", false)); !m.Truncated || len(m.Answer) != 0 {
			t.Errorf("%s: %v", resolver, m)
		}
		// Junk and silence hold up nothing.
		_, _ = c.Write([]byte("x"))
		_, _ = c.Write(query(t, "silent.test.", false))
		if m := exchange(t, c, query(t, "b.test.", false)); m.Question[0].Name != "b.test." {
			t.Errorf("%s: %v", resolver, m)
		}
		c, err = l.dial("tcp", resolver)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if m := exchange(t, c, query(t, "big.test.", false)); m.Truncated || len(m.Answer) != 40 {
				t.Errorf("%s over TCP: %v", resolver, m)
			}
		}
		if _, err := c.Write([]byte{0xff, 0xff}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s: a query of 65535 bytes was awaited", resolver)
		}
	}
}

func (l *lab) testPin(t *testing.T, e *fakeEgress) {
	c, err := l.dial("udp", "192.0.2.53:53")
	if err != nil {
		t.Fatal(err)
	}
	exchange(t, c, query(t, "pinned.test.", false))
	if _, err := l.dial("tcp", "192.0.2.0:80"); err != nil {
		t.Errorf("the pinned address: %v", err)
	}
	e.mu.Lock()
	e.pinErr = errors.New("the engine is gone")
	e.mu.Unlock()
	if _, err := c.Write(query(t, "pinned.test.", false)); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if n, err := c.Read(make([]byte, 512)); err == nil {
		t.Errorf("an answer of %d bytes without its pin", n)
	}
}
