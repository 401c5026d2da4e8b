package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/sandboxd/sandboxd/sandbox"
)

// userEnv makes the test program print a report, as another user.
const userEnv = "SANDBOXD_TEST_DOCTOR"

func TestMain(m *testing.M) {
	if bin := os.Getenv(userEnv); bin != "" {
		if err := json.NewEncoder(os.Stdout).Encode(Run(context.Background(), Config{BinDir: bin, Engine: "/nonexistent/engine.sock"})); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func parts() string {
	if d := os.Getenv("SANDBOXD_ENGINE_DIR"); d != "" {
		return d
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(cache, "sandboxd", "engine", "current")
}

// need makes sure of what a whole report needs.
func need(t *testing.T) string {
	t.Helper()
	lack := ""
	if os.Geteuid() != 0 {
		lack = "a whole report needs root"
	} else if _, err := os.Stat(filepath.Join(parts(), "runsc")); err != nil {
		lack = "the engine's parts are not built: run make engine"
	}
	if lack != "" && os.Getenv("CI") != "" {
		t.Fatal(lack)
	} else if lack != "" {
		t.Skip(lack)
	}
	return parts()
}

func find(t *testing.T, r Report, name string) Check {
	t.Helper()
	for _, c := range r.Checks {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("no check is called %s", name)
	return Check{}
}

// mounts and namespaces of this process, which no check may change.
func surroundings(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, f := range []string{"/proc/self/mountinfo", "/proc/net/dev"} {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		// Others mount and unmount meanwhile: what counts is what doctor names.
		out[f] = strconv.Itoa(bytes.Count(data, []byte("sandboxd-doctor")))
	}
	for _, n := range []string{"net", "mnt", "user"} {
		link, err := os.Readlink("/proc/self/ns/" + n)
		if err != nil {
			t.Fatal(err)
		}
		out[n] = link
	}
	for _, pattern := range []string{os.TempDir() + "/sandboxd-doctor-*", "/sys/fs/cgroup/*/sandboxd-doctor-*", "/sys/fs/cgroup/sandboxd-doctor-*"} {
		left, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		out[pattern] = fmt.Sprint(left)
	}
	return out
}

func TestRootOnThisHost(t *testing.T) {
	bin := need(t)
	before := surroundings(t)
	r := Run(t.Context(), Config{BinDir: bin})
	if d := cmp.Diff(before, surroundings(t)); d != "" {
		t.Errorf("the host changed:\n%s", d)
	}
	for _, name := range []string{
		nameContainerd, nameShim, nameRunc, nameRunsc, nameUserNS, nameIDMap, nameSeccomp, nameLandlock, nameNftables, nameOverlay,
	} {
		if c := find(t, r, name); c.Status != OK {
			t.Errorf("%s: %+v", name, c)
		}
	}
	if c := find(t, r, nameCgroups); c.Status == Fail {
		t.Errorf("cgroups: %+v", c)
	}
	want := []sandbox.Isolation{sandbox.WASMInProcess, sandbox.WASM, sandbox.Container, sandbox.GVisor}
	if d := cmp.Diff(want, r.Holds()); d != "" {
		t.Errorf("tiers (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]sandbox.Isolation{sandbox.Kata}, r.Missing(sandbox.GVisor, sandbox.Kata)); d != "" {
		t.Errorf("missing (-want +got):\n%s", d)
	}
	var table strings.Builder
	if err := r.Print(&table); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + table.String())
}

// An ordinary user learns what could not be tried, and no more than that is
// claimed.
func TestAnOrdinaryUser(t *testing.T) {
	bin := need(t)
	self, err := os.MkdirTemp("", "doctor")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(self)
	if err := os.Chmod(self, 0o755); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(self, "doctor.test")
	if out, err := exec.Command("cp", os.Args[0], program).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Dir = "/"
	cmd.Env = []string{userEnv + "=" + bin, "PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var r Report
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{nameIDMap, nameNftables, nameOverlay} {
		if c := find(t, r, name); !c.Untried || c.Status != Warn || !strings.Contains(c.Next, "sudo") {
			t.Errorf("%s: %+v", name, c)
		}
	}
	if c := find(t, r, nameEngine); c.Status != Warn || !strings.Contains(c.Next, "sandboxd engine") {
		t.Errorf("engine: %+v", c)
	}
	for _, name := range []string{nameSeccomp, nameLandlock} {
		if c := find(t, r, name); c.Status != OK {
			t.Errorf("%s: %+v", name, c)
		}
	}
	for _, tier := range r.Tiers {
		if want := strings.HasPrefix(tier.Name, "wasm"); tier.Holds != want || tier.Proven {
			t.Errorf("%+v", tier)
		}
	}
	if r.UID != 65534 {
		t.Errorf("uid is %d", r.UID)
	}
}

func TestAProofDecides(t *testing.T) {
	ctx := t.Context()
	good := []Check{{Name: nameSeccomp, Status: OK}, {Name: nameLandlock, Status: OK}}
	broken := []Check{{Name: nameSeccomp, Status: Fail}, {Name: nameLandlock, Status: Warn, Untried: true}}
	unavailable := &sandbox.UnavailableError{Tier: sandbox.WASM, What: "no worker", Next: "x"}
	for _, tc := range []struct {
		name          string
		checks        []Check
		prove         func(context.Context, sandbox.Isolation) error
		holds, proven bool
		detail        string
	}{
		{"no proof asked for, all good", good, nil, true, false, "no sandbox was started"},
		{"no proof asked for, broken", broken, nil, false, false, "lacks seccomp"},
		{"no proof asked for, untried", broken[1:], nil, false, false, "lacks seccomp"},
		{"proven", good, func(context.Context, sandbox.Isolation) error { return nil }, true, true, "proven"},
		{"proven by an engine though this user can try little", broken[1:], func(context.Context, sandbox.Isolation) error { return nil }, true, true, "proven"},
		{"something was reached", good, func(context.Context, sandbox.Isolation) error { return errors.New("it reached\n1.1.1.1\x1b[0m") }, false, false, "the proof failed"},
		{"does not start", good, func(context.Context, sandbox.Isolation) error { return unavailable }, false, false, "does not start"},
		{"does not start, and why", broken, func(context.Context, sandbox.Isolation) error { return unavailable }, false, false, "lacks seccomp"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tier, proof := judge(ctx, Config{Prove: tc.prove}, tc.checks, sandbox.WASM, []string{nameSeccomp, nameLandlock})
			if tier.Holds != tc.holds || tier.Proven != tc.proven || !strings.Contains(tier.Detail, tc.detail) {
				t.Errorf("tier is %+v", tier)
			}
			if (proof == nil) != (tc.prove == nil) || proof != nil && (proof.Status == OK) != tc.proven {
				t.Errorf("proof is %+v", proof)
			}
			if proof != nil && strings.ContainsAny(proof.Detail, "\n\x1b") {
				t.Errorf("detail is %q", proof.Detail)
			}
		})
	}
	t.Run("a skipped tier is not proven", func(t *testing.T) {
		never := func(context.Context, sandbox.Isolation) error { t.Error("asked"); return nil }
		cfg := Config{Prove: never, Skip: []sandbox.Isolation{sandbox.WASM}}
		if tier, _ := judge(ctx, cfg, good, sandbox.WASM, nil); tier.Proven {
			t.Errorf("tier is %+v", tier)
		}
	})
}

func TestTheEndOfTheContextClaimsNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := Run(ctx, Config{})
	if holds := r.Holds(); !slices.Equal(holds, []sandbox.Isolation{sandbox.WASMInProcess}) {
		t.Errorf("holds %v", holds)
	}
}

// program writes a script in place of a part of the engine.
func program(t *testing.T, dir, name, script string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestOldOrBrokenPartsAreNamed(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c := Config{BinDir: dir, Containerd: ""}
	for _, tc := range []struct {
		name, script string
		run          func(context.Context) Check
		status       Status
		says         string
	}{
		{"runc", "echo runc version 1.1.5+ds1; echo libseccomp: 2.5.4", c.runc, Fail, "1.1.5+ds1 (" + dir + "/runc) is older than 1.2 and ignores id-mapped mounts"},
		{"runc", "echo runc version 1.5.3", c.runc, Fail, "without seccomp"},
		{"runc", "echo libseccomp: 2", c.runc, Fail, "does not say its version"},
		{"runc", "echo boom >&2; exit 7", c.runc, Fail, "exit status 7: boom"},
		{"runc", "echo runc version 1.2.0-rc.1; echo libseccomp: 2.5.4", c.runc, OK, "1.2.0-rc.1"},
		{"containerd-shim-runc-v2", "echo '  Version:  1.6.20'", c.shim, Fail, "1.6.20"},
		{"runsc", "echo runsc version release-20260101.0", c.runsc, OK, "release-20260101.0"},
	} {
		program(t, dir, tc.name, tc.script)
		if got := tc.run(t.Context()); got.Status != tc.status || !strings.Contains(got.Detail, tc.says) || got.Status == Fail && got.Next == "" {
			t.Errorf("%s %q: %+v", tc.name, tc.script, got)
		}
	}
	t.Run("one that hangs", func(t *testing.T) {
		program(t, dir, "runc", "exec sleep 1000")
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if got := c.runc(ctx); got.Status != Fail {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("one that another user may change", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("root alone is careful")
		}
		marker := filepath.Join(dir, "ran")
		program(t, dir, "runc", "touch "+marker)
		if err := os.Chmod(filepath.Join(dir, "runc"), 0o777); err != nil {
			t.Fatal(err)
		}
		if got := c.runc(t.Context()); got.Status != Fail || !strings.Contains(got.Detail, "could be changed by another user") {
			t.Errorf("got %+v", got)
		}
		if _, err := os.Stat(marker); err == nil {
			t.Error("it was run")
		}
	})
	t.Run("a given containerd that is not there", func(t *testing.T) {
		if got := (Config{Containerd: "unix://" + dir + "/none.sock"}).containerd(t.Context()); got.Status != Fail || got.Next == "" {
			t.Errorf("got %+v", got)
		}
	})
}
