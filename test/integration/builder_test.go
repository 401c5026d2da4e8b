package integration

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/test/integration/lab"
)

// buildHome is a user with a cache of its own that holds the layers of the
// builder's tools, and an npm configuration for a registry on the loopback.
type buildHome struct {
	t          testing.TB
	e          *engine
	home       string
	cache, url string
}

// warmTools builds one real package in a sandbox, against this machine's own
// registry, so that the cache holds the tools' layers. It returns the digest.
func warmTools(t testing.TB, e *engine) string {
	t.Helper()
	warmed.Lock()
	defer warmed.Unlock()
	if warmed.digest != "" {
		return warmed.digest
	}
	const ref = "npm:@modelcontextprotocol/server-everything@latest"
	_, _ = userRun(t, lab.UserDir(t), e.env(), "image", "rm", ref) // as in a first run
	out, err := userRun(t, lab.UserDir(t), e.env(), "image", "build", ref)
	if err != nil {
		t.Fatalf("image build %s: %v\n%s\n%s", ref, err, out, e.log)
	}
	lines := strings.Fields(out)
	warmed.digest = lines[len(lines)-1]
	return warmed.digest
}

// warmed is what warmTools built, once for all tests.
var warmed struct {
	sync.Mutex
	digest string
}

// userRun runs the program as the ordinary user; what it says on both streams
// comes back, stdout last.
func userRun(t testing.TB, home string, env []string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := lab.UserCommand(ctx, home, program, args...)
	cmd.Env = append(cmd.Env, env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	return stderr.String() + stdout.String(), err
}

func newBuildHome(t testing.TB, e *engine, url, token string) *buildHome {
	t.Helper()
	h := &buildHome{t: t, e: e, home: lab.UserDir(t), url: url}
	h.cache = filepath.Join(h.home, "cache")
	if err := os.Mkdir(h.cache, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, argv := range [][]string{
		{"mkdir", "-p", h.cache + "/images"},
		{"cp", "-a", cache + "/images/shared", h.cache + "/images/shared"},
		{"cp", "-al", cache + "/images/oci", h.cache + "/images/oci"},
	} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", argv, err, out)
		}
	}
	// The hard-linked index must not be written through.
	_ = os.Remove(h.cache + "/images/oci/index.json")
	rc := "registry=" + url + "\n"
	if token != "" {
		rc += strings.TrimPrefix(url, "http:") + "/:_authToken=" + token + "\n"
	}
	if err := os.WriteFile(filepath.Join(h.home, ".npmrc"), []byte(rc), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("chown", "-R", fmt.Sprint(lab.UserID, ":", lab.UserID), h.home).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return h
}

func (h *buildHome) env() []string {
	return []string{"SANDBOXD_ENGINE=" + h.e.socket, "SANDBOXD_CACHE=" + h.cache}
}

// clean checks that a build left nothing unfinished, in the cache or in the
// engine.
func (h *buildHome) clean() {
	h.t.Helper()
	left, _ := filepath.Glob(h.cache + "/images/tmp/*")
	for _, f := range left {
		if filepath.Base(f) != "guard" {
			h.t.Errorf("left in the cache: %s", f)
		}
	}
	until(h.t, "nothing of the build's sandbox is left", time.Minute, func() bool { return h.e.traces()["cgroups"] == nil })
}

// loopRegistry is an npm registry on the loopback with a few packages.
type loopRegistry struct {
	*httptest.Server
	packages map[string][]byte // name -> tarball
	token    string
	more     http.HandlerFunc // for every other path
	unknown  atomic.Int64     // requests without the token
}

func newLoopRegistry(t *testing.T, token string, more http.HandlerFunc, packages map[string][]byte) *loopRegistry {
	t.Helper()
	r := &loopRegistry{packages: packages, token: token, more: more}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *loopRegistry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	name, _, isTarball := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/-/")
	body, ok := r.packages[name]
	switch {
	case !ok && r.more != nil:
		r.more(w, req)
	case !ok:
		w.WriteHeader(http.StatusNotFound)
	case r.token != "" && req.Header.Get("Authorization") != "Bearer "+r.token:
		r.unknown.Add(1)
		w.WriteHeader(http.StatusUnauthorized)
	case isTarball:
		_, _ = w.Write(body)
	default:
		sum := sha512.Sum512(body)
		version := map[string]any{
			"name": name, "version": "1.0.0", "bin": "cli.js", "hasInstallScript": true,
			"scripts": map[string]string{"postinstall": "node ran.js"},
			"dist": map[string]string{
				"tarball": r.URL + "/" + name + "/-/1.0.0.tgz", "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:]),
			},
		}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"name": name, "dist-tags": map[string]string{"latest": "1.0.0"}, "versions": map[string]any{"1.0.0": version},
		})
	}
}

