//go:build linux

package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

// recorded is the running containerd's identity.
func recorded(t *testing.T, cfg Config) identity {
	t.Helper()
	data, err := os.ReadFile(cfg.pidFile())
	if err != nil {
		t.Fatal(err)
	}
	var id identity
	if err := json.Unmarshal(data, &id); err != nil {
		t.Fatal(err)
	}
	return id
}

func TestSupervisedLifeAndEnd(t *testing.T) {
	bin, dir := need(t)
	t.Setenv("SANDBOXD_SECRET_TOKEN", "hunter2")
	cfg := config(dir, bin)
	for round := range 2 { // what the first leaves must not hinder the second
		d := start(t, cfg)
		if !d.Supervised() || d.Address() != filepath.Join(dir, "state", "containerd.sock") || !Recent(d.Version(), MinVersion) {
			t.Errorf("daemon is %+v", d)
		}
		if v, err := Version(t.Context(), "unix://"+d.Address()); err != nil || v != d.Version() {
			t.Errorf("asked again it says %q, %v", v, err)
		}
		id := recorded(t, cfg)
		fd := handle(t, id.PID)
		env, err := os.ReadFile("/proc/" + strconv.Itoa(id.PID) + "/environ")
		if err != nil || bytes.Contains(env, []byte("hunter2")) {
			t.Errorf("containerd inherited our environment: %q, %v", env, err)
		}
		if round == 0 {
			offersNoMoreThanNeeded(t, d, id.PID)
		}
		for range 2 {
			if err := d.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if !ended(t, fd, 0) {
			t.Error("containerd outlives Close")
		}
		for _, path := range []string{cfg.socket(), cfg.file(), cfg.pidFile()} {
			if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s is left: %v", path, err)
			}
		}
	}
}

func offersNoMoreThanNeeded(t *testing.T, d *Daemon, pid int) {
	t.Helper()
	client, err := containerd.New(d.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	got, err := client.IntrospectionService().Plugins(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	loaded := map[string]bool{}
	for _, p := range got.Plugins {
		loaded[p.Type+"."+p.ID] = true
	}
	for _, name := range disabled {
		if loaded[name] {
			t.Errorf("%s is loaded", name)
		}
	}
	for _, name := range required {
		if !loaded[name] {
			t.Errorf("%s is not loaded", name)
		}
	}
	// The number of a socket's inode tells whose it is.
	var listens []string
	tcp := readAll(t, "/proc/net/tcp", "/proc/net/tcp6")
	unixSockets := readAll(t, "/proc/net/unix")
	links, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		target, err := os.Readlink(l)
		inode, ok := strings.CutPrefix(target, "socket:[")
		if err != nil || !ok {
			continue
		}
		inode = strings.TrimSuffix(inode, "]")
		if strings.Contains(tcp, " "+inode+" ") {
			t.Errorf("containerd has a TCP socket (inode %s)", inode)
		}
		for line := range strings.Lines(unixSockets) {
			f := strings.Fields(line)
			// 00010000 is __SO_ACCEPTCON: a listener.
			if len(f) > 7 && f[6] == inode && f[3] == "00010000" {
				listens = append(listens, f[7])
			}
		}
	}
	for _, l := range listens {
		if l != d.Address() && l != d.Address()+".ttrpc" {
			t.Errorf("containerd listens on %s", l)
		}
	}
	if len(listens) != 2 {
		t.Errorf("containerd listens on %q", listens)
	}
}

func readAll(t *testing.T, paths ...string) string {
	t.Helper()
	var b strings.Builder
	for _, p := range paths {
		data, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(data)
	}
	return b.String()
}

func TestACrashIsFollowedByANewStart(t *testing.T) {
	bin, dir := need(t)
	cfg := config(dir, bin)
	d := start(t, cfg)
	former := recorded(t, cfg)
	for range 3 {
		if err := unix.Kill(former.PID, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, "another containerd answers", func() bool {
			data, err := os.ReadFile(cfg.pidFile())
			if err != nil || bytes.Contains(data, []byte(`"start":"`+former.Start+`"`)) {
				return false
			}
			_, err = Version(t.Context(), d.Address())
			return err == nil
		})
		former = recorded(t, cfg)
	}
}

func TestTheProcessGroupGoesWithItsLeader(t *testing.T) {
	bin, dir := need(t)
	fake := fakeParts(t, dir, bin, `"$0.real" "$@" & exec sleep 1000`)
	if err := os.Symlink(filepath.Join(bin, "containerd"), filepath.Join(fake, "containerd.real")); err != nil {
		t.Fatal(err)
	}
	cfg := config(dir, fake)
	d, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	leader := recorded(t, cfg)
	children, err := os.ReadFile("/proc/" + strconv.Itoa(leader.PID) + "/task/" + strconv.Itoa(leader.PID) + "/children")
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(children)))
	if err != nil {
		t.Fatal(err)
	}
	fd := handle(t, child)
	if err := d.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !ended(t, fd, 10*time.Second) {
		t.Error("a member of the process group is left")
	}
}

