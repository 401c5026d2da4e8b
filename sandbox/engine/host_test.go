//go:build linux

package engine

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/container"
)

// localHost is a container.Host whose boxes are ordinary local processes: the
// protocol, the descriptors and the life cycle are real, the isolation is not.
type localHost struct {
	mu        sync.Mutex
	changed   *sync.Cond
	next      int
	boxes     map[string]*localBox
	requests  []container.Request
	mounted   []string // what the mounts' descriptors pointed to at start
	images    map[string]bool
	blobs     map[string][]byte
	forget    bool // lose every blob when an import begins
	imports   int
	received  []string // the blobs of all archives, in order
	collected int
	closed    bool
	startHook func(ctx context.Context) error
}

func newLocalHost() *localHost {
	h := &localHost{boxes: map[string]*localBox{}, images: map[string]bool{}, blobs: map[string][]byte{}}
	h.changed = sync.NewCond(&h.mu)
	return h
}

func (h *localHost) onStart(hook func(ctx context.Context) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.startHook = hook
}

func (h *localHost) Collect(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.collected++
	return nil
}

func (h *localHost) HasImage(_ context.Context, digest string) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.images[digest], nil
}

func (h *localHost) Missing(_ context.Context, digests []string) ([]string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for _, d := range digests {
		if h.blobs[d] == nil {
			out = append(out, d)
		}
	}
	return out, nil
}

// Import checks what containerd would: every blob has its digest, the index
// names the manifest, and all of the image is here in the end.
func (h *localHost) Import(_ context.Context, digest string, archive io.Reader) error {
	h.mu.Lock()
	if h.forget {
		h.blobs = map[string][]byte{}
		h.forget = false
	}
	h.mu.Unlock()
	t := tar.NewReader(archive)
	came := map[string][]byte{}
	var index string
	for {
		hd, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		b, err := io.ReadAll(t)
		if err != nil {
			return err
		}
		if name, ok := strings.CutPrefix(hd.Name, "blobs/sha256/"); ok {
			if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != name {
				return fmt.Errorf("%w: blob %s has other content", sandbox.ErrInvalid, name)
			}
			came["sha256:"+name] = b
		}
		if hd.Name == "index.json" {
			index = string(b)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for d := range came {
		h.received = append(h.received, d)
	}
	have := maps.Clone(h.blobs)
	maps.Copy(have, came)
	var m struct {
		Config descriptor
		Layers []descriptor
	}
	if have[digest] == nil || json.Unmarshal(have[digest], &m) != nil || !strings.Contains(index, digest) {
		return fmt.Errorf("%w: archive lacks %s", sandbox.ErrInvalid, digest)
	}
	for _, d := range append(m.Layers, m.Config) {
		if have[d.Digest] == nil {
			return fmt.Errorf("%w: blob %s is missing", sandbox.ErrInvalid, d.Digest)
		}
	}
	h.blobs = have
	h.images[digest] = true
	h.imports++
	return nil
}

type localBox struct {
	h      *localHost
	id     string
	cmd    *exec.Cmd
	done   chan struct{}
	exit   sandbox.Exit
	mu     sync.Mutex
	opened []container.Opening
}

func (h *localHost) Start(ctx context.Context, req container.Request) (container.Box, container.Files, error) {
	h.mu.Lock()
	hook := h.startHook
	h.mu.Unlock()
	if hook != nil {
		if err := hook(ctx); err != nil {
			return nil, container.Files{}, err
		}
	}
	var files container.Files
	var theirs []*os.File
	pipe := func(in bool) *os.File {
		r, w, err := os.Pipe()
		if err != nil {
			panic(err)
		}
		if in {
			r, w = w, r
		}
		theirs = append(theirs, w)
		return r
	}
	files.Stdin, files.Stdout, files.Stderr = pipe(true), pipe(false), pipe(false)
	cmd := exec.Command(req.Spec.Args[0], req.Spec.Args[1:]...)
	cmd.Env = req.Spec.Env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs[0], theirs[1], theirs[2]
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err := cmd.Start()
	closeAll(theirs)
	if err != nil {
		closeFiles(&files)
		return nil, container.Files{}, fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
	}
	if req.Gateway {
		l4, _ := net.Listen("tcp4", "127.0.0.1:0")
		files.TCP4, _ = l4.(*net.TCPListener).File()
		u4, _ := net.ListenPacket("udp4", "127.0.0.1:0")
		files.UDP4, _ = u4.(*net.UDPConn).File()
		_, _ = l4.Close(), u4.Close()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next++
	b := &localBox{h: h, id: fmt.Sprintf("box-%04d", h.next), cmd: cmd, done: make(chan struct{})}
	h.boxes[b.id] = b
	h.requests = append(h.requests, req)
	for _, m := range req.Spec.Mounts {
		at, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", m.Source.Fd()))
		h.mounted = append(h.mounted, at)
	}
	h.changed.Broadcast()
	go b.wait()
	return b, files, nil
}

func (b *localBox) wait() {
	_ = b.cmd.Wait()
	_ = syscall.Kill(-b.cmd.Process.Pid, syscall.SIGKILL)
	ws := b.cmd.ProcessState.Sys().(syscall.WaitStatus)
	b.exit = sandbox.Exit{Cause: sandbox.Exited, Code: ws.ExitStatus(), PeakPIDs: 1}
	if ws.Signaled() {
		b.exit = sandbox.Exit{Cause: sandbox.Killed, Signal: int(ws.Signal()), Code: 128 + int(ws.Signal())}
	}
	close(b.done)
}

func (b *localBox) ID() string { return b.id }

func (b *localBox) Open(list []container.Opening) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.opened = append(b.opened, list...)
	return nil
}

func (b *localBox) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-b.done:
		return b.exit, nil
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

func (b *localBox) Stop(ctx context.Context) error {
	_ = syscall.Kill(-b.cmd.Process.Pid, syscall.SIGTERM)
	select {
	case <-b.done:
	case <-ctx.Done():
	case <-time.After(2 * time.Second):
	}
	_ = syscall.Kill(-b.cmd.Process.Pid, syscall.SIGKILL)
	<-b.done
	b.h.mu.Lock()
	defer b.h.mu.Unlock()
	delete(b.h.boxes, b.id)
	b.h.changed.Broadcast()
	return nil
}

func (h *localHost) Close(ctx context.Context) error {
	h.mu.Lock()
	h.closed = true
	var all []*localBox
	for _, b := range h.boxes {
		all = append(all, b)
	}
	h.mu.Unlock()
	for _, b := range all {
		_ = b.Stop(ctx)
	}
	return nil
}

// await waits until cond holds under the host's mutex.
func (h *localHost) await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	timeout := time.AfterFunc(20*time.Second, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.changed.Broadcast()
	})
	defer timeout.Stop()
	until := time.Now().Add(20 * time.Second)
	h.mu.Lock()
	defer h.mu.Unlock()
	for !cond() {
		if time.Now().After(until) {
			t.Fatalf("waited too long for %s; %d boxes live", what, len(h.boxes))
		}
		h.changed.Wait()
	}
}

