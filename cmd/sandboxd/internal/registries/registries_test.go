//go:build unix

package registries

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// need skips on a machine without the client, but not in CI.
func need(t *testing.T, client string) {
	t.Helper()
	if _, err := exec.LookPath(client); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

func write(t *testing.T, path, text string, mode os.FileMode) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// origins asks as the program does, and fails where a credential is left
// anywhere.
func origins(t *testing.T, cfg Config, name string) []string {
	t.Helper()
	var log bytes.Buffer
	cfg.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	got := New(cfg).Origins(t.Context(), []string{name})[name]
	if all := log.String() + strings.Join(got, " "); strings.Contains(all, "hunter2") {
		t.Errorf("a credential is shown: %s", all)
	}
	return got
}

func same(t *testing.T, got []string, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("origins (-want +got):\n%s", d)
	}
}

func TestNPMSaysItsRegistries(t *testing.T) {
	need(t, "npm")
	home := t.TempDir()
	t.Setenv("NPM_CONFIG_USERCONFIG", write(t, filepath.Join(home, "npmrc"), `
registry=http://mirror.example.com:4873/npm/
@acme:registry=https://me:hunter2@npm.acme.example/path/
//npm.acme.example/path/:_authToken=hunter2
`, 0o600))
	t.Setenv("NPM_CONFIG_GLOBALCONFIG", filepath.Join(home, "none"))
	// A project's own configuration has no say.
	project := t.TempDir()
	write(t, filepath.Join(project, ".npmrc"), "registry=https://evil.example.net/\n", 0o600)
	write(t, filepath.Join(project, "package.json"), "{}", 0o600)
	t.Chdir(project)
	same(t, origins(t, Config{}, "npm"), "https://npm.acme.example", "http://mirror.example.com:4873")

	t.Setenv("NPM_CONFIG_REGISTRY", "https://me:hunter2@other.example.com:443/q")
	same(t, origins(t, Config{}, "npm"), "https://npm.acme.example", "https://other.example.com")
}

func TestGoSaysItsProxies(t *testing.T) {
	need(t, "go")
	t.Setenv("GOENV", "off")
	project := t.TempDir()
	write(t, filepath.Join(project, "go.mod"), "module x\ngo 9.99\ntoolchain go9.99.0\n", 0o600)
	t.Chdir(project)
	for _, tc := range []struct {
		proxy, sumdb string
		want         []string
	}{
		{"https://me:hunter2@goproxy.example.com:8443/x,direct", "sum.example.com+abc", []string{"https://goproxy.example.com:8443", "https://sum.example.com"}},
		{"http://a.example.com|https://b.example.com|off", "sum.example.com https://mirror.example.com/sum", []string{"http://a.example.com", "https://b.example.com", "https://mirror.example.com"}},
		{"bare.example.com,file:///srv/mod", "off", []string{"https://bare.example.com"}},
		{"direct", "off", nil},
		{"off", "off", nil},
	} {
		t.Setenv("GOPROXY", tc.proxy)
		t.Setenv("GOSUMDB", tc.sumdb)
		same(t, origins(t, Config{}, "go"), tc.want...)
	}
}

func TestPipAndUVSayTheirIndexes(t *testing.T) {
	need(t, "python3")
	if err := exec.Command("python3", "-m", "pip", "--version").Run(); err != nil {
		t.Skip("python3 has no pip")
	}
	for _, name := range []string{"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL", "UV_CONFIG_FILE"} {
		t.Setenv(name, "")
		os.Unsetenv(name)
	}
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	t.Setenv("PIP_CONFIG_FILE", os.DevNull)
	// A module of the folder that the user stands in must not be run.
	project := t.TempDir()
	write(t, filepath.Join(project, "pip.py"), "raise SystemExit('ran')\n", 0o600)
	t.Chdir(project)

	// Untold, pip names its own index and that one's files.
	own := origins(t, Config{}, "pypi")
	if len(own) != 2 || own[0] == own[1] {
		t.Fatalf("pip's own index is %q", own)
	}
	t.Setenv("PIP_CONFIG_FILE", write(t, filepath.Join(project, "pip.conf"), `[global]
index-url = https://me:hunter2@index.example.com/simple
extra-index-url =
    http://one.example.com:3141/root
    https://two.example.com/simple
`, 0o600))
	same(t, origins(t, Config{}, "pypi"), "https://index.example.com", "http://one.example.com:3141", "https://two.example.com")

	t.Setenv("PIP_INDEX_URL", own[0]+"/simple")
	same(t, origins(t, Config{}, "pypi"), own[0], "http://one.example.com:3141", "https://two.example.com", own[1])

	t.Setenv("PIP_INDEX_URL", "https://env.example.com/simple")
	t.Setenv("UV_INDEX", "named=https://me:hunter2@uv.example.com/simple https://uv2.example.com/?a=b")
	t.Setenv("UV_CONFIG_FILE", write(t, filepath.Join(project, "uv.toml"), `
index-url = "https://uv3.example.com"
[[index]]
name = "x"
url = "https://me:hunter2@uv4.example.com/simple"
[pip]
extra-index-url = ["https://uv5.example.com"]
`, 0o600))
	same(t, origins(t, Config{}, "pypi"), "https://env.example.com", "http://one.example.com:3141", "https://two.example.com",
		"https://uv.example.com", "https://uv2.example.com", "https://uv3.example.com", "https://uv4.example.com", "https://uv5.example.com")

	t.Setenv("UV_CONFIG_FILE", write(t, filepath.Join(project, "bad.toml"), "index-url = [hunter2", 0o600))
	if got := origins(t, Config{}, "pypi"); len(got) != 5 {
		t.Errorf("a broken uv.toml: %q", got)
	}
}

