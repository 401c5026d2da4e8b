package integration

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/netguard"
	"github.com/sandboxd/sandboxd/test/integration/lab"
)

const (
	bulkBytes    = 64 << 20
	bulkRounds   = 15
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
	paths := []egressPath{{name: "relay", in: relayPath(b, l), server: raw}}
	in, stop := gatewayPath(b, l)
	paths = append(paths,
		egressPath{name: "gateway", in: in, server: raw, lookUp: func() { in.lookUp(b, "raw.example.com") }},
		egressPath{
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
		paths = append(paths, egressPath{name: other.name, in: other.start(b, l), server: raw})
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
func measureSetup(b *testing.B, paths []egressPath, hello []byte, m map[string][]float64) {
	const warm = 20
	for round := range warm + setupRounds {
		for i := range paths {
			p := paths[(i+round)%len(paths)] // no one always follows the same
			if p.lookUp != nil && round%50 == 0 {
				p.lookUp()
			}
			d := p.in.exchange(b, p.server, setupPort, hello, 1)
			if round >= warm {
				m[p.name+"-setup"] = append(m[p.name+"-setup"], float64(d.Nanoseconds())/1e3)
			}
		}
	}
}

// measureBulk takes MB/s each way.
func measureBulk(b *testing.B, paths []egressPath, hello []byte, m map[string][]float64) {
	upload := append(slices.Concat(hello, record), make([]byte, bulkBytes)...)
	for round := range 1 + bulkRounds {
		for i := range paths {
			p := paths[(i+round)%len(paths)]
			if p.lookUp != nil {
				p.lookUp()
			}
			down := p.in.exchange(b, p.server, downloadPort, hello, bulkBytes)
			up := p.in.exchange(b, p.server, uploadPort, upload, 1)
			if round > 0 {
				m[p.name+"-down"] = append(m[p.name+"-down"], bulkBytes/1e6/down.Seconds())
				m[p.name+"-up"] = append(m[p.name+"-up"], bulkBytes/1e6/up.Seconds())
			}
		}
	}
}

// reportPaths gives medians, and the median of each round's ratio: what else
// the machine does meanwhile slows the paths of one round alike.
func reportPaths(b *testing.B, paths []egressPath, m map[string][]float64) {
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
					defer c.Close() //nolint:errcheck // a test's server
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

// insider is a thread of this process inside a network namespace. Its sockets
// block, so that the runtime's poller has no part in what is measured.
type insider struct{ work chan func() }

func enter(b *testing.B, path string) *insider {
	b.Helper()
	in := &insider{work: make(chan func())}
	b.Cleanup(func() { close(in.work) })
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for f := range in.work {
			f()
		}
	}()
	in.do(b, func() error {
		ns, err := os.Open(path)
		if err != nil {
			return err
		}
		defer ns.Close() //nolint:errcheck // read only
		return unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
	})
	return in
}

func (in *insider) do(b *testing.B, f func() error) {
	b.Helper()
	done := make(chan error)
	in.work <- func() { done <- f() }
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}

// exchange connects, sends, and times until want bytes are back; then it waits
// for the end, so that the next exchange has the machine to itself.
func (in *insider) exchange(b *testing.B, host netip.Addr, port int, send []byte, want int) (took time.Duration) {
	b.Helper()
	buf := make([]byte, 256<<10)
	in.do(b, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd) //nolint:errcheck // its bytes are all here
		began := time.Now()
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: host.As4()}); err != nil {
			return fmt.Errorf("connect to %s port %d: %w", host, port, err)
		}
		for len(send) > 0 {
			n, err := unix.Write(fd, send)
			if err != nil {
				return err
			}
			send = send[n:]
		}
		for got := 0; got < want; {
			n, err := unix.Read(fd, buf)
			if err != nil || n == 0 {
				return fmt.Errorf("%d of %d bytes from %s port %d: %w", got, want, host, port, err)
			}
			got += n
		}
		took = time.Since(began)
		if err := unix.Shutdown(fd, unix.SHUT_WR); err != nil {
			return err
		}
		_, err = unix.Read(fd, buf)
		return err
	})
	return took
}

// lookUp asks the gateway's resolver, which opens the name's addresses.
func (in *insider) lookUp(b *testing.B, name string) {
	b.Helper()
	in.do(b, func() error {
		r, _, err := (&dns.Client{}).Exchange(new(dns.Msg).SetQuestion(name+".", dns.TypeA), "198.18.0.1:53")
		if err == nil && len(r.Answer) == 0 {
			err = fmt.Errorf("no address for %s", name)
		}
		return err
	})
}

// relayPath is the least that a gateway behind a redirection could be: the
// engine's two namespaces and their link, one rule, and testdata/relay.
func relayPath(b *testing.B, l *lab.Lab) *insider {
	b.Helper()
	bin := filepath.Join(l.Home, "relay")
	build := exec.Command("go", "build", "-trimpath", "-o", bin, "./testdata/relay")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("build: %v\n%s", err, out)
	}
	guest, gateway := newNamespace(b, "guest"), newNamespace(b, "gateway")
	for _, args := range []string{
		gateway + " link add gw0 type veth peer name eth0 netns " + guest,
		gateway + " addr add 198.18.0.1/30 dev gw0", gateway + " link set gw0 up",
		guest + " addr add 198.18.0.2/30 dev eth0", guest + " link set eth0 up",
		guest + " route add default via 198.18.0.1",
	} {
		runProgram(b, "ip", append([]string{"-n"}, strings.Fields(args)...)...)
	}
	rule := "add table ip relay; add chain ip relay nat { type nat hook prerouting priority -100; }; " +
		"add rule ip relay nat iifname gw0 meta l4proto tcp redirect to :1053"
	runProgram(b, "ip", "netns", "exec", gateway, "nft", rule)
	var ln *os.File
	enter(b, netnsPath(gateway)).do(b, func() error {
		listener, err := net.Listen("tcp4", "198.18.0.1:1053")
		if err != nil {
			return err
		}
		defer listener.Close() //nolint:errcheck // the copy lives on
		ln, err = listener.(*net.TCPListener).File()
		return err
	})
	startBeside(b, l.Command(context.Background(), bin), ln)
	return enter(b, netnsPath(guest))
}

