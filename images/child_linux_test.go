package images

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// command is the test binary as a builder, in a process of its own.
func (j childJob) command(t *testing.T, exe string, env []string) *exec.Cmd {
	t.Helper()
	raw, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append([]string{childEnv + "=" + string(raw)}, env...)
	return cmd
}

func self(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

// waitForOwners waits until every process that held a work folder is gone.
func waitForOwners(t *testing.T, dir string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	locks, err := filepath.Glob(filepath.Join(dir, "tmp", "*"+lockSuffix))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range locks {
		f, err := lockFile(ctx, l, false)
		if err != nil {
			t.Fatalf("%s is still held: %v", l, err)
		}
		f.Close()
	}
}

// A builder is killed while npm works: npm dies with it, its next start
// removes what is left, and there is no half image.
func TestKilledBuildLeavesNothing(t *testing.T) {
	r := newRegistry(t, server("main", "1.0.0"))
	reached, npmGone := make(chan struct{}), make(chan struct{})
	r.answer = func(_ http.ResponseWriter, req *http.Request) bool {
		if !strings.Contains(req.URL.Path, "main/-/") {
			return false
		}
		close(reached)
		<-req.Context().Done()
		close(npmGone)
		return true
	}
	cfg := r.config(t, t.TempDir())
	job := childJob{Dir: cfg.CacheDir, Ref: "npm:main", Node: cfg.Node}
	cmd := job.command(t, self(t), cfg.Environ)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-reached
	// While it lives, another start leaves its work alone.
	must(t)(New(cfg))
	if works, _ := filepath.Glob(filepath.Join(cfg.CacheDir, "tmp", "build-*")); len(works) == 0 {
		t.Error("the work of a living build was removed")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	<-npmGone
	waitForOwners(t, cfg.CacheDir)
	b := must(t)(New(cfg))
	wantClean(t, b)
	if list, err := b.List(); err != nil || len(list) != 0 {
		t.Errorf("half an image: %+v %v", list, err)
	}
	r.answer = nil
	checkLayout(t, build(t, b, "npm:main"))
}

func TestKilledAtRandomMoments(t *testing.T) {
	r := newRegistry(t, server("main", "1.0.0"))
	cfg := r.config(t, t.TempDir())
	job := childJob{Dir: cfg.CacheDir, Ref: "npm:main", Node: cfg.Node}
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	for range rounds {
		cmd := job.command(t, self(t), cfg.Environ)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		after := time.Duration(rand.Int64N(int64(900 * time.Millisecond)))
		timer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
		cmd.Wait()
		timer.Stop()
		waitForOwners(t, cfg.CacheDir)
		b := must(t)(New(cfg))
		wantClean(t, b)
		list, err := b.List()
		if err != nil {
			t.Fatalf("killed after %s: %v", after, err)
		}
		for _, img := range list {
			checkLayout(t, img)
			if err := b.Remove(t.Context(), img.Ref); err != nil {
				t.Fatal(err)
			}
		}
	}
	checkLayout(t, build(t, must(t)(New(cfg)), "npm:main"))
}

// unpack writes an image's layers to a folder, for a test that runs it.
func unpack(t *testing.T, img Image) string {
	t.Helper()
	dir := t.TempDir()
	for _, l := range manifestOf(t, img).Layers {
		f, err := os.Open(filepath.Join(img.Path, "blobs", "sha256", strings.TrimPrefix(l.Digest, "sha256:")))
		if err != nil {
			t.Fatal(err)
		}
		if err := unpackLayer(tar.NewReader(f), dir); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	return dir
}

func unpackLayer(r *tar.Reader, dir string) error {
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		p := filepath.Join(dir, h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(p, 0o755)
		case tar.TypeSymlink:
			err = os.Symlink(h.Linkname, p)
		default:
			var f *os.File
			if f, err = os.OpenFile(p, os.O_CREATE|os.O_WRONLY|os.O_EXCL, os.FileMode(h.Mode)); err == nil {
				_, err = io.Copy(f, r)
				err = errors.Join(err, f.Close())
			}
		}
		if err != nil {
			return err
		}
	}
}

// inside runs a program in the unpacked image: no network, no shell, nothing
// of the host but its kernel.
func inside(root string, img Image, args ...string) *exec.Cmd {
	cmd := &exec.Cmd{Path: args[0], Args: args, Env: img.Env, Dir: img.Dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Chroot: root, Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	return cmd
}

// Real servers from the configured registry, built by a user without rights,
// answer from inside their image; a second build works without a network.
func TestRealServers(t *testing.T) {
	if testing.Short() {
		t.Skip("fetches Node and three servers")
	}
	top := t.TempDir()
	dir, exe, home := filepath.Join(top, "cache"), filepath.Join(top, "builder"), filepath.Join(top, "home")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Mkdir(home, 0o700), os.Chmod(filepath.Dir(top), 0o755)); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(self(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(exe, raw, 0o755); err != nil {
		t.Fatal(err)
	}
	attr := &syscall.SysProcAttr{}
	env := fetchEnv(os.Environ(), home)
	for _, key := range []string{"registry", "cafile"} { // this user's, for the other
		out, err := exec.Command("npm", "config", "get", key).Output()
		if value := strings.TrimSpace(string(out)); err == nil && value != "null" {
			env = append(env, "npm_config_"+key+"="+value)
		}
	}
	if os.Getuid() == 0 {
		attr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
		for _, d := range []string{dir, home} {
			if err := os.Chown(d, 65534, 65534); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name, arg string
		extra     []string
	}{{"memory", "", nil}, {"filesystem", "/tmp", nil}, {"everything", "", []string{"curl"}}} {
		t.Run(c.name+strings.Join(c.extra, ""), func(t *testing.T) {
			job := childJob{Dir: dir, Ref: "npm:@modelcontextprotocol/server-" + c.name, Extra: c.extra}
			start := time.Now()
			img := runChild(t, job.command(t, exe, env), attr)
			took := time.Since(start)
			checkLayout(t, img)
			offline := *attr
			if os.Getuid() == 0 {
				offline.Cloneflags = syscall.CLONE_NEWNET
			}
			start = time.Now()
			again := runChild(t, job.command(t, exe, []string{"PATH=/nonexistent"}), &offline)
			if again.Digest != img.Digest {
				t.Errorf("second build: %s, first: %s", again.Digest, img.Digest)
			}
			t.Logf("%s@%s: %d bytes, built in %s, again in %s", img.Ref, img.Lock.Version, img.Size, took, time.Since(start))
			root := unpack(t, img)
			answers(t, inside(root, img, append(img.Entrypoint, strings.Fields(c.arg)...)...))
			if c.extra != nil {
				out, err := inside(root, img, "/usr/bin/curl", "--version").CombinedOutput()
				if err != nil || !strings.HasPrefix(string(out), "curl ") {
					t.Errorf("curl: %v %s", err, out)
				}
			}
		})
	}
}

func runChild(t *testing.T, cmd *exec.Cmd, attr *syscall.SysProcAttr) Image {
	t.Helper()
	cmd.SysProcAttr, cmd.Dir = attr, "/"
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	var img Image
	if err := json.Unmarshal(out, &img); err != nil {
		t.Fatal(err)
	}
	return img
}

// answers starts an MCP server and expects it to initialize.
func answers(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	var stderr strings.Builder
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	defer stop.Stop()
	io.WriteString(in, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`+"\n")
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.Contains(line, `"serverInfo"`) {
		t.Errorf("answer %.200q, %v, stderr %.500q", line, err, stderr.String())
	}
	in.Close()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}
