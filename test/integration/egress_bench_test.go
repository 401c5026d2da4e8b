package integration

import (
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/netguard"
	"github.com/sandboxd/sandboxd/test/integration/lab"
)

const (
	bulkBytes    = 64 << 20
	bulkRounds   = 31
	setupRounds  = 300
	setupPort    = 2201 // the server answers a hello with one byte
	downloadPort = 2202 // with bulkBytes
	uploadPort   = 2203 // with one byte, once it has read bulkBytes
)

// The limit on new connections is policy and not cost, so it is out of the way.
const benchPolicy = `
egress:
  mode: allowlist
  allow:
    - {host: raw.example.com, ports: ["2201-2203"], protocol: tcp}
    - {host: allowed.example.com, ports: ["2201-2203"]}
  limits: {per_second: 1000000}
`

// record begins an encrypted TLS record: after it, a gateway that has proven
// the name need not look any more.
var record = []byte{23, 3, 3, 0x40, 0}

// egressPath is one way from inside a network namespace to the servers.
type egressPath struct {
	name   string
	in     *insider
	server netip.Addr
	lookUp func() // what a client does before it connects, if anything
	// context says that the path is not this project's, and only there to
	// compare: Debian 12's pasta resets an upload now and then. Such an exchange
	// is done again, and counted.
	context bool
	failed  int
}

// maxFailed bounds the exchanges of a path that may fail.
const maxFailed = 50

// exchange is insider.exchange that does not fail.
func (p *egressPath) exchange(b *testing.B, port int, send []byte, want int) time.Duration {
	b.Helper()
	for {
		took, err := p.in.exchange(p.server, port, send, want)
		if err == nil {
			return took
		}
		if p.failed++; !p.context || p.failed > maxFailed {
			b.Fatalf("%s: %v", p.name, err)
		}
	}
}

// BenchmarkEgressPaths compares, in turns within one run, what ways out of a
// network namespace cost: a plain relay of two sockets behind a veth pair and a
// redirection; sandboxd's gateway of a container, with a `protocol: tcp` rule
// and with a name proven by TLS; and, for context, slirp4netns and pasta where
// Debian's packages slirp4netns and passt are installed. Ratios and additions
// are over the plain relay; every client and server runs in this process.
func BenchmarkEgressPaths(b *testing.B) {
	l := lab.New(b)
	l.DNS(labZone)
	hello := clientHello(b, "allowed.example.com")
	for _, host := range []string{lab.RawV4, lab.AllowedV4} {
		serveBulk(l, host, len(hello))
	}
	raw := netip.MustParseAddr(lab.RawV4)
	paths := []*egressPath{{name: "relay", in: relayPath(b, l), server: raw}}
	in, stop := gatewayPath(b, l)
	paths = append(paths,
		&egressPath{name: "gateway", in: in, server: raw, lookUp: func() { in.lookUp(b, "raw.example.com") }},
		&egressPath{
			name: "gateway-tls", in: in, server: netip.MustParseAddr(lab.AllowedV4),
			lookUp: func() { in.lookUp(b, "allowed.example.com") },
		})
	for _, other := range []struct {
		name  string
		start func(*testing.B, *lab.Lab) *insider
	}{{"slirp4netns", slirpPath}, {"pasta", pastaPath}} {
		if _, err := exec.LookPath(other.name); err != nil {
			b.Logf("%s is not installed, and left out", other.name)
			continue
		}
		paths = append(paths, &egressPath{name: other.name, in: other.start(b, l), server: raw, context: true})
	}
	m := map[string][]float64{}
	b.ResetTimer()
	for range b.N {
		measureSetup(b, paths, hello, m)
		measureBulk(b, paths, hello, m)
	}
	b.StopTimer()
	reportPaths(b, paths, m)
	for host, n := range countRecords(b, stop()) {
		if n < setupRounds {
			b.Errorf("only %d connections to %s in the records: the guard was not on the path", n, host)
		}
	}
}

