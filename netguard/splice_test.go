package netguard

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"
)

// rawLab opens raw.example.com at 8.8.8.8:5432 to any bytes.
func rawLab(t testing.TB, limits Limits, handle func(net.Conn)) *lab {
	l := newLab(t, Config{
		Mode: ModeAllowlist, Allow: []Rule{allowHost("raw.example.com", ProtocolTCP, "5432")}, Limits: limits,
	})
	l.names.set("raw.example.com", time.Hour, "8.8.8.8")
	l.lookUp("raw.example.com")
	l.serve("8.8.8.8:5432", handle)
	return l
}

const rawAt = "8.8.8.8:5432"

// tcpPair is a connected pair of kernel sockets.
func tcpPair(t testing.TB) (a, b *net.TCPConn) {
	t.Helper()
	ln := listen(t)
	defer func() { _ = ln.Close() }()
	a = dialLocal(t, ln.Addr().String())
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	b = c.(*net.TCPConn)
	t.Cleanup(func() { _ = a.Close(); _ = b.Close() })
	for _, c := range []*net.TCPConn{a, b} {
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	}
	return a, b
}

// relayed runs a relay between two pairs and returns the outer ends.
func relayed(t *testing.T, r *relay) (guest, origin *net.TCPConn, result <-chan error) {
	guest, r1 := tcpPair(t)
	origin, r2 := tcpPair(t)
	_ = r1.SetDeadline(time.Time{})
	_ = r2.SetDeadline(time.Time{})
	r.guest, r.origin = r1, r2
	done := make(chan error, 1)
	go func() { done <- r.run(context.Background()) }()
	return guest, origin, done
}

