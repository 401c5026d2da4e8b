package integration

import (
	"bytes"
	"context"
	"fmt"
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

	"github.com/sandboxd/sandboxd/test/integration/lab"
)

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
	err := in.do(func() error {
		ns, err := os.Open(path)
		if err != nil {
			return err
		}
		defer ns.Close()
		return unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
	})
	if err != nil {
		b.Fatal(err)
	}
	return in
}

func (in *insider) do(f func() error) error {
	done := make(chan error)
	in.work <- func() { done <- f() }
	return <-done
}

// exchange connects, sends, and times until want bytes are back; then it waits
// for the end, so that the next exchange has the machine to itself.
func (in *insider) exchange(host netip.Addr, port int, send []byte, want int) (took time.Duration, err error) {
	buf := make([]byte, 256<<10)
	err = in.do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd) // its bytes are all here
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
	return took, err
}

// lookUp asks the gateway's resolver, which opens the name's addresses.
func (in *insider) lookUp(b *testing.B, name string) {
	b.Helper()
	err := in.do(func() error {
		r, _, err := (&dns.Client{}).Exchange(new(dns.Msg).SetQuestion(name+".", dns.TypeA), "198.18.0.1:53")
		if err == nil && len(r.Answer) == 0 {
			err = fmt.Errorf("no address for %s", name)
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
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
	err := enter(b, netnsPath(gateway)).do(func() error {
		listener, err := net.Listen("tcp4", "198.18.0.1:1053")
		if err != nil {
			return err
		}
		defer listener.Close() // the copy lives on
		ln, err = listener.(*net.TCPListener).File()
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
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
		defer extra.Close() // the program has it
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
