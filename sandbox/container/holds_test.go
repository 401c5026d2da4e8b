//go:build linux

package container

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

// TestGuestIsNobody: the guest's user, its capabilities and its environment,
// as it sees them and as the host does.
func TestGuestIsNobody(t *testing.T) {
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
		h := newHost(t)
		req := request()
		req.Spec.Isolation, req.Spec.Env = tier, []string{"TOKEN=a b", "PATH=/x"}
		g := start(t, h, req)
		other := start(t, h, req)

		if got := g.must("ids"); !strings.HasPrefix(got, "65532 65532 65532 ") || strings.HasSuffix(got, " 1") {
			t.Errorf("ids %q", got)
		}
		if got := g.must("env"); got != "TOKEN=a b\nPATH=/x\nHOME=/home/mcp" {
			t.Errorf("environment %q", got)
		}
		rec, err := h.cl.ContainerService().Get(h.ctx(t.Context()), g.box.ID())
		if err != nil {
			t.Fatal(err)
		}
		bundle, err := os.ReadFile(filepath.Join(lab.dir, "state/io.containerd.runtime.v2.task", h.cfg.Namespace, g.box.ID(), "config.json"))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(rec.Spec.GetValue())+string(bundle), "TOKEN") {
			t.Error("the environment is in containerd's database or on disk")
		}
		if got := g.must("cwd"); got != guestHome {
			t.Errorf("working folder %q", got)
		}
		status := g.must("read", "/proc/self/status")
		for _, want := range []string{"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "CapBnd:\t0000000000000000"} {
			if !strings.Contains(status, want) {
				t.Errorf("no %q in status", want)
			}
		}
		if !strings.Contains(status, "Seccomp:\t2") {
			t.Error("no filter of system calls")
		}
		if tier == sandbox.Container && !strings.Contains(status, "NoNewPrivs:\t1") {
			t.Error("new privileges can be had")
		}
		a, b := hostOwners(t, g.box), hostOwners(t, other.box)
		for _, uid := range append(slices.Clone(a), b...) {
			if uid < defaultIDBase {
				t.Errorf("a process of the sandbox is uid %d on the host", uid)
			}
		}
		for _, uid := range a {
			if slices.Contains(b, uid) {
				t.Errorf("two sandboxes share the host's uid %d", uid)
			}
		}
		// Setuid root in the image gives nothing.
		if got := g.must("run", "/kit", "noop"); got != "" {
			t.Errorf("setuid kit said %q", got)
		}
	})
}

// hostOwners are the host's uids of a box's processes.
func hostOwners(t *testing.T, b Box) []uint32 {
	t.Helper()
	var out []uint32
	for _, pid := range pidsOf(t, b) {
		var st unix.Stat_t
		if err := unix.Stat("/proc/"+pid, &st); err == nil {
			out = append(out, st.Uid)
		}
	}
	if len(out) == 0 {
		t.Fatal("the sandbox has no processes")
	}
	return out
}

func pidsOf(t *testing.T, b Box) []string {
	t.Helper()
	dir := filepath.Join(cgroupRoot, "pids", b.(*box).group)
	if unified() {
		dir = filepath.Join(cgroupRoot, b.(*box).group)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(raw))
}

