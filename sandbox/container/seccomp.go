//go:build linux

package container

import (
	"slices"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

// neverAllowed are calls of containerd's default profile that no stdio server
// has a use for and that reach deep into the kernel. The default profile,
// given no capabilities, already leaves out the mount family, bpf, perf,
// keyctl, userfaultfd, io_uring and new namespaces; a test holds it to that.
var neverAllowed = map[string]bool{
	"ptrace": true, "process_vm_readv": true, "process_vm_writev": true, "pidfd_getfd": true,
	"process_mrelease": true, "name_to_handle_at": true, "fanotify_mark": true,
	"listmount": true, "statmount": true, "lsm_get_self_attr": true, "lsm_list_modules": true,
	"lsm_set_self_attr": true, "modify_ldt": true, "memfd_secret": true, "uretprobe": true,
	"adjtimex": true, "clock_adjtime": true, "clock_adjtime64": true, "vmsplice": true,
	"remap_file_pages": true, "syncfs": true, "sync": true,
	// The 32-bit multiplexers hide what they are asked for from the filter.
	"socketcall": true, "ipc": true,
	// Replaced by narrower rules below.
	"socket": true, "socketpair": true, "personality": true,
	"chmod": true, "fchmod": true, "fchmodat": true, "fchmodat2": true,
	"open": true, "openat": true, "creat": true, "mknod": true, "mknodat": true,
	"fcntl": true, "setrlimit": true, "prlimit64": true,
	// Answered with ENOSYS below: one has its mode, the other its flags behind
	// a pointer, and callers fall back to calls that can be looked into.
	"openat2": true, "clone3": true,
}

// seccompProfile is the default profile of containerd for a process without
// capabilities, tightened, for the native architecture alone: a 32-bit call
// kills the process.
//
// For gVisor the filter runs in its user-space kernel, which knows no error
// but EPERM there, on which C libraries do not fall back from clone3. So that
// one is let through: what it makes are threads and namespaces of that kernel.
//
// A box with mounts gets no Unix sockets but pairs: a socket file in a mount,
// even a read-only one, leads to whatever on the host listens there. Without
// mounts there is none to be found.
func seccompProfile(tier sandbox.Isolation, mounts bool) *specs.LinuxSeccomp {
	p := seccomp.DefaultProfile(&specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{}}})
	if len(p.Architectures) > 1 {
		p.Architectures = p.Architectures[:1]
	}
	var kept []specs.LinuxSyscall
	for _, rule := range p.Syscalls {
		rule.Names = slices.DeleteFunc(slices.Clone(rule.Names), func(n string) bool { return neverAllowed[n] })
		if len(rule.Names) > 0 {
			kept = append(kept, rule)
		}
	}
	nosys := uint(unix.ENOSYS)
	pointed := []specs.LinuxSyscall{{Names: []string{"openat2", "clone3"}, Action: specs.ActErrno, ErrnoRet: &nosys}}
	if tier == sandbox.GVisor {
		pointed = []specs.LinuxSyscall{{Names: []string{"clone3"}, Action: specs.ActAllow}}
	}
	p.Syscalls = slices.Concat(kept, socketRules(!mounts), modeRules(), fcntlRules(), limitRules(), pointed)
	return p
}

// modeRules keep a guest from making setuid and setgid files: through a
// writable mount they would be the caller's own, for others on the host to
// run.
func modeRules() []specs.LinuxSyscall {
	const special = unix.S_ISUID | unix.S_ISGID
	without := func(name string, arg uint, bits uint64) specs.LinuxSyscall { return masked(name, arg, bits, 0) }
	// Without a file to create, open's mode is whatever the register held.
	const creates = unix.O_CREAT | unix.O_TMPFILE&^unix.O_DIRECTORY
	return []specs.LinuxSyscall{
		without("chmod", 1, special), without("fchmod", 1, special),
		without("fchmodat", 2, special), without("fchmodat2", 2, special),
		without("creat", 1, special), without("mknod", 1, special), without("mknodat", 2, special),
		without("open", 2, special), without("open", 1, creates),
		without("openat", 3, special), without("openat", 2, creates),
	}
}

