//go:build linux

package container

import (
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

// What every guest sees alike.
const (
	guestUID  = 65532
	guestHome = "/home/mcp"
	hostname  = "sandbox"
	guestPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	guestInit = "/dev/init"
	// shmBytes bounds /dev/shm; what a guest puts there counts as its memory,
	// as do its HOME and /tmp.
	shmBytes = 64 << 20
	// tmpInodes bounds the files of each tmpfs: a package cache fits.
	tmpInodes = 128 << 10
	// gvisorPIDs is what gVisor's own threads need beside the guest's, since
	// the host counts both together.
	gvisorPIDs = 512
)

// plan is what buildSpec needs beside the request.
type plan struct {
	id      string
	spec    sandbox.Spec  // with its defaults filled in
	kit     *kit          // nil where a spec is all that is made of the plan
	hostID  uint32        // first of the box's host ids
	netns   string        // path of the box's network namespace
	cgroup  string        // path below each cgroup hierarchy's root
	mounts  []specs.Mount // the caller's
	etc     string        // folder of resolv.conf and hosts
	init    string        // host path of the init, or empty
	swap    bool          // whether the kernel accounts for swap
	maxFile uint64        // this process's own limit on descriptors
}

func (p plan) gvisor() bool { return p.spec.Isolation == sandbox.GVisor }

// spec is a box's OCI spec.
func (h *host) spec(p plan) *specs.Spec {
	s := buildSpec(p)
	if h.loosen != nil {
		h.loosen(s)
	}
	return s
}

// buildSpec writes the whole OCI spec by hand: what is not here, the guest
// does not get.
func buildSpec(p plan) *specs.Spec {
	args, env := p.spec.Args, guestEnv(p.spec.Env)
	if p.init != "" {
		// The init brings the environment, which this spec's copies on disk
		// and in containerd's database do not hold.
		args, env = append([]string{guestInit}, args...), nil
	}
	cwd := p.spec.Dir
	if cwd == "" {
		cwd = guestHome
	}
	files, core := min(p.spec.Limits.Files, p.maxFile), coreLimit()
	oom := 500
	return &specs.Spec{
		Version:  "1.2.0",
		Hostname: hostname,
		Root:     &specs.Root{Path: "rootfs", Readonly: true},
		Process: &specs.Process{
			User:            specs.User{UID: guestUID, GID: guestUID},
			Args:            args,
			Env:             env,
			Cwd:             cwd,
			Capabilities:    &specs.LinuxCapabilities{},
			NoNewPrivileges: true,
			OOMScoreAdj:     &oom,
			Rlimits: []specs.POSIXRlimit{
				{Type: "RLIMIT_NOFILE", Hard: files, Soft: files},
				{Type: "RLIMIT_FSIZE", Hard: uint64(p.spec.Limits.FileBytes), Soft: uint64(p.spec.Limits.FileBytes)},
				{Type: "RLIMIT_CORE", Hard: core, Soft: core},
				{Type: "RLIMIT_MEMLOCK", Hard: 64 << 10, Soft: 64 << 10},
				{Type: "RLIMIT_MSGQUEUE"},
			},
		},
		Mounts: guestMounts(p),
		Linux: &specs.Linux{
			CgroupsPath:   p.cgroup,
			Namespaces:    guestNamespaces(p),
			UIDMappings:   idMappings(p.hostID),
			GIDMappings:   idMappings(p.hostID),
			Resources:     guestResources(p),
			Seccomp:       seccompProfile(p.spec.Isolation, len(p.mounts) > 0),
			MaskedPaths:   maskedPaths(),
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"},
		},
	}
}

// idMappings maps the guest's ids 0 to 65535 to the box's own host ids.
func idMappings(first uint32) []specs.LinuxIDMapping {
	return []specs.LinuxIDMapping{{ContainerID: 0, HostID: first, Size: idRange}}
}

// guestEnv is the caller's environment, with the two variables that belong to
// the tier's own layout where the caller set none.
func guestEnv(env []string) []string {
	out := slices.Clone(env)
	for _, kv := range []string{"HOME=" + guestHome, "PATH=" + guestPath} {
		key := kv[:strings.IndexByte(kv, '=')+1]
		if !slices.ContainsFunc(out, func(e string) bool { return strings.HasPrefix(e, key) }) {
			out = append(out, kv)
		}
	}
	return out
}

func guestNamespaces(p plan) []specs.LinuxNamespace {
	return []specs.LinuxNamespace{
		{Type: specs.PIDNamespace},
		{Type: specs.IPCNamespace},
		{Type: specs.UTSNamespace},
		{Type: specs.MountNamespace},
		{Type: specs.CgroupNamespace},
		{Type: specs.UserNamespace},
		{Type: specs.NetworkNamespace, Path: p.netns},
	}
}

// guestMounts leaves out /sys: a user namespace may not mount it over a
// network namespace of the host's, and a stdio server has no need of it.
func guestMounts(p plan) []specs.Mount {
	tmp := func(dest string, size int64, opts ...string) specs.Mount {
		return specs.Mount{Destination: dest, Type: "tmpfs", Source: "tmpfs", Options: append([]string{
			"nosuid", "nodev", fmt.Sprintf("size=%d", size), fmt.Sprintf("nr_inodes=%d", tmpInodes),
		}, opts...)}
	}
	file := func(src, dest string) specs.Mount {
		return specs.Mount{Destination: dest, Type: "bind", Source: src, Options: []string{"bind", "ro", "nosuid", "nodev"}}
	}
	ms := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536"}},
		tmp("/dev/shm", shmBytes, "noexec", "mode=1777"),
		tmp("/tmp", p.spec.Limits.TmpBytes, "mode=1777"),
		tmp(guestHome, p.spec.Limits.TmpBytes, "mode=700", fmt.Sprintf("uid=%d", guestUID), fmt.Sprintf("gid=%d", guestUID)),
		file(p.etc+"/resolv.conf", "/etc/resolv.conf"),
		file(p.etc+"/hosts", "/etc/hosts"),
	}
	if p.init != "" {
		ms = append(ms, file(p.init, guestInit))
	}
	return append(ms, p.mounts...)
}

