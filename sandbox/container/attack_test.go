//go:build linux

package container

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

// arena is what of the host's the attacks are after, all of it made by the
// test.
type arena struct {
	dir    string // holds the rest
	token  string // of the canary, of a neighbour's memory, and of names
	canary string // a file that no mount shows
	agent  string // a program for the host's kernel to run, which makes ran
	ran    string
	socket string // in the read-only mount, and an abstract one
	link   string // to the canary, in the writable mount
	mounts []sandbox.Mount
}

func newArena(t *testing.T) *arena {
	t.Helper()
	raw := make([]byte, 8)
	if _, err := rand.Read(raw); err != nil {
		t.Fatal(err)
	}
	a := &arena{token: hex.EncodeToString(raw)}
	var err error
	if a.dir, err = os.MkdirTemp("", "sandboxd-arena"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(a.dir); err != nil {
			t.Error(err)
		}
	})
	a.canary, a.agent, a.ran = filepath.Join(a.dir, "canary"), filepath.Join(a.dir, "agent"), filepath.Join(a.dir, "ran")
	a.socket, a.link = filepath.Join(a.dir, "data/ro/socket"), filepath.Join(a.dir, "data/rw/link")
	if err := errors.Join(
		os.Chmod(a.dir, 0o755), os.Mkdir(filepath.Join(a.dir, "data"), 0o755),
		os.Mkdir(filepath.Join(a.dir, "data/ro"), 0o755), os.Mkdir(filepath.Join(a.dir, "data/rw"), 0o755),
		os.WriteFile(a.canary, []byte(a.token), 0o644), os.WriteFile(filepath.Join(a.dir, "data/ro/file"), []byte(a.token), 0o644),
		os.WriteFile(a.agent, []byte("#!/bin/sh\n: >'"+a.ran+"'\n"), 0o755), os.Symlink(a.canary, a.link),
		os.Chown(filepath.Join(a.dir, "data/ro"), callerUID, callerGID), os.Chown(filepath.Join(a.dir, "data/rw"), callerUID, callerGID),
		os.Chown(filepath.Join(a.dir, "data/ro/file"), callerUID, callerGID),
	); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{a.socket, a.abstract()} {
		l, err := net.Listen("unix", name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
	}
	if err := os.Chmod(a.socket, 0o777); err != nil {
		t.Fatal(err)
	}
	a.mounts = []sandbox.Mount{
		{Source: openPath(t, filepath.Join(a.dir, "data/ro")), Target: "/data/ro"},
		{Source: openPath(t, filepath.Join(a.dir, "data/rw")), Target: "/data/rw", ReadWrite: true},
	}
	return a
}

func (a *arena) abstract() string { return "@sandboxd-arena-" + a.token }

// request is for a kit that has the arena's mounts.
func (a *arena) request(tier sandbox.Isolation) Request {
	req := request()
	byCaller(&req)
	req.Spec.Isolation, req.Spec.Mounts = tier, a.mounts
	req.Spec.Limits.TmpBytes = 8 << 20
	return req
}

// harmed checks on the host that nothing was changed, and undoes it.
func (a *arena) harmed() string {
	var harm []string
	file := filepath.Join(a.dir, "data/ro/file")
	if b, err := os.ReadFile(file); err != nil || string(b) != a.token {
		harm = append(harm, "the read-only file was changed")
	}
	if _, err := os.Stat(a.ran); err == nil {
		harm = append(harm, "a program ran on the host")
	}
	rw, err := os.ReadDir(filepath.Join(a.dir, "data/rw"))
	if err != nil {
		harm = append(harm, err.Error())
	}
	for _, e := range rw {
		i, err := e.Info()
		if err == nil && i.Mode()&(os.ModeSetuid|os.ModeDevice) != 0 || strings.HasPrefix(e.Name(), "core") {
			harm = append(harm, "a writable folder holds "+e.Name())
		}
		if e.Name() != "link" {
			if err := os.Remove(filepath.Join(a.dir, "data/rw", e.Name())); err != nil {
				harm = append(harm, err.Error())
			}
		}
	}
	if err := errors.Join(os.RemoveAll(a.ran), os.WriteFile(file, []byte(a.token), 0o644)); err != nil {
		harm = append(harm, err.Error())
	}
	return strings.Join(harm, ", ")
}

// attack is one thing that no guest may do. It has worked when the kit says
// so, and what it found holds the arena's token where there is something to
// be found.
type attack struct {
	name  string
	op    string
	args  []string
	finds bool
}

