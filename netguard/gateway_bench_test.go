package netguard

import (
	"context"
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// plainRelay is what the gateway is measured against: accept, dial, and two
// copies within the kernel, with nothing looked at.
func plainRelay(tb testing.TB, to string) string {
	ln := listen(tb)
	acceptAll(tb, ln, func(c net.Conn) {
		var d net.Dialer
		up, err := d.DialContext(context.Background(), "tcp", to)
		if err != nil {
			return
		}
		defer func() { _ = up.Close() }()
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _ = up.(*net.TCPConn).ReadFrom(c)
			_ = up.(*net.TCPConn).CloseWrite()
		})
		_, _ = c.(*net.TCPConn).ReadFrom(up)
		_ = c.(*net.TCPConn).CloseWrite()
		wg.Wait()
	})
	return ln.Addr().String()
}

// benchLab has one name behind TLS and one behind raw bytes, both at origin.
func benchLab(tb testing.TB, origin string) *lab {
	l := newLab(tb, Config{
		Mode: ModeAllowlist,
		Allow: []Rule{
			allowHost("tls.example.com", ProtocolTLS, "443"),
			allowHost("raw.example.com", ProtocolTCP, "5432"),
		},
		Limits: Limits{PerSecond: 1 << 20, Connections: 1 << 20},
	})
	l.names.set("tls.example.com", time.Hour, "8.8.8.8")
	l.names.set("raw.example.com", time.Hour, "8.8.4.4")
	l.place("8.8.8.8:443", origin)
	l.place("8.8.4.4:5432", origin)
	l.lookUp("tls.example.com")
	l.lookUp("raw.example.com")
	return l
}

func dialLocal(tb testing.TB, at string) *net.TCPConn {
	var d net.Dialer
	c, err := d.DialContext(context.Background(), "tcp", at)
	if err != nil {
		tb.Fatal(err)
	}
	return c.(*net.TCPConn)
}

// BenchmarkGatewayThroughput moves bytes both through the plain relay and
// through the gateway, in turns, and reports both rates and their ratio.
func BenchmarkGatewayThroughput(b *testing.B) {
	const chunk = 64 << 20
	ln := listen(b)
	block := make([]byte, 256<<10)
	acceptAll(b, ln, func(c net.Conn) {
		one := make([]byte, 1)
		if _, err := io.ReadFull(c, one); err != nil {
			return
		}
		for range chunk / len(block) {
			if _, err := c.Write(block); err != nil {
				return
			}
		}
	})
	origin := ln.Addr().String()
	l := benchLab(b, origin)
	plain, gate := plainRelay(b, origin), l.gate("8.8.4.4:5432")
	move := func(at string) time.Duration {
		c := dialLocal(b, at)
		defer func() { _ = c.Close() }()
		began := time.Now()
		_, _ = c.Write([]byte{1})
		if n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 256<<10)); err != nil || n != chunk {
			b.Fatal(n, err)
		}
		return time.Since(began)
	}
	move(plain)
	move(gate)
	var plainTimes, gateTimes []time.Duration
	var ratios []float64
	b.ResetTimer()
	for i := range b.N {
		var p, g time.Duration
		if i%2 == 0 { // neither always profits from coming first
			p, g = move(plain), move(gate)
		} else {
			g, p = move(gate), move(plain)
		}
		plainTimes, gateTimes = append(plainTimes, p), append(gateTimes, g)
		ratios = append(ratios, p.Seconds()/g.Seconds())
	}
	slices.Sort(ratios)
	b.ReportMetric(chunk/median(plainTimes), "plain-MB/s")
	b.ReportMetric(chunk/median(gateTimes), "gateway-MB/s")
	b.ReportMetric(ratios[len(ratios)/2], "ratio")
}

// median is in microseconds.
func median(d []time.Duration) float64 {
	slices.Sort(d)
	return float64(d[len(d)/2].Nanoseconds()) / 1e3
}

// BenchmarkGatewaySetup measures from connect to the first byte back, for a
// client that sends a ClientHello, and reports both medians.
func BenchmarkGatewaySetup(b *testing.B) {
	hello := plainHello(b, "tls.example.com")
	ln := listen(b)
	acceptAll(b, ln, func(c net.Conn) {
		buf := make([]byte, len(hello))
		if _, err := io.ReadFull(c, buf); err == nil {
			_, _ = c.Write([]byte{1})
		}
	})
	origin := ln.Addr().String()
	l := benchLab(b, origin)
	plain, gate := plainRelay(b, origin), l.gate("8.8.8.8:443")
	one := make([]byte, 1)
	open := func(at string) time.Duration {
		began := time.Now()
		c := dialLocal(b, at)
		_, _ = c.Write(hello)
		if _, err := io.ReadFull(c, one); err != nil {
			b.Fatal(err)
		}
		d := time.Since(began)
		_ = c.Close()
		return d
	}
	var plainTimes, gateTimes []time.Duration
	b.ResetTimer()
	for range b.N {
		plainTimes = append(plainTimes, open(plain))
		gateTimes = append(gateTimes, open(gate))
	}
	p, g := median(plainTimes), median(gateTimes)
	b.ReportMetric(p, "plain-µs")
	b.ReportMetric(g, "gateway-µs")
	b.ReportMetric(g-p, "added-µs")
}

// manyConnections is how many connections of one sandbox are open at once in
// TestManyConnections, and connectionBound the memory that each may take in
// this process, in bytes: two goroutines, two sockets' bookkeeping and a
// record, but no buffers and no pipes.
const (
	manyConnections = 2000
	connectionBound = 48 << 10
)

func TestManyConnectionsStayBounded(t *testing.T) {
	ln := listen(t)
	acceptAll(t, ln, echo)
	l := benchLab(t, ln.Addr().String())
	direct := openMany(t, ln.Addr().String(), nil)
	through := openMany(t, l.gate("8.8.8.8:443"), plainHello(t, "tls.example.com"))
	// The far ends live in this process too: what they take is known from
	// connections that go there directly.
	each := (int64(through) - int64(direct)) / manyConnections
	t.Logf("%d connections: %d bytes each beyond both far ends", manyConnections, each)
	if each > connectionBound {
		t.Errorf("%d bytes each, over %d", each, connectionBound)
	}
	pool := &l.egress.gw.pipes
	pool.mu.Lock()
	defer pool.mu.Unlock()
	if n := len(pool.free); n > maxIdlePipes {
		t.Errorf("%d idle pipes", n)
	}
}

// openMany opens connections that each move some bytes and then stay, and
// returns by how much the process's memory in use grew.
func openMany(t *testing.T, at string, hello []byte) uint64 {
	before := memoryInUse()
	conns := make([]*net.TCPConn, manyConnections)
	msg := make([]byte, max(len(hello), 512))
	copy(msg, hello)
	for i := range conns {
		conns[i] = dialLocal(t, at)
		if _, err := conns[i].Write(msg); err != nil {
			t.Fatal(err)
		}
		_ = conns[i].SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.ReadFull(conns[i], make([]byte, len(msg))); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	after := memoryInUse()
	for _, c := range conns {
		_ = c.Close()
	}
	return after - before
}

func memoryInUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}
