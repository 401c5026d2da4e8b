//go:build linux

package container

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

// engineEnv makes the test binary the engine of killedEngine.
const engineEnv = "SANDBOXD_TEST_ENGINE"

func TestMain(m *testing.M) {
	KeeperMain()
	if os.Getenv(engineEnv) != "" {
		os.Exit(engine(os.Args[1:]))
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		lab.stop()
		os.Exit(code)
	}))
}

// lab is what all tests of the package share: one private containerd and one
// image.
var lab laboratory

type laboratory struct {
	once    sync.Once
	err     error
	dir     string
	daemon  *exec.Cmd
	address string
	parts   string
	digest  string
	archive []byte
}

// engineParts is where the pinned binaries are built to.
func engineParts() string {
	if d := os.Getenv("SANDBOXD_ENGINE_DIR"); d != "" {
		return d
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(cache, "sandboxd", "engine", "current")
}

// need starts the laboratory, or skips where a laptop lacks what it needs; in
// CI the lack is a failure.
func need(t testing.TB) *laboratory {
	t.Helper()
	lack := func(what string) {
		t.Helper()
		if os.Getenv("CI") != "" {
			t.Fatal(what)
		}
		t.Skip(what)
	}
	if os.Geteuid() != 0 {
		lack("container tests need root")
	}
	parts := engineParts()
	if _, err := os.Stat(filepath.Join(parts, "containerd")); err != nil {
		lack("container tests need the engine's parts: run make engine")
	}
	lab.once.Do(func() { lab.err = lab.start(parts) })
	if lab.err != nil {
		t.Fatal(lab.err)
	}
	return &lab
}

func (l *laboratory) start(parts string) error {
	var err error
	l.parts = parts
	if l.dir, err = os.MkdirTemp("", "sandboxd-container"); err != nil {
		return err
	}
	// A sandbox's root is nobody here, and still has to reach its own files.
	if err := os.Chmod(l.dir, 0o711); err != nil {
		return err
	}
	if err := l.startDaemon(); err != nil {
		return err
	}
	kit := filepath.Join(l.dir, "kit")
	build := exec.Command("go", "build", "-trimpath", "-o", kit, "./testdata/kit")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build kit: %w: %s", err, out)
	}
	compile := exec.Command("cc", "-Os", "-static", "-s", "-Wall", "-Wextra", "-Werror", "-o", l.init(), "init/init.c")
	if out, err := compile.CombinedOutput(); err != nil {
		return fmt.Errorf("build init: %w: %s", err, out)
	}
	l.archive, l.digest, err = kitImage(kit)
	return err
}

func (l *laboratory) init() string { return filepath.Join(l.dir, "sandbox-init") }

