package casefile

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"
)

// Every case of kind sni also as real bytes over sockets: what the judging
// functions say and what ServeConn does must agree.
func TestGatewayCasesOnTheWire(t *testing.T) {
	f, err := os.Open("testdata/cases.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	ran := 0
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, maxLine)
	for sc.Scan() {
		c, err := parse(bytes.TrimSpace(sc.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		if c.Kind != "sni" {
			continue
		}
		var in sniInput
		if err := decode(c.Input, &in); err != nil {
			t.Fatal(err)
		}
		if in.TLS != nil && in.TLS.Intercepted {
			continue // only who ends the TLS sees these bytes
		}
		ran++
		t.Run(c.ID, func(t *testing.T) { serveCase(t, c, in) })
	}
	if ran < 40 {
		t.Errorf("only %d cases ran", ran)
	}
}

func serveCase(t *testing.T, c Case, in sniInput) {
	b, _, err := newBench(c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.egress.Close() }()
	if err := b.pin(); err != nil {
		t.Fatal(err)
	}
	dst := netip.MustParseAddrPort(in.Dst)
	want, err := run(c)
	if err != nil {
		t.Fatal(err)
	}
	if in.Proto == "udp" {
		b.egress.Refused("udp", dst)
		if g := b.decision(); g.Outcome != Deny {
			t.Errorf("a UDP packet: %v", g)
		}
		return
	}
	stream := in.stream()
	if in.TLS != nil {
		stream = in.TLS.bytes()
	}
	origin, received := farEnd(t)
	b.answer = func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", origin)
		if err != nil {
			return nil, err
		}
		return leadsTo{conn.(*net.TCPConn), addr}, nil
	}
	answer, err := b.send(t, dst, stream)
	g := b.decision()
	if g.Outcome != want.Outcome || g.Reason != want.Reason {
		t.Errorf("on the wire %v, judged %v", g, want)
	}
	if g.Outcome == Allow {
		if got := <-received; err != nil || string(answer) != "done" || !bytes.Equal(got, stream) {
			t.Errorf("answer %q, %v; the origin got %q of %q", answer, err, got, stream)
		}
	} else if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("refused with %q, %v; want a reset", answer, err)
	}
}

// leadsTo is a loopback connection under the address that was dialled.
type leadsTo struct {
	*net.TCPConn
	addr netip.AddrPort
}

func (c leadsTo) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.addr) }

// farEnd takes one connection, reads it to the end and answers "done".
func farEnd(t *testing.T) (addr string, received <-chan []byte) {
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan []byte, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		b, _ := io.ReadAll(conn)
		got <- b
		_, _ = io.WriteString(conn, "done")
	}()
	t.Cleanup(func() { _ = ln.Close(); <-ended })
	return ln.Addr().String(), got
}

// send makes a guest's connection to dst, writes stream and reads the answer.
func (b *bench) send(t *testing.T, dst netip.AddrPort, stream []byte) ([]byte, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if conn, err := ln.Accept(); err == nil {
			b.egress.ServeConn(context.Background(), conn, dst)
		}
	}()
	defer func() { _ = ln.Close(); <-served }()
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", ln.Addr().String())
	if err != nil {
		return nil, err // reset before the connect returned
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Write(stream); err != nil {
		return nil, err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil && !errors.Is(err, syscall.ENOTCONN) {
		return nil, err
	}
	return io.ReadAll(conn)
}