func guestResources(p plan) *specs.LinuxResources {
	l := p.spec.Limits
	period := uint64(100_000)
	quota := max(int64(l.CPUs*float64(period)), 1000)
	// What a guest has not used of a period it may use in a later one, on top
	// of that one's own: a start, or a call after a pause, is not cut into
	// slices, and on average the guest still has no more than its limit.
	burst := uint64(quota)
	pids := l.PIDs
	if p.gvisor() {
		pids += gvisorPIDs
	}
	mem := &specs.LinuxMemory{Limit: &l.MemoryBytes}
	if p.swap {
		mem.Swap = &l.MemoryBytes
	}
	return &specs.LinuxResources{
		Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}},
		Memory:  mem,
		CPU:     &specs.LinuxCPU{Quota: &quota, Period: &period, Burst: &burst},
		Pids:    &specs.LinuxPids{Limit: &pids},
	}
}

func maskedPaths() []string {
	return []string{
		"/proc/acpi", "/proc/asound", "/proc/config.gz", "/proc/interrupts", "/proc/kallsyms", "/proc/kcore",
		"/proc/keys", "/proc/key-users", "/proc/kmsg", "/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags",
		"/proc/latency_stats", "/proc/modules", "/proc/sched_debug", "/proc/scsi", "/proc/sysrq-trigger",
		"/proc/timer_list", "/proc/timer_stats", "/proc/vmallocinfo", "/sys",
	}
}

// coreLimit is the limit on core files, in bytes: 1, which to the kernel means
// none at all. With 0 it would still hand a crashed server's memory, and with
// it the secrets in its environment, to the program that core_pattern pipes
// to, as the host's root. No child of a process whose own limit is 0 gets 1.
func coreLimit() uint64 {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &r); err != nil {
		return 0
	}
	return min(r.Max, 1)
}

// hardFiles is this process's own hard limit on descriptors, which no child
// of it can exceed without CAP_SYS_RESOURCE.
func hardFiles() (uint64, error) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 0, fmt.Errorf("container: read the limit on open files: %w", err)
	}
	return r.Max, nil
}