func attacks(a *arena) []attack {
	n := strconv.Itoa
	socket := func(family, kind, proto int) []string { return []string{n(family), n(kind), n(proto)} }
	return []attack{
		{"a file of the host's", "attack host file", []string{a.canary}, true},
		{"another sandbox's memory", "attack memory", []string{"NEIGHBOUR=" + a.token}, false},
		{"/proc/sys", "attack sysctl", nil, false},
		{"the host's core pattern", "attack core pattern", nil, false},
		{"cgroup release agent", "attack release agent", []string{a.agent, a.ran}, false},
		{"cgroup hierarchy of the own limits", "attack cgroup", nil, false},
		{"mount", "attack mount", nil, false},
		{"remount of the root", "attack remount", nil, false},
		{"ptrace", "attack ptrace", nil, false},
		{"device node", "attack device", nil, false},
		{"/dev/mem or /proc/kcore", "attack memory device", nil, false},
		{"the kernel's log", "attack kernel log", nil, false},
		{"the kernel's keyring", "attack keyring", nil, false},
		{"abstract Unix socket", "attack unix socket", []string{a.abstract()}, false},
		{"the host's Unix socket in a mount", "attack unix socket", []string{"/data/ro/socket"}, false},
		{"netlink beyond routes", "attack netlink", nil, false},
		{"change of an interface", "attack interface", nil, false},
		{"raw socket", "attack socket", socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP), false},
		{"packet socket", "attack socket", socket(unix.AF_PACKET, unix.SOCK_RAW, 0), false},
		{"vsock socket", "attack socket", socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0), false},
		{"new user namespace", "attack user namespace", nil, false},
		{"symlink out of a mount", "read", []string{"/data/rw/link"}, true},
		{"hard link across mounts", "attack hard link", nil, false},
		{"writing through a read-only mount", "append", []string{"/data/ro/file", "x"}, false},
		{"set-uid file in a mount", "attack set-uid file", nil, false},
		{"core dump into a mount", "attack core dump", nil, false},
		{"filling the root's disk", "fill", []string{"/fill", "16"}, false},
		{"filling /tmp", "fill", []string{"/tmp/fill", "16"}, false},
		{"the host's clock", "attack clock", nil, false},
		{"host name", "attack host name", nil, false},
	}
}

// try makes an attack and says whether it worked, and how it went.
func (a *arena) try(t *testing.T, g *guest, at attack) (worked bool, how string) {
	t.Helper()
	r := g.do(at.op, at.args...)
	if strings.HasPrefix(r.Err, "unknown command") {
		t.Fatalf("%s: %s", at.name, r.Err)
	}
	harm := a.harmed()
	worked = harm != "" || r.Err == "" && (!at.finds || strings.Contains(r.Out, a.token))
	if how = r.Err; how == "" {
		how = strings.Trim(r.Out+" "+harm, " ")
	}
	return worked, strings.ReplaceAll(how, "\n", "; ")
}

// privileged takes away what a sandbox is made of: it leaves the guest root,
// with all capabilities, no filter, the host's processes and devices, and the
// arena.
func privileged(a *arena) func(*specs.Spec) {
	return func(s *specs.Spec) {
		all := capabilities()
		s.Root.Readonly = false
		// Set-uid programs, of which the kit is one, have a test of their own.
		s.Process.User, s.Process.NoNewPrivileges = specs.User{}, true
		s.Process.Rlimits, s.Process.OOMScoreAdj = nil, nil
		s.Process.Capabilities = &specs.LinuxCapabilities{Bounding: all, Effective: all, Permitted: all, Inheritable: all}
		s.Linux.Seccomp, s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = nil, nil, nil
		s.Linux.UIDMappings, s.Linux.GIDMappings = nil, nil
		s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool {
			return n.Type != specs.MountNamespace && n.Type != specs.UTSNamespace && n.Type != specs.NetworkNamespace
		})
		s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
		s.Mounts = slices.DeleteFunc(s.Mounts, func(m specs.Mount) bool { return strings.HasPrefix(m.Destination, "/data/") })
		for i, m := range s.Mounts {
			if m.Destination == "/tmp" {
				s.Mounts[i].Options = []string{"mode=1777"}
			}
		}
		bind := func(from, to string) specs.Mount {
			return specs.Mount{Type: "bind", Source: from, Destination: to, Options: []string{"rbind", "rw"}}
		}
		s.Mounts = append(s.Mounts, bind(filepath.Join(a.dir, "data"), "/data"), bind(a.dir, a.dir))
	}
}

