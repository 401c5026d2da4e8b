package integration

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandboxd/sandboxd/test/integration/lab"
)

// kindsHome is a user whose cache is the tests' own, so that what the
// ecosystems' tools are made of is fetched once.
func kindsHome(t *testing.T, e *engine, more ...string) (home string, env []string) {
	t.Helper()
	return lab.UserDir(t), append(e.env(), more...)
}

// toolNames starts a server through `sandboxd run` in a tier and lists its
// tools.
func toolNames(t *testing.T, home string, env []string, tier string, command ...string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := lab.UserCommand(ctx, home, program, append([]string{"run", "--isolation", tier, "--"}, command...)...)
	cmd.Env = append(cmd.Env, env...)
	stderr := &syncBuffer{}
	cmd.Stderr = stderr
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(ctx, &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatalf("initialize: %v\n%s", err, stderr)
	}
	defer session.Close()
	list, err := session.ListTools(ctx, nil)
	if err != nil {
		t.Fatalf("tools/list: %v\n%s", err, stderr)
	}
	var names []string
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
	}
	return names
}

const pythonServer = `import sys, json
from helper_lib import NAME
def main():
    for line in sys.stdin:
        m = json.loads(line)
        if "id" not in m:
            continue
        if m["method"] == "initialize":
            r = {"protocolVersion": m["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "py", "version": "1"}}
        else:
            r = {"tools": [{"name": NAME, "inputSchema": {"type": "object"}}]}
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}))
if __name__ == "__main__":
    main()
`