// TestFileSystem: what can be written, and how much of it.
func TestFileSystem(t *testing.T) {
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
		req := request()
		req.Spec.Isolation = tier
		req.Spec.Limits.TmpBytes = 8 << 20
		g := start(t, newHost(t), req)
		for _, p := range []string{"/x", "/etc/x", "/etc/passwd", "/etc/hosts", "/kit", "/proc/sys/kernel/hostname", "/dev/x", "/home/x", "/sys/x", "/proc/sysrq-trigger"} {
			if a := g.do("write", p, "x"); a.Err == "" {
				t.Errorf("wrote %s", p)
			}
		}
		for _, dir := range []string{guestHome, "/tmp", "/dev/shm"} {
			g.must("write", dir+"/x", "x")
		}
		for _, dir := range []string{guestHome, "/tmp"} {
			if a := g.do("fill", dir+"/big", "16"); a.Err != "no space left on device" {
				t.Errorf("16 MiB into the 8 of %s: %q", dir, a.Err)
			}
			g.must("write", dir+"/big", "")
		}
		if got := g.must("stat", guestHome); got != "65532 65532 40700" {
			t.Errorf("HOME is %s", got)
		}
		if got := g.must("stat", "/secret"); got != "0 0 100600" {
			t.Errorf("the image's file is %s", got)
		}
		if a := g.do("read", "/secret"); a.Err != "permission denied" {
			t.Errorf("root's file: %q, %s", a.Out, a.Err)
		}
		if got := g.must("read", "/etc/resolv.conf"); !strings.Contains(got, "198.18.0.1") {
			t.Errorf("resolv.conf: %q", got)
		}
	})
}

// TestDevicesAndKernelFiles: the guest sees no device beyond the harmless,
// and none of the files in which the kernel speaks of the host.
func TestDevicesAndKernelFiles(t *testing.T) {
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
		req := request()
		req.Spec.Isolation = tier
		g := start(t, newHost(t), req)
		allowed := []string{"null", "zero", "full", "random", "urandom", "tty", "shm", "init", "fd", "stdin", "stdout", "stderr", "ptmx", "core", "pts", "console", "mqueue", "fuse", "net", "net/tun", "pts/ptmx"}
		for p := range strings.Lines(g.must("ls", "/dev")) {
			name := strings.TrimPrefix(strings.TrimSpace(p), "/dev")
			if strings.HasPrefix(name, "/char") {
				continue // gVisor's links to its own
			}
			if name != "" && !slices.Contains(allowed, name[1:]) {
				t.Errorf("device %q", p)
			}
		}
		for _, p := range []string{"/dev/mem", "/dev/kmsg", "/dev/vda", "/dev/fuse", "/dev/net/tun", "/proc/kcore", "/proc/kallsyms", "/proc/keys", "/proc/modules", "/proc/kmsg", "/proc/config.gz"} {
			if a := g.do("read", p); a.Err == "" && a.Out != "" {
				t.Errorf("read %d bytes of %s", len(a.Out), p)
			}
		}
		if got := g.must("fds"); strings.Contains(got, "net:[") || strings.Contains(got, ".sock") || len(strings.Split(got, "\n")) > 8 {
			t.Errorf("descriptors:\n%s", got)
		}
		if got := g.must("ls", "/sys"); strings.Contains(got, "/sys/kernel/security") {
			t.Errorf("/sys shows the host: %s", got)
		}
	})
}