// capabilities are this process's own.
func capabilities() []string {
	names := []string{
		"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "NET_BIND_SERVICE",
		"NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE",
		"SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "SYSLOG",
	}
	for i, n := range names {
		names[i] = "CAP_" + n
	}
	return names
}

// TestAttacks has a guest try everything of the kit: first in a sandbox that
// was weakened until each attack works, then in the real ones, where none may.
func TestAttacks(t *testing.T) {
	a := newArena(t)
	h := newHost(t)
	neighbour := a.request(sandbox.Container)
	neighbour.Spec.Env = []string{"NEIGHBOUR=" + a.token}
	start(t, h, neighbour)

	t.Cleanup(func() { forgetHierarchy(t) })
	weak := weakHost(t, privileged(a))
	g := start(t, weak, a.request(sandbox.Container))
	listenBeside(t, g, a.abstract())
	rows := newTable(t)
	for _, at := range attacks(a) {
		worked, how := a.try(t, g, at)
		rows.add(at.name, "weakened", worked, how)
		if !worked && !absent(how) {
			t.Errorf("%s: does not work where nothing stops it: %s", at.name, how)
		}
	}
	worked, how := a.try(t, g, attack{op: "attack descriptors", args: []string{a.canary, a.dir}, finds: true})
	if rows.add("leaked descriptor", "weakened", worked, how); !worked {
		t.Errorf("a leaked descriptor leads nowhere: %s", how)
	}
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
		g := start(t, h, a.request(tier))
		real := append(attacks(a), attack{"leaked descriptor", "attack descriptors", []string{a.canary}, true},
			attack{"set-uid program", "attack set-uid", nil, false})
		for _, at := range real {
			worked, how := a.try(t, g, at)
			if rows.add(at.name, tier.String(), worked, how); worked {
				t.Errorf("%s: worked: %s", at.name, how)
			}
		}
	})
}

// forgetHierarchy removes the cgroup hierarchy that the release agent was
// armed in. The kernel keeps one whose last group was still going when it was
// unmounted, until it is unmounted again.
func forgetHierarchy(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	for range 500 {
		groups, err := os.ReadFile("/proc/self/cgroup")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(groups), "name=sandboxd-kit:") {
			return
		}
		if err := unix.Mount("none", dir, "cgroup", 0, "none,name=sandboxd-kit"); err != nil {
			t.Fatal(err)
		}
		if err := unix.Unmount(dir, 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	// It is the weakened sandbox's, and says nothing of the real ones.
	t.Log("the kernel still keeps the attack's cgroup hierarchy")
}

// absent reports whether an attack failed for want of the thing itself, on a
// host that has no such device, family or hierarchy. That shows nothing.
func absent(how string) bool {
	return slices.Contains([]string{
		unix.ENOENT.Error(), unix.ENXIO.Error(), unix.ENODEV.Error(), unix.EAFNOSUPPORT.Error(), unix.EPROTONOSUPPORT.Error(),
	}, how)
}

// weakHost weakens each spec. It is another instance, beside the real one.
func weakHost(t *testing.T, loosen func(*specs.Spec)) *host {
	t.Helper()
	h := newHost(t, func(c *Config) {
		c.Instance = instance + "-weak"
		c.IDBase = defaultIDBase + 1000*idRange
		c.IDCount = 100
	})
	h.loosen = loosen
	return h
}

// listenBeside opens an abstract socket in a guest's network namespace, as if
// the guest shared that of the host.
func listenBeside(t *testing.T, g *guest, name string) {
	t.Helper()
	if err := inNetns(g.box.(*box).net.guest, func() error {
		l, err := net.Listen("unix", name)
		if err == nil {
			t.Cleanup(func() { _ = l.Close() })
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// TestSetUIDGivesNothing: a set-uid program of root's makes a guest root of
// its sandbox where new privileges can be had, and nothing where they cannot.
func TestSetUIDGivesNothing(t *testing.T) {
	weak := weakHost(t, func(s *specs.Spec) {
		s.Process.NoNewPrivileges, s.Linux.Seccomp = false, nil
		s.Process.Capabilities.Bounding = capabilities()
	})
	h := newHost(t)
	rows := newTable(t)
	a := start(t, weak, request()).do("attack set-uid")
	if rows.add("set-uid program", "weakened", a.Err == "", a.Err); a.Err != "" {
		t.Errorf("weakened: %s", a.Err)
	}
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
		req := request()
		req.Spec.Isolation = tier
		a := start(t, h, req).do("attack set-uid")
		if rows.add("set-uid program", tier.String(), a.Err == "", a.Err); a.Err != "it ran as 65532" {
			t.Errorf("set-uid: %q", a.Err)
		}
	})
}