func TestCloseDoesNotWaitForADeafContainerd(t *testing.T) {
	bin, dir := need(t)
	cfg := config(dir, bin)
	d := start(t, cfg)
	id := recorded(t, cfg)
	fd := handle(t, id.PID)
	if err := unix.Kill(id.PID, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	began := time.Now()
	if err := d.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if !ended(t, fd, 0) || time.Since(began) > stopGrace {
		t.Errorf("Close took %s", time.Since(began))
	}
}

func TestContainerdDiesWithItsOwner(t *testing.T) {
	_, dir := need(t)
	cfg := config(dir, engineParts())
	o := owner(t, dir)
	fd := handle(t, recorded(t, cfg).PID)
	if err := o.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if !ended(t, fd, 10*time.Second) {
		t.Fatal("containerd outlives its owner's SIGKILL")
	}
	// The next one takes the same folders.
	start(t, cfg)
}

func TestTwoOwnersDoNotShareAState(t *testing.T) {
	bin, dir := need(t)
	start(t, config(dir, bin))
	for name, set := range map[string]func(*Config, string){
		"state": func(c *Config, elsewhere string) { c.Root = elsewhere },
		"root":  func(c *Config, elsewhere string) { c.State = elsewhere },
	} {
		other := config(dir, bin)
		set(&other, filepath.Join(dir, "elsewhere"))
		if _, err := Start(t.Context(), other); !errors.Is(err, unix.EWOULDBLOCK) || !strings.Contains(err.Error(), "another engine") {
			t.Errorf("the same %s: %v", name, err)
		}
	}
}

func TestAStaleContainerdIsEndedByItsIdentity(t *testing.T) {
	bin, dir := need(t)
	cfg := config(dir, bin)
	start(t, cfg).Close(t.Context())

	// One that lost its owner in spite of the parent-death signal.
	if err := os.WriteFile(cfg.file(), []byte(cfg.render()), 0o600); err != nil {
		t.Fatal(err)
	}
	orphan := exec.Command(filepath.Join(bin, "containerd"), "--config", cfg.file())
	if err := orphan.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = orphan.Process.Kill()
		_ = orphan.Wait()
	}()
	if err := cfg.record(orphan.Process.Pid); err != nil {
		t.Fatal(err)
	}
	fd := handle(t, orphan.Process.Pid)
	start(t, cfg)
	if !ended(t, fd, 0) {
		t.Error("the stale containerd still runs")
	}
	if recorded(t, cfg).PID == orphan.Process.Pid {
		t.Error("the record still names the stale one")
	}
}

func TestAnotherProcessUnderTheSameNumberIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	cfg := config(dir, "")
	if err := os.MkdirAll(cfg.State, 0o700); err != nil {
		t.Fatal(err)
	}
	innocent := exec.Command("sleep", "1000")
	if err := innocent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = innocent.Process.Kill()
		_ = innocent.Wait()
	}()
	id, err := identify(innocent.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*identity){
		"start time":      func(i *identity) { i.Start = "1" },
		"boot":            func(i *identity) { i.Boot = "another" },
		"process group 0": func(i *identity) { i.PID = 0 },
		"everyone":        func(i *identity) { i.PID = -1 },
		"init":            func(i *identity) { i.PID = 1 },
		"no such process": func(i *identity) { i.PID = 1 << 22 },
	} {
		t.Run(name, func(t *testing.T) {
			other := id
			change(&other)
			data, err := json.Marshal(other)
			if err != nil {
				t.Fatal(err)
			}
			collects(t, cfg, data)
		})
	}
	t.Run("cut short", func(t *testing.T) { collects(t, cfg, []byte(`{"pid":`)) })
	if ended(t, handle(t, innocent.Process.Pid), 0) {
		t.Error("an innocent process was ended")
	}
}