// TestSystemCalls: each is refused, by the filter.
func TestSystemCalls(t *testing.T) {
	const (
		ioUringSetup, userfaultfd, bpf, perf  = 425, 323, 321, 298
		keyctl, mount, unshare, clone3, setns = 250, 165, 272, 435, 308
		openTree, moveMount, fsopen, ptrace   = 428, 429, 430, 101
		openByHandle, sethostname, chroot     = 304, 170, 161
		settime, swapon, reboot, kexec        = 227, 167, 169, 246
		socket, clone, mknod, pidfdGetfd      = 41, 56, 133, 438
		newUser, newNet                       = 0x10000000, 0x40000000
		chmod, fchmodat2, openat, openat2     = 90, 452, 257, 437
		creat, setuid                         = 85, "0o4755"
		fcntl, setrlimit, prlimit64           = 72, 160, 302
		unseen                                = 1 << 32 // a bit that the kernel does not look at
	)
	n := func(i int) string { return strconv.Itoa(i) }
	calls := map[string][]string{
		"io_uring_setup": {n(ioUringSetup), "8", "0"}, "userfaultfd": {n(userfaultfd), "1"},
		"bpf": {n(bpf), "0", "0", "0"}, "perf_event_open": {n(perf), "0", "0", "-1", "-1", "0"},
		"keyctl": {n(keyctl), "0", "-3", "0"}, "mount": {n(mount), "'none", "'/tmp", "'tmpfs", "0", "0"},
		"unshare user": {n(unshare), n(newUser)}, "unshare net": {n(unshare), n(newNet)}, "clone3": {n(clone3), "0", "0"},
		"clone user": {n(clone), n(newUser | 17), "0", "0", "0", "0"},
		"setns":      {n(setns), "0", "0"}, "open_tree": {n(openTree), "-100", "'/", "1"}, "move_mount": {n(moveMount), "0", "0", "0", "0", "0"},
		"fsopen": {n(fsopen), "'tmpfs", "0"}, "ptrace": {n(ptrace), "16", "1", "0", "0"},
		"open_by_handle_at": {n(openByHandle), "0", "0", "0"}, "sethostname": {n(sethostname), "'x", "1"}, "chroot": {n(chroot), "'/tmp"},
		"clock_settime": {n(settime), "0", "0"}, "swapon": {n(swapon), "'/x", "0"}, "reboot": {n(reboot), "0", "0", "0"},
		"kexec_load": {n(kexec), "0", "0", "0", "0"}, "pidfd_getfd": {n(pidfdGetfd), "0", "0", "0"},
		"mknod device":     {n(mknod), "'/tmp/dev", n(unix.S_IFBLK | 0o600), n(254 << 8)},
		"socket raw":       {n(socket), n(unix.AF_INET), n(unix.SOCK_RAW), "1"},
		"socket packet":    {n(socket), n(unix.AF_PACKET), n(unix.SOCK_RAW), "0"},
		"socket vsock":     {n(socket), n(unix.AF_VSOCK), n(unix.SOCK_STREAM), "0"},
		"socket alg":       {n(socket), n(unix.AF_ALG), n(unix.SOCK_SEQPACKET), "0"},
		"socket nfnl":      {n(socket), n(unix.AF_NETLINK), n(unix.SOCK_RAW), n(unix.NETLINK_NETFILTER)},
		"socket sctp":      {n(socket), n(unix.AF_INET), n(unix.SOCK_STREAM), n(unix.IPPROTO_SCTP)},
		"chmod setuid":     {n(chmod), "'/tmp/x", setuid},
		"chmod setgid":     {n(chmod), "'/tmp/x", "0o2755"},
		"fchmodat2 setuid": {n(fchmodat2), "-100", "'/tmp/x", setuid, "0"},
		"openat setuid":    {n(openat), "-100", "'/tmp/y", n(unix.O_CREAT | unix.O_WRONLY), setuid},
		"openat tmpfile":   {n(openat), "-100", "'/tmp", n(unix.O_TMPFILE | unix.O_WRONLY), setuid},
		"openat2":          {n(openat2), "-100", "'/tmp/y", "0", "24"},
		"creat setuid":     {n(creat), "'/tmp/y", setuid},
		"socket ping":      {n(socket), n(unix.AF_INET), n(unix.SOCK_DGRAM), "1"},
		"lease":            {n(fcntl), "0", n(unix.F_SETLEASE), "0"},
		"lease, unseen":    {n(fcntl), "0", n(unseen | unix.F_SETLEASE), "0"},
		"notify":           {n(fcntl), "0", n(unix.F_NOTIFY), "0"},
		"core limit":       {n(setrlimit), n(unix.RLIMIT_CORE), "'0123456789abcdef"},
		"core, prlimit":    {n(prlimit64), "0", n(unix.RLIMIT_CORE), "'0123456789abcdef", "0"},
		"core, unseen":     {n(prlimit64), "0", n(unseen | unix.RLIMIT_CORE), "'0123456789abcdef", "0"},
	}
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
		req := request()
		req.Spec.Isolation = tier
		g := start(t, newHost(t), req)
		g.must("write", "/tmp/x", "")
		g.must("call", n(chmod), "'/tmp/x", "0o755")
		for name, args := range calls {
			if tier == sandbox.GVisor && name == "clone3" {
				continue // its kernel's own, see seccompProfile
			}
			a := g.do("call", args...)
			if a.Err == "" {
				t.Errorf("%s: allowed, returned %s", name, a.Out)
			}
			if a.Err != "operation not permitted" && a.Err != "function not implemented" {
				t.Errorf("%s: got past the filter: %s", name, a.Err)
			}
		}
		g.must("call", n(openat), "-100", "'/tmp", n(unix.O_DIRECTORY), setuid) // a mode of no meaning
		for _, cmd := range []int{unix.F_GETFD, unix.F_GETFL, unix.F_DUPFD_CLOEXEC} {
			g.must("call", n(fcntl), "0", n(cmd), "0")
		}
		g.must("call", n(prlimit64), "0", n(unix.RLIMIT_CORE), "0", "0") // asks only
		for name, args := range map[string][]string{
			"tcp": {n(socket), n(unix.AF_INET6), n(unix.SOCK_STREAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK), "6"},
			"udp": {n(socket), n(unix.AF_INET), n(unix.SOCK_DGRAM), "0"}, "unix": {n(socket), n(unix.AF_UNIX), n(unix.SOCK_STREAM), "0"},
			"routing netlink": {n(socket), n(unix.AF_NETLINK), n(unix.SOCK_RAW), "0"},
		} {
			if a := g.do("call", args...); a.Err != "" {
				t.Errorf("%s socket: %s", name, a.Err)
			}
		}
	})
}

