//go:build linux

// Package lab builds a small internet for tests: a network namespace of the
// test's own in which public addresses are local, with real DNS and TLS
// servers, and a way to run programs in it as an ordinary user. Nothing in it
// can reach beyond the machine: the namespace has a loopback and no route out.
package lab

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The lab's public addresses. Inside the namespace they are all on loopback.
const (
	AllowedV4 = "93.184.215.14" // the host that policies name
	AllowedV6 = "2606:2800:21f:cb07:6820:80da:af6b:8b2c"
	OtherV4   = "198.35.26.96" // a host that no policy names
	RawV4     = "151.101.1.6"  // a host for protocol: tcp
)

// UserID is the ordinary user that programs run as; it needs no entry in
// /etc/passwd.
const UserID = 47011

// Lab is one namespace. Its servers end with the test.
type Lab struct {
	t    testing.TB
	name string
	Home string // a folder that the ordinary user owns
	CA   *CA
}

// New makes the namespace; the test skips where it is not root.
func New(t testing.TB) *Lab {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("the integration tests need root")
		}
		t.Skip("needs root to make network namespaces")
	}
	l := &Lab{t: t, name: fmt.Sprintf("sblab-%d-%d", os.Getpid(), nextID())}
	l.run("ip", "netns", "add", l.name)
	t.Cleanup(func() { l.run("ip", "netns", "del", l.name) })
	l.run("ip", "-n", l.name, "link", "set", "lo", "up")
	for _, a := range []string{AllowedV4, OtherV4, RawV4} {
		l.run("ip", "-n", l.name, "addr", "add", a+"/32", "dev", "lo")
	}
	l.run("ip", "-n", l.name, "addr", "add", AllowedV6+"/128", "dev", "lo", "nodad")
	l.Home = UserDir(t)
	l.CA = newCA(t)
	return l
}

// UserDir makes a folder that the ordinary user owns and can reach.
func UserDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sblab-home-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chown(dir, UserID, UserID); err != nil {
		t.Fatal(err)
	}
	return dir
}

// WriteFile puts a file into the ordinary user's home.
func (l *Lab) WriteFile(name, content string) string {
	l.t.Helper()
	p := filepath.Join(l.Home, name)
	if err := os.WriteFile(p, []byte(content), 0o600); err != nil {
		l.t.Fatal(err)
	}
	if err := os.Chown(p, UserID, UserID); err != nil {
		l.t.Fatal(err)
	}
	return p
}

func (l *Lab) run(name string, args ...string) {
	l.t.Helper()
	out, err := exec.CommandContext(context.Background(), name, args...).CombinedOutput()
	if err != nil {
		l.t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// Do runs fn on a thread inside the namespace. Sockets that fn makes stay
// there. The thread is thrown away afterwards.
func (l *Lab) Do(fn func() error) error {
	errc := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		f, err := os.Open(filepath.Join("/run/netns", l.name))
		if err != nil {
			errc <- err
			return
		}
		defer f.Close() //nolint:errcheck // read only
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			errc <- err
			return
		}
		errc <- fn()
	}()
	return <-errc
}

// Listen opens a listener inside the namespace.
func (l *Lab) Listen(address string) net.Listener {
	l.t.Helper()
	var ln net.Listener
	err := l.Do(func() (err error) {
		ln, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = ln.Close() })
	return ln
}

// ListenPacket opens a UDP socket inside the namespace.
func (l *Lab) ListenPacket(address string) net.PacketConn {
	l.t.Helper()
	var pc net.PacketConn
	err := l.Do(func() (err error) {
		pc, err = (&net.ListenConfig{}).ListenPacket(context.Background(), "udp", address)
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = pc.Close() })
	return pc
}

// Command prepares a program that runs inside the namespace as the ordinary
// user, with the lab's home and nothing of the test's environment but PATH.
func (l *Lab) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return asUser(ctx, l.Home, append([]string{"nsenter", "--net=" + filepath.Join("/run/netns", l.name), "--"}, setpriv(name, args)...))
}

// UserCommand prepares a program that runs as the ordinary user in the
// machine's own network.
func UserCommand(ctx context.Context, home, name string, args ...string) *exec.Cmd {
	return asUser(ctx, home, setpriv(name, args))
}

func setpriv(name string, args []string) []string {
	id := fmt.Sprint(UserID)
	return append([]string{"setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--", name}, args...)
}

func asUser(ctx context.Context, home string, argv []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = home
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "LANG=C.UTF-8"}
	// A group of its own, so that a test can signal the program and not itself.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// UserCommandOutput runs a program as the ordinary user, with more variables,
// and returns what it printed.
func UserCommandOutput(name string, env []string, args ...string) ([]byte, error) {
	cmd := UserCommand(context.Background(), "/", name, args...)
	cmd.Env = append(cmd.Env, env...)
	return cmd.Output()
}