// measureSetup takes, in microseconds, from connect to the first byte back.
func measureSetup(b *testing.B, paths []*egressPath, hello []byte, m map[string][]float64) {
	const warm = 20
	for round := range warm + setupRounds {
		for _, i := range rand.Perm(len(paths)) { // no one always follows the same
			p := paths[i]
			if p.lookUp != nil && round%50 == 0 {
				p.lookUp()
			}
			d := p.exchange(b, setupPort, hello, 1)
			if round >= warm {
				m[p.name+"-setup"] = append(m[p.name+"-setup"], float64(d.Nanoseconds())/1e3)
			}
		}
	}
}

// measureBulk takes MB/s each way.
func measureBulk(b *testing.B, paths []*egressPath, hello []byte, m map[string][]float64) {
	upload := append(slices.Concat(hello, record), make([]byte, bulkBytes)...)
	for round := range 1 + bulkRounds {
		for _, i := range rand.Perm(len(paths)) {
			p := paths[i]
			if p.lookUp != nil {
				p.lookUp()
			}
			down := p.exchange(b, downloadPort, hello, bulkBytes)
			up := p.exchange(b, uploadPort, upload, 1)
			if round > 0 {
				m[p.name+"-down"] = append(m[p.name+"-down"], bulkBytes/1e6/down.Seconds())
				m[p.name+"-up"] = append(m[p.name+"-up"], bulkBytes/1e6/up.Seconds())
			}
		}
	}
}

// reportPaths gives medians, and the median of each round's ratio: what else
// the machine does meanwhile slows the paths of one round alike.
func reportPaths(b *testing.B, paths []*egressPath, m map[string][]float64) {
	for _, p := range paths {
		for _, way := range []string{"down", "up"} {
			own, base := m[p.name+"-"+way], m["relay-"+way]
			ratios := make([]float64, len(own))
			for i := range own {
				ratios[i] = own[i] / base[i]
			}
			b.ReportMetric(median(own), p.name+"-"+way+"-MB/s")
			if p.name != "relay" {
				b.ReportMetric(median(ratios), p.name+"-"+way+"-ratio")
			}
		}
		if p.context {
			b.ReportMetric(float64(p.failed), p.name+"-failed")
		}
		setup := median(m[p.name+"-setup"])
		b.ReportMetric(setup, p.name+"-setup-µs")
		if p.name != "relay" {
			b.ReportMetric(setup-median(m["relay-setup"]), p.name+"-added-µs")
		}
	}
}

// countRecords counts the allowed connections by host.
func countRecords(b *testing.B, path string) map[string]int {
	n := map[string]int{"raw.example.com": 0, "allowed.example.com": 0}
	for _, r := range readRecords(b, path) {
		if r.Event == netguard.EventDecision && r.Via == netguard.ViaGateway && r.Allow {
			n[r.Host]++
		}
	}
	return n
}

// clientHello is what a TLS client for the name sends first.
func clientHello(b *testing.B, name string) []byte {
	b.Helper()
	ours, theirs := net.Pipe()
	go func() {
		_ = tls.Client(theirs, &tls.Config{ServerName: name, MinVersion: tls.VersionTLS12}).Handshake()
	}()
	buf := make([]byte, 16<<10)
	n, err := ours.Read(buf)
	if err != nil {
		b.Fatal(err)
	}
	_ = ours.Close()
	return buf[:n]
}

// serveBulk runs the three servers at the host.
func serveBulk(l *lab.Lab, host string, hello int) {
	one := []byte{1}
	serve := func(port int, answer func(c net.Conn)) {
		ln := l.Listen(fmt.Sprintf("%s:%d", host, port))
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close() // a test's server
					if _, err := io.ReadFull(c, make([]byte, hello)); err == nil {
						answer(c)
						_ = c.(*net.TCPConn).CloseWrite()
						_, _ = io.Copy(io.Discard, c)
					}
				}()
			}
		}()
	}
	serve(setupPort, func(c net.Conn) { _, _ = c.Write(one) })
	serve(downloadPort, func(c net.Conn) {
		block := make([]byte, 256<<10)
		for range bulkBytes / len(block) {
			if _, err := c.Write(block); err != nil {
				return
			}
		}
	})
	serve(uploadPort, func(c net.Conn) {
		block := make([]byte, 256<<10)
		for left := len(record) + bulkBytes; left > 0; {
			n, err := c.Read(block)
			if err != nil {
				return
			}
			left -= n
		}
		_, _ = c.Write(one)
	})
}