func (h *localHost) awaitEmpty(t *testing.T) {
	t.Helper()
	h.await(t, "the host to be empty", func() bool { return len(h.boxes) == 0 })
}

func (h *localHost) last() container.Request {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.requests[len(h.requests)-1]
}

// publicDir is a folder that ordinary users can enter.
func publicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "engine-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

type testEngine struct {
	srv    *Server
	host   *localHost
	socket string
	ended  chan error
}

// startEngine serves a localHost until the test ends.
func startEngine(t *testing.T, change func(*Config)) *testEngine {
	t.Helper()
	cfg := Config{
		Socket: filepath.Join(publicDir(t), "engine.sock"), Version: "test",
		Tiers: []sandbox.Isolation{sandbox.Container, sandbox.GVisor},
	}
	if change != nil {
		change(&cfg)
	}
	e := &testEngine{host: newLocalHost(), socket: cfg.Socket, ended: make(chan error, 1)}
	var err error
	if e.srv, err = NewServer(cfg); err != nil {
		t.Fatal(err)
	}
	go func() { e.ended <- e.srv.Serve(context.Background(), e.host) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := e.srv.Close(ctx); err != nil {
			t.Errorf("closing the engine: %v", err)
		}
		e.host.mu.Lock()
		defer e.host.mu.Unlock()
		if len(e.host.boxes) > 0 || !e.host.closed {
			t.Errorf("after Close: %d boxes, host closed %v", len(e.host.boxes), e.host.closed)
		}
	})
	awaitSocket(t, cfg.Socket)
	return e
}

// awaitSocket dials until somebody answers.
func awaitSocket(t *testing.T, socket string) {
	t.Helper()
	for until := time.Now().Add(10 * time.Second); ; {
		c, err := net.Dial("unixpacket", socket)
		if err == nil {
			_ = c.Close()
			return
		}
		if time.Now().After(until) {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

// layout writes an OCI image layout and gives the image.
func layout(t *testing.T, content string) sandbox.Image {
	t.Helper()
	return layoutOf(t, bytes.Repeat([]byte(content), 1<<17))
}

// layoutOf writes an OCI image layout of one layer.
func layoutOf(t *testing.T, content []byte) sandbox.Image {
	t.Helper()
	dir := publicDir(t)
	blobs := filepath.Join(dir, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		t.Fatal(err)
	}
	put := func(b []byte) (string, int) {
		sum := sha256.Sum256(b)
		name := hex.EncodeToString(sum[:])
		if err := os.WriteFile(filepath.Join(blobs, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
		return "sha256:" + name, len(b)
	}
	layer, ln := put(content)
	config, cn := put(fmt.Appendf(nil, `{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[%q]}}`, layer))
	manifest, _ := put(fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":%d},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":%q,"size":%d}]}`,
		ociManifest, config, cn, layer, ln))
	return sandbox.Image{Digest: manifest, Path: dir}
}

func testSpec(image sandbox.Image, args ...string) sandbox.Spec {
	return sandbox.Spec{
		Tenant: "t", Name: "srv", Isolation: sandbox.Container, Image: image, Args: args,
		Env: []string{"PATH=/usr/bin:/bin"}, Limits: sandbox.Limits{StopGrace: 200 * time.Millisecond},
	}
}

func dialTest(t *testing.T, e *testEngine) *Client {
	t.Helper()
	c, err := Dial(t.Context(), ClientConfig{Socket: e.socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			t.Errorf("closing the client: %v", err)
		}
	})
	return c
}