func (l *laboratory) startDaemon() error {
	conf := filepath.Join(l.dir, "config.toml")
	l.address = filepath.Join(l.dir, "containerd.sock")
	text := fmt.Sprintf(`version = 3
root = %q
state = %q
disabled_plugins = ["io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri"]
[grpc]
address = %q
`, filepath.Join(l.dir, "root"), filepath.Join(l.dir, "state"), l.address)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(l.dir, "containerd.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	l.daemon = exec.Command(filepath.Join(l.parts, "containerd"), "--config", conf)
	l.daemon.Env = append(os.Environ(), "PATH="+l.parts+":"+os.Getenv("PATH"))
	l.daemon.Stdout, l.daemon.Stderr = log, log
	if err := l.daemon.Start(); err != nil {
		return err
	}
	// Its own clients wait for the socket; so does this, by trying.
	for range 1000 {
		if _, err := os.Stat(l.address); err == nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	out, _ := os.ReadFile(log.Name())
	return fmt.Errorf("containerd did not start: %s", out)
}

func (l *laboratory) stop() {
	if l.daemon != nil && l.daemon.Process != nil {
		_ = l.daemon.Process.Signal(unix.SIGTERM)
		_ = l.daemon.Wait()
	}
	if l.dir != "" {
		if err := os.RemoveAll(l.dir); err != nil {
			fmt.Fprintln(os.Stderr, "remove laboratory:", err)
		}
	}
}

// kitImage is an OCI archive of one layer: the kit, a passwd file, and the
// folders that a server's image has.
func kitImage(kit string) (archive []byte, dgst string, err error) {
	bin, err := os.ReadFile(kit)
	if err != nil {
		return nil, "", err
	}
	layer := tarOf([]tar.Header{
		{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "home/mcp/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777},
		{Name: "etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644},
		{Name: "secret", Typeflag: tar.TypeReg, Mode: 0o600},
		{Name: "kit", Typeflag: tar.TypeReg, Mode: 0o4755}, // setuid root, to no avail
	}, map[string][]byte{
		"etc/passwd": []byte("root:x:0:0::/:/none\nmcp:x:65532:65532::/home/mcp:/none\n"),
		"secret":     []byte("root's"),
		"kit":        bin,
	})
	return imageOf(layer, ocispec.MediaTypeImageLayer, sum(layer))
}

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(h[:])
}

func tarOf(headers []tar.Header, content map[string][]byte) []byte {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range headers {
		h.Size = int64(len(content[h.Name]))
		if err := w.WriteHeader(&h); err != nil {
			panic(err)
		}
		if _, err := w.Write(content[h.Name]); err != nil {
			panic(err)
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return buf.Bytes()
}

// imageOf wraps a layer into an OCI archive.
func imageOf(layer []byte, mediaType, diffID string) (archive []byte, dgst string, err error) {
	blobs := map[string][]byte{}
	var names []tar.Header
	put := func(b []byte) ocispec.Descriptor {
		d := ocispec.Descriptor{Size: int64(len(b)), Digest: digest.Digest(sum(b))}
		name := "blobs/sha256/" + d.Digest.Encoded()
		blobs[name] = b
		names = append(names, tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644})
		return d
	}
	l := put(layer)
	l.MediaType = mediaType
	conf, err := json.Marshal(map[string]any{
		"architecture": "amd64", "os": "linux",
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{diffID}},
	})
	if err != nil {
		return nil, "", err
	}
	c := put(conf)
	c.MediaType = ocispec.MediaTypeImageConfig
	m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Config: c, Layers: []ocispec.Descriptor{l}}
	m.SchemaVersion = 2
	raw, err := json.Marshal(m)
	if err != nil {
		return nil, "", err
	}
	dgst = put(raw).Digest.String()
	return tarOf(names, blobs), dgst, nil
}

// instance is this process's, so that runs beside each other on one machine
// leave each other's sandboxes alone.
var instance = fmt.Sprintf("t%d", os.Getpid())

// newHost gives a test a Host of its own on the shared containerd.
func newHost(t testing.TB, change ...func(*Config)) *host {
	t.Helper()
	l := need(t)
	cfg := Config{
		Address: l.address, StateDir: filepath.Join(t.TempDir(), "state"),
		Runc: filepath.Join(l.parts, "runc"), Runsc: filepath.Join(l.parts, "runsc"),
		Shim: filepath.Join(l.parts, "containerd-shim-runc-v2"), Init: l.init(), Instance: instance,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, f := range change {
		f(&cfg)
	}
	h, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	ctx := t.Context()
	if ok, err := h.HasImage(ctx, l.digest); err != nil {
		t.Fatal(err)
	} else if !ok {
		if err := h.Import(ctx, l.digest, bytes.NewReader(l.archive)); err != nil {
			t.Fatal(err)
		}
	}
	return h.(*host)
}

// guest is a started kit.
type guest struct {
	t     *testing.T
	box   Box
	files Files
	out   *bufio.Reader
}

func request(args ...string) Request {
	return Request{Spec: sandbox.Spec{
		Tenant: "t", Name: "kit", Isolation: sandbox.Container,
		Image: sandbox.Image{Digest: lab.digest}, Args: append([]string{"/kit"}, args...),
		Limits: sandbox.Limits{StopGrace: 100 * time.Millisecond},
	}}
}

func start(t *testing.T, h *host, req Request) *guest {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req.Spec.Image.Digest = lab.digest // known only now, where req was made before h
	b, f, err := h.Start(ctx, req)
	if err != nil {
		t.Fatalf("start: %v%s", err, lab.lastLog())
	}
	t.Cleanup(func() {
		if err := b.Stop(context.Background()); err != nil {
			t.Errorf("stop: %v", err)
		}
		if err := closeFiles(f); err != nil && !strings.Contains(err.Error(), "file already closed") {
			t.Errorf("close: %v", err)
		}
	})
	return &guest{t: t, box: b, files: f, out: bufio.NewReader(f.Stdout)}
}

func (l *laboratory) lastLog() string {
	b, _ := os.ReadFile(filepath.Join(l.dir, "containerd.log"))
	return "\n" + string(b[max(0, len(b)-2000):])
}

type answer struct {
	Out, Err string
	Ms       int64
}

// do has the kit run one command.
func (g *guest) do(op string, args ...string) answer {
	g.t.Helper()
	g.send(op, args...)
	reply, err := g.out.ReadBytes('\n')
	if err != nil {
		g.t.Fatalf("%s: read: %v (%q)", op, err, reply)
	}
	var a answer
	if err := json.Unmarshal(reply, &a); err != nil {
		g.t.Fatalf("%s: %v", op, err)
	}
	return a
}

// must is do where the kit must succeed.
func (g *guest) must(op string, args ...string) string {
	g.t.Helper()
	a := g.do(op, args...)
	if a.Err != "" {
		g.t.Fatalf("%s %q: %s", op, args, a.Err)
	}
	return a.Out
}

// exit waits for the guest's end.
func (g *guest) exit() sandbox.Exit {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), 30*time.Second)
	defer cancel()
	e, err := g.box.Wait(ctx)
	if err != nil {
		g.t.Fatalf("wait: %v", err)
	}
	return e
}

// send has the kit run a command that it will not answer.
func (g *guest) send(op string, args ...string) {
	g.t.Helper()
	line, err := json.Marshal(map[string]any{"Op": op, "Args": args})
	if err != nil {
		g.t.Fatal(err)
	}
	if _, err := g.files.Stdin.Write(append(line, '\n')); err != nil {
		g.t.Fatalf("%s: write: %v", op, err)
	}
}