// npmTarball packs a package of two scripts: a server, and what would run at
// the install.
func npmTarball(t *testing.T, name string) []byte {
	t.Helper()
	manifest := `{"name":"` + name + `","version":"1.0.0","bin":"cli.js","scripts":{"postinstall":"node ran.js"}}`
	files := map[string]string{
		"package/package.json": manifest, "package/cli.js": "#!/usr/bin/env node\nconst fs = require('fs'), made = __dirname + '/made'\nconsole.log('ran:' + fs.existsSync(made) + (fs.existsSync(made) ? ':' + fs.readFileSync(made).toString().trim() : ''))\n",
		"package/ran.js": "require('fs').writeFileSync('made', Object.keys(process.env).filter((k) => k.includes('auth')).join())\n",
	}
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	writeTar(t, z, files)
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func writeTar(t testing.TB, w io.Writer, files map[string]string) {
	t.Helper()
	tw := tar.NewWriter(w)
	for name, text := range files {
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestBuildInASandbox: npm resolves and fetches inside a sandbox, to the very
// image that this host's own npm makes, and with credentials that reach the
// registry and nothing else.
func TestBuildInASandbox(t *testing.T) {
	e := startEngine(t)
	inside := warmTools(t, e)
	// Named with its command, it is another reference with a record of its own.
	const named = "npm:@modelcontextprotocol/server-everything#mcp-server-everything"
	_, _ = userRun(t, lab.UserDir(t), e.env(), "image", "rm", named)
	outside, err := userRun(t, lab.UserDir(t), append(e.env(), npmEnv()...), "image", "build", "--build-unsandboxed", named)
	if err != nil || !strings.HasSuffix(strings.TrimSpace(outside), inside) {
		t.Errorf("inside %s, outside %s, %v", inside, outside, err)
	}

	const token = "a-token-of-the-registry"
	r := newLoopRegistry(t, token, nil, map[string][]byte{"good": npmTarball(t, "good")})
	h := newBuildHome(t, e, r.URL, token)
	out, err := userRun(t, h.home, h.env(), "run", "--", "npx", "-y", "good")
	if err != nil || !strings.HasSuffix(out, "ran:false\n") || r.unknown.Load() > 0 {
		t.Errorf("%v, %d requests without a token\n%s", err, r.unknown.Load(), out)
	}
	if !strings.Contains(out, "install scripts were not run") {
		t.Errorf("it does not say that scripts were left out:\n%s", out)
	}
	h.clean()
	// The token is in no layer, lock or record.
	grep := exec.Command("grep", "-rlF", token, h.cache)
	if found, _ := grep.Output(); len(found) > 0 {
		t.Errorf("the token is in %s", found)
	}
	// A mirror of the operator's, with a token out of the secret store.
	h = newBuildHome(t, e, "http://127.0.0.1:1", "")
	settings := filepath.Join(h.home, "operator.yaml")
	text := fmt.Sprintf("registries: {npm: {mirror: %q, token: \"{{secrets.npm_mirror}}\"}}", r.URL)
	if err := os.WriteFile(settings, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err = userRun(t, h.home, append(h.env(), "SANDBOXD_OPERATOR="+settings, "SANDBOXD_SECRET_NPM_MIRROR="+token), "image", "build", "npm:good")
	if err != nil {
		t.Errorf("a mirror: %v\n%s", err, out)
	}
	if found, _ := exec.Command("grep", "-rlF", token, h.cache).Output(); len(found) > 0 {
		t.Errorf("the token is in %s", found)
	}
	// A wrong token is told as that, in one line.
	h = newBuildHome(t, e, r.URL, "another")
	out, err = userRun(t, h.home, h.env(), "image", "build", "npm:good")
	if err == nil || !strings.Contains(out, "refused access") {
		t.Errorf("%v\n%s", err, out)
	}
	h.clean()
}

// TestBuildWithoutAnEngine: without a sandbox nothing is fetched, and the
// refusal says what to do.
func TestBuildWithoutAnEngine(t *testing.T) {
	var asked atomic.Int64
	r := newLoopRegistry(t, "", func(w http.ResponseWriter, _ *http.Request) { asked.Add(1); w.WriteHeader(http.StatusNotFound) }, nil)
	h := newBuildHome(t, &engine{t: t, socket: "/nonexistent/engine.sock"}, r.URL, "")
	out, err := userRun(t, h.home, h.env(), "image", "build", "npm:good")
	if err == nil || !strings.Contains(out, "--build-unsandboxed") || !strings.Contains(out, "sandboxd engine") {
		t.Errorf("%v\n%s", err, out)
	}
	if asked.Load() > 0 {
		t.Error("the registry was asked for the package")
	}
}

// TestSubvertedNPM puts a hostile program in npm's place. It reaches the
// registry alone, reads and writes nothing of the host's, and what it leaves
// behind is refused and removed.
func TestSubvertedNPM(t *testing.T) {
	e := startEngine(t)
	warmTools(t, e)
	canary, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer canary.Close()
	victims := lab.UserDir(t)
	victim := filepath.Join(victims, "victim")
	if err := os.WriteFile(victim, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	for leave, word := range map[string]string{
		"nothing": "left no", "lock": "not a file", "manifest": "not a file of the package", "tree": "not installed as a folder", "shut": "cannot be read",
	} {
		t.Run(leave, func(t *testing.T) {
			var mu sync.Mutex
			var report []byte
			r := newLoopRegistry(t, "", func(w http.ResponseWriter, req *http.Request) {
				switch req.URL.Path {
				case "/plan":
					_ = json.NewEncoder(w).Encode(map[string]any{
						"canary": canary.Addr().(*net.TCPAddr).Port, "victim": victim, "folder": victims, "leave": leave,
					})
				case "/report":
					mu.Lock()
					defer mu.Unlock()
					report, _ = io.ReadAll(io.LimitReader(req.Body, 1<<16))
				}
			}, nil)
			h := newBuildHome(t, e, r.URL, "")
			h.replaceNPM("testdata/evilnpm.js")
			out, err := userRun(t, h.home, h.env(), "image", "build", "npm:evil")
			if err == nil || !strings.Contains(out, word) {
				t.Errorf("%v, no %q:\n%s", err, word, out)
			}
			h.clean()
			mu.Lock()
			defer mu.Unlock()
			var got map[string]string
			if err := json.Unmarshal(report, &got); err != nil {
				t.Fatalf("no report: %v\n%s", err, out)
			}
			want := map[string]string{
				"loopback": "ECONNREFUSED", "public": "ECONNREFUSED", "metadata": "ECONNREFUSED", "name": "ENOTFOUND",
				"settings": "EROFS", "root": "EROFS", "victim": "ENOENT", "processes": "few",
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("what it could do (-want +got):\n%s", d)
			}
		})
	}
	if b, err := os.ReadFile(victim); err != nil || string(b) != "mine" {
		t.Errorf("the victim holds %q, %v", b, err)
	}
}

// replaceNPM puts another program in the place of npm's layer.
func (h *buildHome) replaceNPM(script string) {
	h.t.Helper()
	text, err := os.ReadFile(script)
	if err != nil {
		h.t.Fatal(err)
	}
	var layer bytes.Buffer
	writeTar(h.t, &layer, map[string]string{"usr/local/lib/npm/bin/npm-cli.js": string(text)})
	sum := fmt.Sprintf("%x", sha256.Sum256(layer.Bytes()))
	records, err := filepath.Glob(h.cache + "/images/shared/tool-npm-*.json")
	if err != nil || len(records) == 0 {
		h.t.Fatalf("no layer of npm: %v", err)
	}
	record := fmt.Sprintf(`{"layer":{"digest":"sha256:%s","size":%d}}`, sum, layer.Len())
	for path, data := range map[string][]byte{h.cache + "/images/oci/blobs/sha256/" + sum: layer.Bytes(), records[0]: []byte(record)} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			h.t.Fatal(err)
		}
		if err := os.Chown(path, lab.UserID, lab.UserID); err != nil {
			h.t.Fatal(err)
		}
	}
}

// TestKilledSandboxedBuild: a builder that is killed takes its sandbox along,
// and leaves no half image.
func TestKilledSandboxedBuild(t *testing.T) {
	e := startEngine(t)
	warmTools(t, e)
	for _, polite := range []bool{false, true} {
		reached := make(chan struct{}, 16)
		r := newLoopRegistry(t, "", func(_ http.ResponseWriter, req *http.Request) {
			reached <- struct{}{}
			<-req.Context().Done()
		}, nil)
		h := newBuildHome(t, e, r.URL, "")
		p := startProgram(t, h.home, h.env(), "image", "build", "npm:some-package")
		select {
		case <-reached:
		case <-p.done:
			t.Fatalf("it ended:\n%s", p.stderr)
		}
		if e.traces()["cgroups"] == nil {
			t.Error("npm asks, and no sandbox runs")
		}
		if polite {
			_ = p.cmd.Process.Signal(os.Interrupt)
			p.status(t, time.Minute)
		} else {
			p.kill()
		}
		out, err := userRun(t, h.home, h.env(), "image", "ls", "--json")
		if err != nil || strings.TrimSpace(out) != "[]" {
			t.Errorf("images: %s %v", out, err)
		}
		h.clean()
	}
}

// TestSoakInstallScripts: install scripts run where they were asked for, in a
// sandbox that has compilers and not the registry's token. It fetches compilers,
// so it runs with the long tests.
func TestSoakInstallScripts(t *testing.T) {
	if os.Getenv("SANDBOXD_SOAK") == "" {
		t.Skip("make soak runs it")
	}
	e := startEngine(t)
	warmTools(t, e)
	const token = "a-token-of-the-registry"
	m := newMirror(t)
	m.own = newLoopRegistry(t, token, nil, map[string][]byte{"scripted": npmTarball(t, "scripted")})
	m.own.URL = m.URL
	h := newBuildHome(t, e, m.URL, token)
	out, err := userRun(t, h.home, h.env(), "run", "--allow-build", "--", "npx", "-y", "scripted")
	if err != nil || !strings.HasSuffix(out, "ran:true:\n") {
		t.Errorf("%v\n%s", err, out)
	}
	h.clean()
}