// zipFile writes an archive of these files.
func zipFile(t *testing.T, path string, files map[string]string) {
	t.Helper()
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	for name, text := range files {
		w, err := z.Create(name)
		if err == nil {
			_, err = io.WriteString(w, text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, buf.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func wheelFile(t *testing.T, dir, name, version, needs string, files map[string]string) {
	t.Helper()
	info := fmt.Sprintf("%s-%s.dist-info/", name, version)
	files[info+"METADATA"] = fmt.Sprintf("Metadata-Version: 2.1\nName: %s\nVersion: %s\n%s", name, version, needs)
	files[info+"WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
	files[info+"RECORD"] = ""
	zipFile(t, filepath.Join(dir, name+"-"+version+"-py3-none-any.whl"), files)
}

// TestPythonServers: a package and what it needs come as wheels from a folder
// that pip is configured with, and run in both tiers; by their lock they make
// the same image, and other wheels are refused. A project's folder runs too.
func TestPythonServers(t *testing.T) {
	e := startEngine(t)
	links := lab.UserDir(t)
	wheelFile(t, links, "helper_lib", "1.0", "", map[string]string{"helper_lib.py": "NAME = 'hi'\n"})
	wheelFile(t, links, "my_mcp_server", "1.2.0", "Requires-Dist: helper-lib>=1\n", map[string]string{
		"my_mcp_server/__init__.py":                      pythonServer,
		"my_mcp_server-1.2.0.dist-info/entry_points.txt": "[console_scripts]\nmy-mcp-server = my_mcp_server:main\n",
	})
	home, env := kindsHome(t, e, "PIP_FIND_LINKS="+links, "PIP_NO_INDEX=1")
	_, _ = userRun(t, home, env, "image", "rm", "pypi:my-mcp-server")
	for _, tier := range containerTiers {
		if got := toolNames(t, home, env, tier, "uvx", "my-mcp-server"); len(got) != 1 || got[0] != "hi" {
			t.Errorf("%s: tools %q", tier, got)
		}
	}
	lock, err := userRun(t, home, env, "image", "lock", "pypi:my-mcp-server")
	if err != nil || !strings.Contains(lock, "helper_lib-1.0-py3-none-any.whl") || strings.Contains(lock, links) {
		t.Fatalf("%v\n%s", err, lock)
	}
	var want struct{ Digest string }
	if err := json.Unmarshal([]byte(lock), &want); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(home, "sandboxd.lock")
	if err := os.WriteFile(file, []byte(lock), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := userRun(t, home, env, "image", "build", "--lock", file); err != nil || !strings.HasSuffix(strings.TrimSpace(out), want.Digest) {
		t.Errorf("by the lock: %v\n%s", err, out)
	}
	wheelFile(t, links, "helper_lib", "1.0", "", map[string]string{"helper_lib.py": "NAME = 'other'\n"})
	if out, err := userRun(t, home, env, "image", "build", "--lock", file); err == nil || !strings.Contains(out, "locked hash") {
		t.Errorf("another wheel of the same version: %v\n%s", err, out)
	}
	if out, err := userRun(t, home, env, "image", "build", "pypi:no-such-server"); err == nil || !strings.Contains(out, "no wheel of no-such-server") {
		t.Errorf("a package that is not there: %v\n%s", err, out)
	}
	project := lab.UserDir(t)
	for name, text := range map[string]string{"server.py": pythonServer, "pyproject.toml": "[project]\nname = 'x'\ndependencies = ['helper-lib==1.0']\n"} {
		if err := os.WriteFile(filepath.Join(project, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := toolNames(t, home, env, "container", "uv", "run", filepath.Join(project, "server.py")); len(got) != 1 || got[0] != "other" {
		t.Errorf("a folder: tools %q", got)
	}
}

const goServer = `package main
import ("bufio"; "os"; "strings")
func main() {
	for s := bufio.NewScanner(os.Stdin); s.Scan(); {
		line := s.Text()
		i := strings.Index(line, "\"id\":")
		if i < 0 { continue }
		id := line[i+5:]
		id = id[:strings.IndexAny(id, ",}")]
		r := "{\"tools\":[{\"name\":\"hi\",\"inputSchema\":{\"type\":\"object\"}}]}"
		if strings.Contains(line, "initialize") {
			r = "{\"protocolVersion\":\"2025-06-18\",\"capabilities\":{\"tools\":{}},\"serverInfo\":{\"name\":\"go\",\"version\":\"1\"}}"
		}
		os.Stdout.WriteString("{\"jsonrpc\":\"2.0\",\"id\":" + id + ",\"result\":" + r + "}\n")
	}
}
`

// TestGoServer: a module of a proxy on the loopback is built inside a sandbox,
// by this host's toolchain, into an image without a library or a shell.
func TestGoServer(t *testing.T) {
	e := startEngine(t)
	zipped := filepath.Join(t.TempDir(), "m.zip")
	const mod = "module example.com/server\n\ngo 1.24\n"
	zipFile(t, zipped, map[string]string{"example.com/server@v1.0.0/go.mod": mod, "example.com/server@v1.0.0/main.go": goServer})
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/example.com/server/@v/list":
			_, _ = io.WriteString(w, "v1.0.0\n")
		case "/example.com/server/@v/v1.0.0.info", "/example.com/server/@latest":
			_, _ = io.WriteString(w, `{"Version":"v1.0.0"}`)
		case "/example.com/server/@v/v1.0.0.mod":
			_, _ = io.WriteString(w, mod)
		case "/example.com/server/@v/v1.0.0.zip":
			http.ServeFile(w, r, zipped)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(proxy.Close)
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	home, env := kindsHome(t, e, "GOPROXY="+proxy.URL, "GONOSUMDB=*", "GOSUMDB=off", "GOROOT="+strings.TrimSpace(string(root)))
	const ref = "go:example.com/server@v1.0.0"
	_, _ = userRun(t, home, env, "image", "rm", ref)
	if got := toolNames(t, home, env, "container", "go", "run", "example.com/server@v1.0.0"); len(got) != 1 || got[0] != "hi" {
		t.Errorf("tools %q", got)
	}
	lock, err := userRun(t, home, env, "image", "lock", ref)
	if err != nil || !strings.Contains(lock, `"path": "example.com/server"`) || !strings.Contains(lock, `"sum": "h1:`) {
		t.Errorf("%v\n%s", err, lock)
	}
	if out, err := userRun(t, home, env, "image", "build", "go:example.com/none@v1.0.0"); err == nil || !strings.Contains(out, "does not have") {
		t.Errorf("a module that is not there: %v\n%s", err, out)
	}
}
