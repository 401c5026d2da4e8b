package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/test/integration/lab"
)

const unitFile = "../../images/engine/sandboxd.service"

// restrictions are what a unit takes away from its service, as far as a process
// can take it away from itself.
type restrictions struct {
	Capabilities []string // that stay, in lower case without cap_
	Calls        []string // that fail with EPERM
	Families     []int    // that sockets may have
}

// confineArg makes the test binary confine itself and become another program.
const confineArg = "confine-and-exec"

// confineMain does not return in such a process.
func confineMain() {
	if len(os.Args) < 4 || os.Args[1] != confineArg {
		return
	}
	runtime.LockOSThread() // what follows is this thread's, until it is the program
	var r restrictions
	err := json.Unmarshal([]byte(os.Args[2]), &r)
	if err == nil {
		err = r.confine()
	}
	if err == nil {
		err = syscall.Exec(os.Args[3], os.Args[3:], os.Environ())
	}
	fmt.Fprintln(os.Stderr, "confine:", err)
	os.Exit(1)
}

func (r restrictions) confine() error {
	for c := range uintptr(unix.CAP_LAST_CAP + 1) {
		if slices.Contains(r.Capabilities, capabilityNames[c]) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && err != unix.EINVAL {
			return fmt.Errorf("drop %s: %w", capabilityNames[c], err)
		}
	}
	info, err := arch.GetInfo("")
	if err != nil {
		return err
	}
	calls := slices.DeleteFunc(slices.Clone(r.Calls), func(n string) bool { _, ok := info.SyscallNames[n]; return !ok })
	var family seccomp.ArgumentConditions
	for _, f := range r.Families {
		family = append(family, seccomp.Condition{Argument: 0, Operation: seccomp.NotEqual, Value: uint64(f)})
	}
	return seccomp.LoadFilter(seccomp.Filter{NoNewPrivs: true, Flag: seccomp.FilterFlagTSync, Policy: seccomp.Policy{
		DefaultAction: seccomp.ActionAllow,
		Syscalls: []seccomp.SyscallGroup{{
			Action: seccomp.ActionErrno | seccomp.Action(unix.EPERM), Names: calls,
			NamesWithCondtions: []seccomp.NameWithConditions{{Name: "socket", Conditions: family}},
		}},
	}})
}

var capabilityNames = strings.Fields(`chown dac_override dac_read_search fowner fsetid kill setgid setuid setpcap
	linux_immutable net_bind_service net_broadcast net_admin net_raw ipc_lock ipc_owner sys_module sys_rawio sys_chroot
	sys_ptrace sys_pacct sys_admin sys_boot sys_nice sys_resource sys_time sys_tty_config mknod lease audit_write
	audit_control setfcap mac_override mac_admin syslog wake_alarm block_suspend audit_read perfmon bpf checkpoint_restore`)

// unitOptions are the unit's settings by name.
func unitOptions(t *testing.T) map[string]string {
	t.Helper()
	b, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
			if _, twice := out[name]; twice {
				t.Errorf("%s is set twice", name)
			}
			out[name] = value
		}
	}
	return out
}

// unitRestrictions reads the unit as systemd would.
func unitRestrictions(t *testing.T, options map[string]string) restrictions {
	t.Helper()
	var r restrictions
	for _, c := range strings.Fields(options["CapabilityBoundingSet"]) {
		r.Capabilities = append(r.Capabilities, strings.TrimPrefix(strings.ToLower(c), "cap_"))
	}
	filter, denies := strings.CutPrefix(options["SystemCallFilter"], "~")
	if !denies {
		t.Fatal("the filter is no list of calls that are denied")
	}
	for _, name := range strings.Fields(filter) {
		if !strings.HasPrefix(name, "@") {
			r.Calls = append(r.Calls, name)
			continue
		}
		out, err := exec.Command("systemd-analyze", "syscall-filter", name).Output()
		if err != nil {
			t.Fatalf("what %s is: %v", name, err)
		}
		for line := range strings.Lines(string(out)) {
			if call := strings.TrimSpace(line); call != "" && !strings.HasPrefix(call, "#") && !strings.HasPrefix(call, "@") {
				r.Calls = append(r.Calls, call)
			}
		}
	}
	families := map[string]int{"AF_UNIX": unix.AF_UNIX, "AF_NETLINK": unix.AF_NETLINK, "AF_INET": unix.AF_INET, "AF_INET6": unix.AF_INET6, "AF_PACKET": unix.AF_PACKET}
	for _, name := range strings.Fields(options["RestrictAddressFamilies"]) {
		f, ok := families[name]
		if !ok {
			t.Fatalf("no family %s", name)
		}
		r.Families = append(r.Families, f)
	}
	if len(r.Capabilities) == 0 || len(r.Calls) < 10 || len(r.Families) == 0 {
		t.Fatalf("the unit restricts nothing: %+v", r)
	}
	return r
}

// TestUnitKeepsTheMountNamespace: none of its options gives the engine a mount
// namespace of its own, from which no caller's folder could be mounted.
func TestUnitKeepsTheMountNamespace(t *testing.T) {
	own := regexp.MustCompile(`^(Private(Tmp|Devices|Mounts|Users)|Protect(System|Home|Proc|ControlGroups|KernelTunables|KernelModules|KernelLogs)|` +
		`ProcSubset|RootDirectory|RootImage|MountAPIVFS|DynamicUser|.*Paths|TemporaryFileSystem|(Runtime|State|Cache|Logs|Configuration)Directory|LoadCredential.*|IPAddress.*|MemoryDenyWriteExecute|MountFlags)$`)
	for name := range unitOptions(t) {
		if own.MatchString(name) {
			t.Errorf("%s does not go with the engine", name)
		}
	}
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("no systemd-analyze to verify the unit with")
	}
	b, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "sandboxd.service")
	if err := os.WriteFile(copied, []byte(strings.Replace(string(b), "/usr/local/bin/sandboxd", program, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("systemd-analyze", "verify", copied).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

// TestEngineUnderItsUnit: with the capabilities, system calls and families that
// the unit leaves it, the engine serves both tiers, mounts and all, and leaves
// nothing.
func TestEngineUnderItsUnit(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("systemd-analyze is missing")
		}
		t.Skip("no systemd-analyze to say what the filter's groups are")
	}
	r := unitRestrictions(t, unitOptions(t))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	words, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	e := newEngine(t)
	e.under = []string{self, confineArg, string(words)}
	e.start()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", e.cmd.Process.Pid))
	if err != nil || !strings.Contains(string(status), "Seccomp:\t2") || !strings.Contains(string(status), "NoNewPrivs:\t1") {
		t.Fatalf("the engine is not confined: %v\n%s", err, status)
	}
	buildImage(t, "npm:"+everything)
	for _, tier := range containerTiers {
		t.Logf("%s: the first call was answered after %s", tier, e.serves(t, tier).Round(time.Millisecond))
	}
	home := lab.UserDir(t)
	for _, args := range [][]string{
		{"doctor", "--require", "container,gvisor"},
		{"run", "--mount", home + ":/data:rw", "--", "npx", "-y", everything}, // without input it ends at once
		{"run", "--isolation", "gvisor", "--policy", "public-web", "--mount", home + ":/data", "--", "npx", "-y", everything},
	} {
		cmd := lab.UserCommand(t.Context(), home, program, args...)
		cmd.Env = append(cmd.Env, e.env()...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
	e.kill()
	e.start()
	e.leavesNothing(t, "a kill under the unit")
	e.stop()
	e.leavesNothing(t, "stop")
}