// TestForkBomb: processes end at the limit, and the neighbour has its own.
func TestForkBomb(t *testing.T) {
	h := newHost(t)
	req := request()
	req.Spec.Limits.PIDs = 40
	g := start(t, h, req)
	neighbour := start(t, h, request())
	if a := g.do("fork", "100"); a.Err != "resource temporarily unavailable" {
		t.Errorf("after %s processes: %q", a.Out, a.Err)
	}
	neighbour.must("fork", "3")
	if err := g.box.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := g.exit(); e.PeakPIDs > 40 {
		t.Errorf("it had %d processes", e.PeakPIDs)
	}
}

// TestOrphansAreReaped: what loses its parent becomes no zombie.
func TestOrphansAreReaped(t *testing.T) {
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
		req := request()
		req.Spec.Isolation = tier
		g := start(t, newHost(t), req)
		pid := strings.TrimSpace(g.must("run", "/kit", "orphan"))
		n, err := strconv.Atoi(pid)
		if err != nil {
			t.Fatalf("orphan said %q", pid)
		}
		g.must("call", strconv.Itoa(unix.SYS_KILL), pid, "9")
		for range 200 {
			if a := g.do("read", "/proc/"+strconv.Itoa(n)+"/status"); a.Err != "" {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Errorf("process %d is still there: %s", n, g.must("read", "/proc/"+pid+"/status"))
	})
}

// TestGVisorIsNotTheHost: the kernel that answers is gVisor's own.
func TestGVisorIsNotTheHost(t *testing.T) {
	host, err := os.ReadFile("/proc/version")
	if err != nil {
		t.Fatal(err)
	}
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
		req := request()
		req.Spec.Isolation = tier
		g := start(t, newHost(t), req)
		release, rest, _ := strings.Cut(g.must("uname"), "\n")
		name, version, _ := strings.Cut(rest, "\n")
		if name != hostname {
			t.Errorf("host name %q", name)
		}
		t.Logf("kernel %s: %s", release, strings.TrimSpace(version))
		if same := version == string(host); same != (tier == sandbox.Container) {
			t.Errorf("kernel %q inside, %q outside", version, host)
		}
	})
}