// low32 is all that the kernel looks at of the arguments below: a filter that
// looked at more could be got round with bits that nobody else sees.
const low32 = 0xffffffff

// masked allows a call where an argument's bits under mask are want.
func masked(name string, arg uint, mask, want uint64) specs.LinuxSyscall {
	return specs.LinuxSyscall{Names: []string{name}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{
		{Index: arg, Value: mask, ValueTwo: want, Op: specs.OpMaskedEqual},
	}}
}

// fcntlRules leave out leases (1024) and directory notifications (1026): with
// a lease on a file that was mounted read-only, even, a guest would hold up
// for three quarters of a minute each program of the host that opens the file.
func fcntlRules() []specs.LinuxSyscall {
	return []specs.LinuxSyscall{
		masked("fcntl", 1, low32&^63, 0),                   // what POSIX has, and locks
		masked("fcntl", 1, low32, 1027),                    // F_DUPFD_QUERY
		masked("fcntl", 1, low32&^1, unix.F_DUPFD_CLOEXEC), // and F_SETPIPE_SZ
		masked("fcntl", 1, low32&^7, unix.F_GETPIPE_SZ),    // seals and hints on writes
	}
}

// limitRules let a guest set every limit of its own but that on core files,
// see coreLimit.
func limitRules() []specs.LinuxSyscall {
	rules := []specs.LinuxSyscall{masked("prlimit64", 2, ^uint64(0), 0)} // only asks
	for i, name := range []string{"setrlimit", "prlimit64"} {
		arg := uint(i) // where it has the resource
		rules = append(rules,
			masked(name, arg, low32&^3, 0), // RLIMIT_CORE is 4
			masked(name, arg, low32, 5),
			masked(name, arg, low32&^1, 6),
			masked(name, arg, low32&^7, 8),
		)
	}
	return rules
}

const sockTypeMask = 0xf // the rest of socket's second argument is flags

// socketRules allow TCP, UDP, local sockets if asked and the routing netlink that name
// look-ups and interface lists use; every other family, raw sockets and other
// transports are refused.
func socketRules(local bool) []specs.LinuxSyscall {
	is := func(index uint, value uint64) specs.LinuxSeccompArg {
		return specs.LinuxSeccompArg{Index: index, Value: value, Op: specs.OpEqualTo}
	}
	kind := func(value uint64) specs.LinuxSeccompArg {
		return specs.LinuxSeccompArg{Index: 1, Value: sockTypeMask, ValueTwo: value, Op: specs.OpMaskedEqual}
	}
	rule := func(name string, args ...specs.LinuxSeccompArg) specs.LinuxSyscall {
		return specs.LinuxSyscall{Names: []string{name}, Action: specs.ActAllow, Args: args}
	}
	rules := []specs.LinuxSyscall{
		rule("socketpair", is(0, unix.AF_UNIX)),
		rule("socket", is(0, unix.AF_NETLINK), is(2, unix.NETLINK_ROUTE)),
		rule("personality", is(0, 0)), // Linux, and the query
		rule("personality", is(0, 0xffffffff)),
	}
	if local {
		rules = append(rules, rule("socket", is(0, unix.AF_UNIX)))
	}
	for _, family := range []uint64{unix.AF_INET, unix.AF_INET6} {
		for _, proto := range []uint64{0, unix.IPPROTO_TCP} {
			rules = append(rules, rule("socket", is(0, family), kind(unix.SOCK_STREAM), is(2, proto)))
		}
		for _, proto := range []uint64{0, unix.IPPROTO_UDP} {
			rules = append(rules, rule("socket", is(0, family), kind(unix.SOCK_DGRAM), is(2, proto)))
		}
	}
	return rules
}