// gatewayPath is a container of `sandboxd run`: its own namespace, the engine's
// rules and the guard in the program. stop ends it and names its records.
func gatewayPath(b *testing.B, l *lab.Lab) (in *insider, stop func() string) {
	b.Helper()
	const pkg = "@modelcontextprotocol/server-everything"
	e := startEngine(b)
	buildImage(b, "npm:"+pkg)
	mark := "LAB_MARK=" + filepath.Base(l.Home)
	records := filepath.Join(l.Home, "records.jsonl")
	cmd := l.Command(context.Background(), program, "run", "--isolation", "container", "--resolver", "127.0.0.1:53",
		"--records", records, "--env", mark, "--policy", l.WriteFile("policy.yaml", benchPolicy), "--", "npx", "-y", pkg)
	cmd.Env = append(cmd.Env, e.env()...)
	stdin, err := cmd.StdinPipe() // open as long as the server is to run
	if err != nil {
		b.Fatal(err)
	}
	log := &syncBuffer{}
	cmd.Stderr = log
	done := startBeside(b, cmd, nil)
	var inside string
	until(b, "the container runs", time.Minute, func() bool {
		select {
		case err := <-done:
			b.Fatalf("run: %v\n%s", err, log)
		default:
		}
		inside = processWith(mark)
		return inside != ""
	})
	return enter(b, inside+"/ns/net"), func() string {
		_ = stdin.Close()
		if err := <-done; err != nil {
			b.Errorf("run: %v\n%s", err, log)
		}
		return records
	}
}

// processWith finds the process with the variable in its environment.
func processWith(variable string) string {
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, p := range all {
		env, _ := os.ReadFile(p) // gone meanwhile
		if slices.Contains(strings.Split(string(env), "\x00"), variable) {
			return filepath.Dir(p)
		}
	}
	return ""
}

func slirpPath(b *testing.B, l *lab.Lab) *insider {
	b.Helper()
	guest := newNamespace(b, "slirp")
	startInside(b, l, "slirp4netns", "--configure", "--mtu=65520", "--netns-type=path", netnsPath(guest), "tap0")
	return awaitRoute(b, guest)
}

func pastaPath(b *testing.B, l *lab.Lab) *insider {
	b.Helper()
	guest := newNamespace(b, "pasta")
	// It copies the configuration of an interface that routes; this one leads
	// to its own other end and no further.
	for _, args := range []string{
		"link add out0 type veth peer name out1", "addr add 192.0.2.2/24 dev out0",
		"link set out0 up", "link set out1 up", "route add default via 192.0.2.1",
	} {
		if err := l.Do(func() error { return exec.Command("ip", strings.Fields(args)...).Run() }); err != nil {
			b.Fatalf("ip %s: %v", args, err)
		}
	}
	// Root stays, since its usual user may not join a namespace of root's.
	startInside(b, l, "pasta", "--foreground", "--quiet", "--runas", "0", "--config-net",
		"-t", "none", "-u", "none", "-T", "none", "-U", "none", "--netns", netnsPath(guest))
	return awaitRoute(b, guest)
}

func newNamespace(b *testing.B, kind string) string {
	b.Helper()
	name := fmt.Sprintf("sbbench-%d-%s", os.Getpid(), kind)
	runProgram(b, "ip", "netns", "add", name)
	b.Cleanup(func() { runProgram(b, "ip", "netns", "del", name) })
	runProgram(b, "ip", "-n", name, "link", "set", "lo", "up")
	return name
}

func netnsPath(name string) string { return filepath.Join("/run/netns", name) }

func runProgram(b *testing.B, name string, args ...string) {
	b.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		b.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// startInside starts a program of root's in the lab's namespace.
func startInside(b *testing.B, l *lab.Lab, name string, args ...string) {
	b.Helper()
	cmd := exec.Command(name, args...)
	if err := l.Do(cmd.Start); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
}

// startBeside starts a program, perhaps with one more descriptor, that ends
// with the benchmark at the latest. The channel says how, and then is closed.
func startBeside(b *testing.B, cmd *exec.Cmd, extra *os.File) <-chan error {
	b.Helper()
	if extra != nil {
		cmd.ExtraFiles = []*os.File{extra}
		defer extra.Close() //nolint:errcheck // the program has it
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait(); close(done) }()
	b.Cleanup(func() { _ = cmd.Process.Kill(); <-done })
	return done
}

// awaitRoute waits until a program has configured the namespace.
func awaitRoute(b *testing.B, name string) *insider {
	b.Helper()
	until(b, name+" has a route", 10*time.Second, func() bool {
		out, _ := exec.Command("ip", "-n", name, "route").Output()
		return bytes.HasPrefix(out, []byte("default "))
	})
	return enter(b, netnsPath(name))
}