func collects(t *testing.T, cfg Config, pidFile []byte) {
	t.Helper()
	if err := os.WriteFile(cfg.pidFile(), pidFile, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cfg.endStale(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(cfg.pidFile()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the record is left: %v", err)
	}
}

// fakeParts is a folder of programs of which containerd is a shell script.
func fakeParts(t *testing.T, dir, bin, script string) string {
	t.Helper()
	fake := filepath.Join(dir, "bin")
	if err := os.MkdirAll(fake, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range programs[1:] {
		if err := os.Symlink(filepath.Join(bin, name), filepath.Join(fake, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(fake, "containerd"), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return fake
}

func TestAFailedStartSaysWhatContainerdSaid(t *testing.T) {
	bin, dir := need(t)
	cfg := config(dir, fakeParts(t, dir, bin, "echo no room at the inn >&2; exit 3"))
	began := time.Now()
	_, err := Start(t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "no room at the inn") {
		t.Errorf("error is %v", err)
	}
	if time.Since(began) > startTimeout/2 {
		t.Errorf("it took %s", time.Since(began))
	}
	if _, err := os.Stat(cfg.pidFile()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the record is left: %v", err)
	}
	// Nothing holds the folders.
	start(t, config(dir, bin))
}

func TestAStartThatNeverAnswersEndsWithItsContext(t *testing.T) {
	bin, dir := need(t)
	cfg := config(dir, fakeParts(t, dir, bin, "exec sleep 1000"))
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := Start(ctx, cfg); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v", err)
	}
	if _, err := os.Stat(cfg.pidFile()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something is left: %v", err)
	}
}

func TestOnlyProgramsThatNobodyElseCouldChangeAreRun(t *testing.T) {
	bin, dir := need(t)
	marker := filepath.Join(dir, "ran")
	fake := fakeParts(t, dir, bin, "touch "+marker)
	for name, break_ := range map[string]func() error{
		"folder": func() error { return os.Chmod(fake, 0o777) },
		"file":   func() error { return os.Chmod(filepath.Join(fake, "containerd"), 0o775) },
		"owner":  func() error { return os.Chown(filepath.Join(fake, "containerd"), 65534, 65534) },
	} {
		if err := errors.Join(os.Chmod(fake, 0o755), os.Chmod(filepath.Join(fake, "containerd"), 0o755),
			os.Chown(filepath.Join(fake, "containerd"), 0, 0), break_()); err != nil {
			t.Fatal(err)
		}
		if _, err := Start(t.Context(), config(dir, fake)); err == nil || !strings.Contains(err.Error(), "could be changed by another user") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("the program was run")
	}
}

func TestWhatIsMissingNamesTheNextStep(t *testing.T) {
	dir := t.TempDir()
	for name, cfg := range map[string]Config{
		"given":      {Address: "unix://" + dir + "/none.sock"},
		"none":       {System: "none"},
		"no system":  {System: dir + "/none.sock"},
		"no parts":   config(dir, dir+"/bin"),
		"no program": config(dir, dir),
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := Start(ctx, cfg)
			var un *sandbox.UnavailableError
			if !errors.As(err, &un) || un.Next == "" {
				t.Errorf("error is %v", err)
			}
		})
	}
}

func TestConfigsThatCannotWork(t *testing.T) {
	good := Config{BinDir: "/bin", Root: "/a/root", State: "/a/state"}
	if err := good.validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"relative":   func(c *Config) { c.Root = "root" },
		"unclean":    func(c *Config) { c.State = "/a/../b" },
		"top":        func(c *Config) { c.Root = "/" },
		"quote":      func(c *Config) { c.Root = `/a/"` },
		"line break": func(c *Config) { c.State = "/a\nb" },
		"same":       func(c *Config) { c.Root = c.State },
		"long":       func(c *Config) { c.State = "/" + strings.Repeat("a", maxState) },
	} {
		c := good
		change(&c)
		if c.validate() == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