func TestRelayHalfCloses(t *testing.T) {
	for _, path := range []string{"splice", "buffer"} {
		t.Run(path, func(t *testing.T) {
			var r relay
			if path == "splice" {
				r.pipes = &pipePool{}
				defer r.pipes.close()
			}
			guest, origin, done := relayed(t, &r)
			fmt.Fprint(guest, "question")
			_ = guest.CloseWrite()
			if b, err := io.ReadAll(origin); err != nil || string(b) != "question" {
				t.Fatalf("%q, %v", b, err)
			}
			big := bytes.Repeat([]byte("answer.."), 200_000)
			go func() { _, _ = origin.Write(big); _ = origin.Close() }()
			if b, err := io.ReadAll(guest); err != nil || !bytes.Equal(b, big) {
				t.Fatalf("%d bytes of %d, %v", len(b), len(big), err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
			if up, down := r.up.n.Load(), r.down.n.Load(); up != 8 || down != int64(len(big)) {
				t.Errorf("counted %d up, %d down", up, down)
			}
		})
	}
}

func TestRelayPassesResetsOn(t *testing.T) {
	r := relay{pipes: &pipePool{}}
	defer r.pipes.close()
	guest, origin, done := relayed(t, &r)
	_ = origin.SetLinger(0)
	_ = origin.Close()
	wantReset(t, guest)
	if err := <-done; err == nil {
		t.Error("a reset ended the relay without an error")
	}
}

func TestRelayEndsHalfClosedSilence(t *testing.T) {
	r := relay{pipes: &pipePool{}, idle: 50 * time.Millisecond}
	defer r.pipes.close()
	guest, _, done := relayed(t, &r)
	_ = guest.CloseWrite()
	if err := <-done; err == nil {
		t.Error("no error")
	}
	wantReset(t, guest)
}

// A peer that reads nothing holds up only its own bytes.
func TestStalledPeerBlocksNobody(t *testing.T) {
	flood := func(c net.Conn) {
		b := make([]byte, 64<<10)
		for {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	}
	l := rawLab(t, Limits{}, flood)
	gate := l.gate(rawAt)
	for range 20 {
		c := dialLocal(t, gate) // reads nothing, for ever
		defer func() { _ = c.Close() }()
	}
	c := dialLocal(t, gate)
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if n, err := io.CopyN(io.Discard, c, 64<<20); err != nil {
		t.Fatal(n, err)
	}
	// And towards the origin: one that does not read stops no other.
	stuck := rawLab(t, Limits{}, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	hold := make(chan struct{})
	stuck.serve(rawAt, func(net.Conn) { <-hold })
	defer close(hold)
	s := stuck.connect(rawAt)
	_ = s.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
	_, _ = s.Write(make([]byte, 32<<20))
	stuck.serve(rawAt, echo)
	e := stuck.connect(rawAt)
	fmt.Fprint(e, "x")
	if _, err := io.ReadFull(e, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

func TestByteBudgetEndsConnections(t *testing.T) {
	l := rawLab(t, Limits{BytesDown: 1 << 20}, func(c net.Conn) {
		_, _ = c.Write(make([]byte, 4<<20))
	})
	c := l.connect(rawAt)
	n, err := io.Copy(io.Discard, c)
	if !isReset(err) || n > 1<<20 {
		t.Errorf("%d bytes, %v", n, err)
	}
	r := l.closeRecord(l.lastDecision().ID)
	if r.Reason != ReasonBytes || r.Down > 1<<20 {
		t.Errorf("close %+v", r)
	}
	wantReset(t, l.connect(rawAt))
	if d := l.lastDecision(); d.Allow || d.Reason != ReasonBytes {
		t.Errorf("the next connection: %+v", d)
	}
}

func TestByteBudgetIsUsedToTheLastByte(t *testing.T) {
	l := rawLab(t, Limits{BytesUp: 1000}, echo)
	c := l.connect(rawAt)
	_, _ = c.Write(make([]byte, 1000))
	if _, err := io.ReadFull(c, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	_, _ = c.Write([]byte{1})
	wantReset(t, c)
}

func TestConnectionLimits(t *testing.T) {
	l := rawLab(t, Limits{Connections: 2}, echo)
	open := []*net.TCPConn{l.connect(rawAt), l.connect(rawAt)}
	for _, c := range open {
		fmt.Fprint(c, "x")
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	wantReset(t, l.connect(rawAt))
	if d := l.lastDecision(); d.Reason != ReasonConnections {
		t.Errorf("decision %+v", d)
	}
	l2 := rawLab(t, Limits{PerSecond: 1}, echo)
	first := l2.connect(rawAt)
	fmt.Fprint(first, "x")
	if _, err := io.ReadFull(first, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	wantReset(t, l2.connect(rawAt))
	if d := l2.lastDecision(); d.Reason != ReasonRate {
		t.Errorf("decision %+v", d)
	}
}

func TestReloadClosesWhatItForbids(t *testing.T) {
	l := rawLab(t, Limits{}, echo)
	c := l.connect(rawAt)
	fmt.Fprint(c, "x")
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	same, err := Compile(Config{Mode: ModeAllowlist, Allow: []Rule{allowHost("*.example.com", ProtocolTCP, "5432")}})
	if err != nil {
		t.Fatal(err)
	}
	l.egress.SetPolicy(same)
	fmt.Fprint(c, "y")
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatalf("a policy that still allows it ended the connection: %v", err)
	}
	tlsOnly, err := Compile(Config{Mode: ModeAllowlist, Allow: []Rule{allowHost("raw.example.com", ProtocolTLS, "5432")}})
	if err != nil {
		t.Fatal(err)
	}
	l.egress.SetPolicy(tlsOnly)
	wantReset(t, c)
	l.closeRecord(l.lastDecision().ID)
}

func TestCloseEndsGatewayConnections(t *testing.T) {
	l := rawLab(t, Limits{}, echo)
	served := make(chan struct{})
	guest, inside := tcpPair(t)
	waiting, insideToo := tcpPair(t)
	tlsOnly, err := Compile(Config{Mode: ModeAllowlist, Allow: []Rule{allowHost("raw.example.com", "", "443")}})
	if err != nil {
		t.Fatal(err)
	}
	e2 := l.guard.For(Subject{}, tlsOnly)
	e2.gw.pins.add("raw.example.com", addrs("8.8.8.8"), time.Hour)
	go func() {
		defer close(served)
		var wg sync.WaitGroup
		wg.Go(func() { l.egress.ServeConn(context.Background(), inside, netip.MustParseAddrPort(rawAt)) })
		wg.Go(func() { e2.ServeConn(context.Background(), insideToo, netip.MustParseAddrPort("8.8.8.8:443")) })
		wg.Wait()
	}()
	fmt.Fprint(guest, "x")
	if _, err := io.ReadFull(guest, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	_ = l.egress.Close()
	_ = e2.Close()
	wantReset(t, guest)
	wantReset(t, waiting)
	<-served
	late, insideLate := tcpPair(t)
	l.egress.ServeConn(context.Background(), insideLate, netip.MustParseAddrPort(rawAt))
	wantReset(t, late)
	if d := l.lastDecision(); d.Reason != ReasonClosed {
		t.Errorf("decision %+v", d)
	}
}

func TestServeConnEndsWithItsContext(t *testing.T) {
	l := rawLab(t, Limits{}, echo)
	guest, inside := tcpPair(t)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() { defer close(served); l.egress.ServeConn(ctx, inside, netip.MustParseAddrPort(rawAt)) }()
	fmt.Fprint(guest, "x")
	if _, err := io.ReadFull(guest, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	cancel()
	wantReset(t, guest)
	<-served
}

// A connection that is no kernel socket takes the path through user space.
func TestServeConnOverAnyConn(t *testing.T) {
	l := rawLab(t, Limits{}, echo)
	guest, inside := net.Pipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		l.egress.ServeConn(context.Background(), inside, netip.MustParseAddrPort(rawAt))
	}()
	fmt.Fprint(guest, "x")
	if _, err := io.ReadFull(guest, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	_ = guest.Close()
	<-served
}

func TestPipesComeBack(t *testing.T) {
	pool := &pipePool{}
	p, err := pool.get()
	if err != nil {
		t.Fatal(err)
	}
	pool.put(p)
	if q, err := pool.get(); err != nil || q != p {
		t.Errorf("%v, %v; want the pipe that came back", q, err)
	}
	var many []pipe
	for range maxIdlePipes + 5 {
		q, err := newPipe()
		if err != nil {
			t.Fatal(err)
		}
		many = append(many, q)
	}
	for _, q := range many {
		pool.put(q)
	}
	if len(pool.free) != maxIdlePipes {
		t.Errorf("%d idle pipes", len(pool.free))
	}
	pool.close()
	pool.put(p)
	if len(pool.free) != 0 {
		t.Error("a closed pool keeps pipes")
	}
}

// Whatever a sandbox's connections opened is closed with it.
func TestNoDescriptorStays(t *testing.T) {
	count := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("needs /proc")
		}
		return len(fds)
	}
	before := count()
	t.Run("use", func(t *testing.T) {
		l := rawLab(t, Limits{PerSecond: 10_000}, echo)
		gate := l.gate(rawAt)
		var wg sync.WaitGroup
		for i := range 200 {
			c := dialLocal(t, gate)
			wg.Go(func() {
				defer func() { _ = c.Close() }()
				fmt.Fprint(c, "x")
				_, _ = io.ReadFull(c, make([]byte, 1))
				if i%3 == 0 {
					_ = c.SetLinger(0)
				}
			})
		}
		wg.Wait()
	})
	for range 30_000 { // the last closes happen in other goroutines
		if count() <= before {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Errorf("%d descriptors before, %d after", before, count())
}
