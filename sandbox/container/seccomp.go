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
	// Hides its mode from the filter; callers fall back to openat.
	"openat2": true,
}

// seccompProfile is the default profile of containerd for a process without
// capabilities, tightened, for the native architecture alone: a 32-bit call
// kills the process.
//
// For gVisor the filter runs in the user-space kernel, which knows no error
// but EPERM there. C libraries fall back to clone when clone3 is unknown, not
// when it is forbidden, so clone3 is let through: what it makes are threads of
// that kernel, and new namespaces are that kernel's own.
func seccompProfile(tier sandbox.Isolation) *specs.LinuxSeccomp {
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
	p.Syscalls = append(kept, socketRules()...)
	if tier == sandbox.GVisor {
		for i := range p.Syscalls {
			p.Syscalls[i].Names = slices.DeleteFunc(p.Syscalls[i].Names, func(n string) bool { return n == "clone3" })
		}
		p.Syscalls = append(slices.DeleteFunc(p.Syscalls, func(r specs.LinuxSyscall) bool { return len(r.Names) == 0 }),
			specs.LinuxSyscall{Names: []string{"clone3"}, Action: specs.ActAllow})
	}
	return p
}

const sockTypeMask = 0xf // the rest of socket's second argument is flags

// socketRules allow TCP, UDP, Unix sockets and the routing netlink that name
// look-ups and interface lists use; every other family, raw sockets and other
// transports are refused.
func socketRules() []specs.LinuxSyscall {
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
		rule("socket", is(0, unix.AF_UNIX)),
		rule("socket", is(0, unix.AF_NETLINK), is(2, unix.NETLINK_ROUTE)),
		rule("personality", is(0, 0)), // Linux, and the query
		rule("personality", is(0, 0xffffffff)),
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
