package netguard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"
)

// lab is a guard whose dials lead to servers of the test on loopback, under
// the public addresses that the policy and the resolver speak of.
type lab struct {
	t       testing.TB
	egress  *Egress
	guard   *Guard
	names   labResolver
	mu      sync.Mutex
	servers map[netip.AddrPort]string
	dialled []netip.AddrPort
	records []Record
}

// labResolver is the upstream: what each name is answered with.
type labResolver struct {
	mu      sync.Mutex
	answers map[string]Answer
	asked   []string
}

func (r *labResolver) Lookup(_ context.Context, name string) (Answer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, name)
	a, ok := r.answers[name]
	if !ok {
		return Answer{}, errRcode
	}
	a.Addrs = append([]netip.Addr(nil), a.Addrs...)
	return a, nil
}

func (r *labResolver) set(name string, ttl time.Duration, ips ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.answers == nil {
		r.answers = map[string]Answer{}
	}
	r.answers[name] = Answer{Addrs: addrs(ips...), TTL: ttl}
}

// named is a connection that says it leads to the address that was dialled.
type named struct {
	*net.TCPConn
	remote net.Addr
}

func (c named) RemoteAddr() net.Addr { return c.remote }

func newLab(t testing.TB, cfg Config) *lab {
	t.Helper()
	l := &lab{t: t, servers: map[netip.AddrPort]string{}}
	l.start(cfg, &l.names)
	return l
}

func (l *lab) start(cfg Config, upstream Resolver) {
	t := l.t
	t.Helper()
	p, err := Compile(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l.guard, err = New(Options{
		Resolver: upstream,
		Record: func(r Record) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.records = append(l.records, r)
		},
		Dial:        l.dial,
		DialTimeout: 5 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	l.egress = l.guard.For(Subject{Tenant: "t", Sandbox: "s"}, p)
	t.Cleanup(func() { _ = l.egress.Close() })
}

func (l *lab) dial(ctx context.Context, network string, addr netip.AddrPort, control Control) (net.Conn, error) {
	if err := control(ctx, network, addr.String(), nil); err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.dialled = append(l.dialled, addr)
	at, ok := l.servers[addr]
	l.mu.Unlock()
	if !ok {
		return nil, errors.New("nobody there")
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", at)
	if err != nil {
		return nil, err
	}
	return named{c.(*net.TCPConn), net.TCPAddrFromAddrPort(addr)}, nil
}

// serve runs handle for each connection that leads to addr.
func (l *lab) serve(addr string, handle func(net.Conn)) {
	l.t.Helper()
	ln := listen(l.t)
	l.place(addr, ln.Addr().String())
	acceptAll(l.t, ln, handle)
}

// place says which loopback server stands for addr.
func (l *lab) place(addr, at string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.servers[netip.MustParseAddrPort(addr)] = at
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// acceptAll serves ln until the test ends, and waits for every handler.
func acceptAll(t testing.TB, ln net.Listener, handle func(net.Conn)) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	conns := map[net.Conn]bool{}
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns[c] = true
			mu.Unlock()
			wg.Go(func() {
				handle(c)
				_ = c.Close()
				mu.Lock()
				delete(conns, c)
				mu.Unlock()
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		mu.Lock()
		for c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
}

// gate is the gateway's listener for one destination: whoever connects to the
// returned address reaches ServeConn as if it had dialled dst.
func (l *lab) gate(dst string) string {
	l.t.Helper()
	ln := listen(l.t)
	l.guestsAt(ln, dst)
	return ln.Addr().String()
}

func (l *lab) guestsAt(ln net.Listener, dst string) {
	acceptAll(l.t, ln, func(c net.Conn) {
		l.egress.ServeConn(context.Background(), c, netip.MustParseAddrPort(dst))
	})
}

// connect makes a guest's connection to dst through the gateway. It is served
// once it is established, so that even a reset finds an open connection.
func (l *lab) connect(dst string) *net.TCPConn {
	l.t.Helper()
	ln := listen(l.t)
	var d net.Dialer
	c, err := d.DialContext(context.Background(), "tcp", ln.Addr().String())
	if err != nil {
		l.t.Fatal(err)
	}
	l.guestsAt(ln, dst)
	l.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return c.(*net.TCPConn)
}

// lookUp resolves a name as the guest's stub resolver would, so that it is
// pinned, and returns what was let through at the gateway.
func (l *lab) lookUp(name string) []netip.AddrPort {
	l.t.Helper()
	var pins []netip.AddrPort
	_, err := l.egress.Resolve(context.Background(), dnsQueryBytes(l.t, name+".", 1, nil),
		func(to []netip.AddrPort, _ time.Duration) error { pins = append(pins, to...); return nil })
	if err != nil {
		l.t.Fatal(err)
	}
	return pins
}

// lastDecision is the newest decision record.
func (l *lab) lastDecision() Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := len(l.records) - 1; i >= 0; i-- {
		if l.records[i].Event == EventDecision {
			return l.records[i]
		}
	}
	return Record{}
}

// closeRecord waits for the close line of the connection with the id.
func (l *lab) closeRecord(id string) Record {
	l.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for time.Now().Before(deadline) {
		l.mu.Lock()
		for _, r := range l.records {
			if r.Event == EventClose && r.ID == id {
				l.mu.Unlock()
				return r
			}
		}
		l.mu.Unlock()
		time.Sleep(time.Millisecond) // polling for an event of another goroutine
	}
	l.t.Fatalf("no close record for %s", id)
	return Record{}
}

func echo(c net.Conn) { _, _ = io.Copy(c, c) }

// wantReset reads until the connection ends, which has to be by a reset.
func wantReset(t testing.TB, c net.Conn) {
	t.Helper()
	if n, err := io.Copy(io.Discard, c); !isReset(err) {
		t.Errorf("%d bytes, then %v; want a reset", n, err)
	}
}

func allowHost(host string, proto Protocol, ports ...Port) Rule {
	return Rule{Host: host, Ports: ports, Protocol: proto}
}

func TestServeConnRawServerSpeaksFirst(t *testing.T) {
	l := newLab(t, Config{Mode: ModeAllowlist, Allow: []Rule{allowHost("db.example.com", ProtocolTCP, "3306")}})
	l.names.set("db.example.com", time.Minute, "8.8.8.8", "8.8.4.4")
	l.serve("8.8.8.8:3306", func(c net.Conn) {
		fmt.Fprint(c, "hello from the server")
		echo(c)
	})
	if got := fmt.Sprint(l.lookUp("db.example.com")); got != "[8.8.8.8:3306 8.8.4.4:3306]" {
		t.Errorf("pinned %s", got)
	}
	c := l.connect("8.8.8.8:3306")
	buf := make([]byte, 21)
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "hello from the server" {
		t.Fatalf("%q, %v", buf, err)
	}
	fmt.Fprint(c, "query")
	_ = c.CloseWrite()
	rest, err := io.ReadAll(c)
	if err != nil || string(rest) != "query" {
		t.Errorf("%q, %v", rest, err)
	}
	d := l.lastDecision()
	if !d.Allow || d.Host != "db.example.com" || d.Port != 3306 || d.Via != ViaGateway || d.Rule != "allow[0] host db.example.com" {
		t.Errorf("decision %+v", d)
	}
	if r := l.closeRecord(d.ID); r.Up != 5 || r.Down != 26 || r.Reason != "" {
		t.Errorf("close %+v", r)
	}
}

func isReset(err error) bool { return errors.Is(err, syscall.ECONNRESET) }