// fake puts a script in the place of every client.
func fake(t *testing.T, script string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"npm", "go", "python3"} {
		write(t, filepath.Join(dir, name), "#!/bin/sh\n"+script, 0o700)
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	t.Setenv("XDG_CONFIG_HOME", dir)
	return dir
}

func TestNoClientNoRegistry(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	f := New(Config{URLs: map[string][]string{"pypi": {"https://files.example.com/x", "https://files.example.com", "ftp://no.example.com", "hunter2"}}})
	got := f.Origins(t.Context(), []string{"npm", "pypi", "go", "cargo"})
	want := map[string][]string{"npm": nil, "pypi": {"https://files.example.com"}, "go": nil, "cargo": nil}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestClientsThatMisbehave(t *testing.T) {
	for name, script := range map[string]string{
		"fails, with a token": "echo hunter2 >&2; echo hunter2; exit 1",
		"says nothing":        "exit 0",
		"says something else": "echo 'registry = hunter2'; echo '{\"GOPROXY\": 1, \"x\": \"hunter2\"}'",
		"says too much":       "head -c 300000 /dev/zero | tr '\\0' x; echo; echo 'registry = \"https://late.example.com\"'",
		"names no host":       `echo 'registry = "https://"'; echo 'registry = "javascript:hunter2"'; echo "global.index-url='hunter2'"`,
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, script)
			for _, r := range []string{"npm", "pypi", "go"} {
				if got := origins(t, Config{}, r); len(got) > 0 {
					t.Errorf("%s: %q", r, got)
				}
			}
		})
	}
}

func TestAClientThatHangsIsEndedWithItsChildren(t *testing.T) {
	dir := fake(t, `exec 3>"$(dirname "$0")/alive"; echo up >&3; sleep 600 & wait`)
	fifo := filepath.Join(dir, "alive")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan string, 1)
	go func() {
		r, err := os.Open(fifo)
		if err != nil {
			ended <- err.Error()
			return
		}
		defer r.Close()
		up := make([]byte, 3)
		if _, err := io.ReadFull(r, up); err != nil {
			ended <- err.Error()
			return
		}
		cancel()             // it runs
		_, _ = io.ReadAll(r) // until no process holds the other end
		ended <- "up"
	}()
	f := New(Config{})
	if got := f.Origins(ctx, []string{"npm"})["npm"]; len(got) > 0 {
		t.Errorf("%q", got)
	}
	select {
	case why := <-ended:
		if why != "up" {
			t.Error(why)
		}
	case <-time.After(time.Minute):
		t.Fatal("a child of the client is still there")
	}
	// What nobody answered is asked again.
	fake(t, `echo 'registry = "https://again.example.com/"'`)
	same(t, f.Origins(t.Context(), []string{"npm"})["npm"], "https://again.example.com")
}

func TestAClientIsAskedOnce(t *testing.T) {
	dir := fake(t, `echo x >>"$(dirname "$0")/asked"; echo 'registry = "https://npm.example.com/"'`)
	f := New(Config{})
	for range 3 {
		got := f.Origins(t.Context(), []string{"npm", "npm"})["npm"]
		same(t, got, "https://npm.example.com")
		got[0] = "https://changed.example.com" // a caller's own copy
	}
	asked, err := os.ReadFile(filepath.Join(dir, "asked"))
	if err != nil || string(asked) != "x\n" {
		t.Errorf("asked %q, %v", asked, err)
	}
}

func TestOrigin(t *testing.T) {
	for raw, want := range map[string]string{
		"https://A.Example.com/p?q#f":       "https://a.example.com",
		"https://u:hunter2@a.example.com":   "https://a.example.com",
		"http://a.example.com:80":           "http://a.example.com",
		"http://a.example.com:443":          "http://a.example.com:443",
		"https://[2001:db8::1]/":            "https://[2001:db8::1]",
		"https://[2001:db8::1]:8443/":       "https://[2001:db8::1]:8443",
		"ftp://a.example.com":               "",
		"https:///x":                        "",
		"//a.example.com":                   "",
		"":                                  "",
		"https://a.example.com:port":        "",
		"https://" + strings.Repeat("a", 9): "https://" + strings.Repeat("a", 9),
	} {
		got, ok := Origin(raw)
		if got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v", strconv.Quote(raw), got, ok)
		}
	}
}
