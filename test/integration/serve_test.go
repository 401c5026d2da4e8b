package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandboxd/sandboxd/test/integration/lab"
)

// The values that no one but the server with the variable may ever see.
const (
	fileSecret = "s3cr3t-of-a-file-8d1f"
	envSecret  = "s3cr3t-of-the-environment-77aa"
)

// servedConfig is the more general file: servers that others refer to, and
// one that cannot start.
const servedConfig = `
tenant: it
servers:
  c-filesystem:
    command: npx
    args: [-y, "@modelcontextprotocol/server-filesystem", /data]
    isolation: container
    mounts: [data:/data]
    required: true
  g-filesystem:
    command: npx
    args: [-y, "@modelcontextprotocol/server-filesystem", /data]
    isolation: gvisor
    mounts: [{source: data, target: /data}]
    required: true
  g-memory:
    command: npx
    args: [-y, "@modelcontextprotocol/server-memory"]
    isolation: gvisor
    required: true
    tools_allowlist: [read_graph, search_nodes]
mcp_servers:
  - ref: c-filesystem
  - ref: g-filesystem
  - id: gone
    label: Cannot start
    command: ./gone.wasm
  - id: fetch
    label: Fetch
    command: ./fetch.wasm
    isolation: wasm
    required: true
    mounts: [ca:/lab]
    env: {SSL_CERT_FILE: /lab/ca.pem}
    policy:
      egress:
        mode: allowlist
        allow: [{host: allowed.example.com}]
`

// servedTOML is the more special file, in the other form.
const servedTOML = `
secrets_dir = "secrets"

[[mcp_servers]]
id = "c-everything"
command = "npx"
args = ["-y", "@modelcontextprotocol/server-everything"]
isolation = "container"
required = true
env = { LAB_TOKEN = "Bearer {{secrets.lab_token}}", LAB_KEY = "{{secrets.lab_key}}" }

[[mcp_servers]]
id = "g-everything"
label = "Everything in gVisor"
command = "npx"
args = ["-y", "@modelcontextprotocol/server-everything"]
isolation = "gvisor"
required = true

[[mcp_servers]]
id = "c-memory"
command = "npx"
args = ["-y", "@modelcontextprotocol/server-memory"]
isolation = "container"
required = true

[[mcp_servers]]
ref = "g-memory"
tools_allowlist = ["read_graph"]
`

// served is one server of the configuration with a call that shows it works.
type served struct {
	slug, label string
	realServer
}

func servedServers() []served {
	everything, filesystem, memory := realServers[0], realServers[1], realServers[2]
	return []served{
		{"c_filesystem", "c-filesystem", filesystem},
		{"g_filesystem", "g-filesystem", filesystem},
		{"g_memory", "g-memory", memory},
		{"fetch", "Fetch", realServer{tool: "echo", input: map[string]any{"text": "hello from the test"}, want: "hello from the test"}},
		{"c_everything", "c-everything", everything},
		{"g_everything", "Everything in gVisor", everything},
		{"c_memory", "c-memory", memory},
	}
}

// serving is a running `sandboxd serve` inside a lab.
type serving struct {
	l              *lab.Lab
	base           string
	cmd            *exec.Cmd
	stdout, stderr *syncBuffer
	done           chan struct{} // closed when it ended
	client         *http.Client
}

// startServe starts serve as the ordinary user in the lab's namespace and
// waits until it serves.
func startServe(t testing.TB, l *lab.Lab, env []string, args ...string) *serving {
	t.Helper()
	s := &serving{l: l, stdout: &syncBuffer{}, stderr: &syncBuffer{}, done: make(chan struct{}), client: l.HTTPClient()}
	s.cmd = l.Command(context.Background(), program, append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)...)
	s.cmd.Env = append(s.cmd.Env, env...)
	s.cmd.Stdout, s.cmd.Stderr = s.stdout, s.stderr
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.cmd.Wait(); close(s.done) }()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		<-s.done
	})
	until(t, "serve is up", 3*time.Minute, func() bool {
		select {
		case <-s.done:
			t.Fatalf("serve ended: %v\n%s", s.cmd.ProcessState, s.stderr)
		default:
		}
		_, rest, ok := strings.Cut(s.stderr.String(), "server(s) at ")
		base, _, whole := strings.Cut(rest, "\n")
		s.base = base
		return ok && whole
	})
	return s
}

// request speaks to the HTTP API.
func (s *serving) request(t testing.TB, method, path, body string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// connector mirrors what the API documents; unknown members are errors.
type connector struct {
	Name, Label, Type string
	Actions           []struct {
		Key, Label, Description   string
		InputSchema, OutputSchema map[string]any
	}
}

func (s *serving) connectors(t *testing.T) []connector {
	t.Helper()
	status, body := s.request(t, http.MethodGet, "/api/v1/automation/connectors", "")
	var out []connector
	dec := json.NewDecoder(strings.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&out); err != nil || status != http.StatusOK {
		t.Fatalf("connectors: %d %v\n%.2000s", status, err, body)
	}
	return out
}

// result is what a call gives.
type result struct {
	OK      bool
	Content []struct{ Type, Text string }
	Error   struct{ Code, Message, Path string }
}

func (r result) text() string {
	var b strings.Builder
	for _, c := range r.Content {
		b.WriteString(c.Text)
	}
	return b.String()
}

func (s *serving) call(t testing.TB, slug, action, args string) (int, result) {
	t.Helper()
	status, body := s.request(t, http.MethodPost, "/api/v1/automation/connectors/"+slug+"/actions/"+action, args)
	var r result
	if err := json.Unmarshal([]byte(body), &r); err != nil {
		t.Fatalf("%s %s: %d %v\n%.2000s", slug, action, status, err, body)
	}
	return status, r
}

// session is a client of the SDK's at an endpoint of serve.
func (s *serving) session(t *testing.T, endpoint string) *mcp.ClientSession {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	cs, err := client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: s.base + endpoint, HTTPClient: s.client, MaxRetries: -1}, nil)
	if err != nil {
		t.Fatalf("%s: %v\n%s", endpoint, err, s.stderr)
	}
	t.Cleanup(func() { _ = cs.Close() }) // serve may be gone by then
	return cs
}

// userFolder makes a folder of the ordinary user's with one file.
func userFolder(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{dir, path} {
		if err := os.Chown(p, lab.UserID, lab.UserID); err != nil {
			t.Fatal(err)
		}
	}
}

// TestServe: real servers of every kind in every tier behind one serve, used
// through the connector API, `sandboxd call`, the official Inspector and the
// SDK; its secrets stay secret, and it leaves nothing behind.
func TestServe(t *testing.T) {
	e := startEngine(t)
	for _, srv := range realServers {
		buildImage(t, append([]string{"--"}, srv.command()...)...)
	}
	l, queries := newLabHosts(t)
	noteFolder(t, l.Home)
	userFolder(t, filepath.Join(l.Home, "secrets"), "lab_token", fileSecret+"\n")
	userFolder(t, filepath.Join(l.Home, "ca"), "ca.pem", l.CA.PEM)
	if err := os.Symlink(fetchModule(t), filepath.Join(l.Home, "fetch.wasm")); err != nil {
		t.Fatal(err)
	}
	records := filepath.Join(l.Home, "records.jsonl")
	s := startServe(t, l, append(e.env(), "SANDBOXD_SECRET_LAB_KEY="+envSecret), "--verbose",
		"--resolver", "127.0.0.1:53", "--records", records,
		"--config", l.WriteFile("base.yaml", servedConfig), "--config", l.WriteFile("serve.toml", servedTOML))

	t.Run("connectors", s.testConnectors)
	t.Run("actions", s.testActions)
	t.Run("call", func(t *testing.T) { s.testCall(t, e) })
	t.Run("mcp", s.testSDK)
	t.Run("inspector", s.testInspector)
	t.Run("egress", func(t *testing.T) { s.testFetch(t, records, queries) })
	t.Run("secrets", func(t *testing.T) { s.testSecrets(t, e) })
	t.Run("stop", func(t *testing.T) { s.testStop(t, e) })
	if t.Failed() {
		t.Logf("serve's stderr ends with:\n%s\nthe engine's:\n%s", tail(s.stderr.String()), tail(e.log.String()))
	}
}

func tail(s string) string { return s[max(0, len(s)-6000):] }

// testConnectors: every server that is up is a whole descriptor, in the
// order of the files; one that is not up is none, and says why elsewhere.
func (s *serving) testConnectors(t *testing.T) {
	var want, got [][3]string
	for _, srv := range servedServers() {
		want = append(want, [3]string{srv.slug, srv.label, "api"})
	}
	for _, c := range s.connectors(t) {
		got = append(got, [3]string{c.Name, c.Label, c.Type})
		if len(c.Actions) == 0 {
			t.Errorf("%s has no actions", c.Name)
		}
		for _, a := range c.Actions {
			if a.Key == "" || a.Label == "" || a.Description == "" || a.InputSchema["type"] != "object" {
				t.Errorf("%s: action %+v is not complete", c.Name, a)
			}
		}
		if c.Name == "g_memory" && (len(c.Actions) != 1 || c.Actions[0].Key != "read_graph") {
			t.Errorf("tools_allowlist let through %+v", c.Actions)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("connectors (-want +got):\n%s", d)
	}
	status, body := s.request(t, http.MethodGet, "/api/v1/servers", "")
	if status != http.StatusOK || !strings.Contains(body, "no such file") {
		t.Errorf("/api/v1/servers does not say why a server is down: %d %s", status, body)
	}
	if status, body := s.request(t, http.MethodGet, "/healthz", ""); status != http.StatusOK {
		t.Errorf("an optional server that is down makes health %d %s", status, body)
	}
}

// testActions: a call works for each server, and each wrong one is refused
// with its own code, status and, where it is about an argument, path.
func (s *serving) testActions(t *testing.T) {
	for _, srv := range servedServers() {
		args, err := json.Marshal(srv.input)
		if err != nil {
			t.Fatal(err)
		}
		status, r := s.call(t, srv.slug, srv.tool, string(args))
		if status != http.StatusOK || !r.OK || !strings.Contains(r.text(), srv.want) {
			t.Errorf("%s %s: %d %+v", srv.slug, srv.tool, status, r)
		}
	}
	for _, tc := range []struct {
		slug, action, args string
		status             int
		code, path, says   string
	}{
		{"c_everything", "echo", `{"message":7}`, 422, "invalid_arguments", "/message", "string"},
		{"g_everything", "echo", `{}`, 422, "invalid_arguments", "", "message"},
		{"fetch", "echo", `{"text":"a","more":1}`, 422, "invalid_arguments", "", "more"},
		{"c_filesystem", "read_multiple_files", `{"paths":["/data/note.txt",5]}`, 422, "invalid_arguments", "/paths/*", "string"},
		{"c_filesystem", "read_text_file", `{"path":`, 400, "invalid_request", "", "JSON"},
		{"c_filesystem", "read_text_file", `{"path":"/data/none.txt"}`, 200, "tool_error", "", "none.txt"},
		{"c_filesystem", "read_text_file", `{"path":"/etc/passwd"}`, 200, "tool_error", "", "denied"},
		{"c_filesystem", "write_file", `{"path":"/data/new","content":"x"}`, 200, "tool_error", "", "EROFS"},
		{"g_filesystem", "write_file", `{"path":"/data/new","content":"x"}`, 200, "tool_error", "", "EROFS"},
		{"c_everything", "nothing", `{}`, 404, "unknown_action", "", "nothing"},
		{"g_memory", "search_nodes", `{"query":"x"}`, 404, "unknown_action", "", "search_nodes"},
		{"nobody", "echo", `{}`, 404, "unknown_connector", "", "nobody"},
		{"gone", "echo", `{}`, 503, "server_down", "", "no such file"},
	} {
		status, r := s.call(t, tc.slug, tc.action, tc.args)
		if status != tc.status || r.OK || r.Error.Code != tc.code || r.Error.Path != tc.path || !strings.Contains(r.Error.Message, tc.says) {
			t.Errorf("%s %s %s: %d %+v, want %d %s at %q with %q", tc.slug, tc.action, tc.args, status, r.Error, tc.status, tc.code, tc.path, tc.says)
		}
	}
}

// testCall: `sandboxd call` prints the result and tells success, failure and
// misuse apart by its status.
func (s *serving) testCall(t *testing.T, e *engine) {
	free := s.l.Listen("127.0.0.1:0")
	nobody := "http://" + free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args           []string
		stdin          string
		status         int
		stdout, stderr string // parts
	}{
		{[]string{"c_everything", "echo", `{"message":"by hand"}`}, "", 0, "by hand", ""},
		{[]string{"c-everything", "echo", "-"}, `{"message":"piped"}`, 0, "piped", ""},
		{[]string{"g_memory", "read_graph"}, "", 0, `"ok":true`, ""},
		{[]string{"c_filesystem", "read_text_file", `{"path":"/data/none.txt"}`}, "", 1, `"tool_error"`, ""},
		{[]string{"c_everything", "echo", `{"message":7}`}, "", 1, `"path":"/message"`, ""},
		{[]string{"nobody", "echo"}, "", 1, `"unknown_connector"`, ""},
		{[]string{"--server", nobody, "c_everything", "echo"}, "", 1, "", "is sandboxd serve running?"},
		{[]string{"c_everything", "echo", `[1]`}, "", 2, "", "not a JSON object"},
		{[]string{"c_everything"}, "", 2, "", "2 or 3 arguments"},
		{[]string{"--sever", "x", "c_everything", "echo"}, "", 2, "", "unknown flag"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		cmd := s.l.Command(ctx, program, append([]string{"call"}, tc.args...)...)
		cmd.Env = append(append(cmd.Env, e.env()...), "SANDBOXD_SERVER="+s.base)
		cmd.Stdin = strings.NewReader(tc.stdin)
		status, stdout, stderr := finish(t, cmd)
		cancel()
		if status != tc.status || !strings.Contains(stdout, tc.stdout) || !strings.Contains(stderr, tc.stderr) {
			t.Errorf("call %q: status %d\nstdout: %s\nstderr: %s", tc.args, status, stdout, stderr)
		}
		switch {
		case tc.stdout == "" && stdout != "", tc.stderr == "" && stderr != "":
			t.Errorf("call %q says more than it should\nstdout: %s\nstderr: %s", tc.args, stdout, stderr)
		case tc.stdout != "" && !json.Valid([]byte(stdout)):
			t.Errorf("call %q: stdout is not JSON: %s", tc.args, stdout)
		}
	}
}

// finish runs a program to its end.
func finish(t *testing.T, cmd *exec.Cmd) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if cmd.ProcessState.ExitCode() < 0 {
		t.Errorf("%v did not end by itself: %v", cmd.Args, cmd.ProcessState)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// testSDK: both endpoints serve the SDK's client; the aggregated one names
// every tool after its server, the other passes the server through.
func (s *serving) testSDK(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var want, got []string
	for _, c := range s.connectors(t) {
		for _, a := range c.Actions {
			want = append(want, "mcp_"+c.Name+"_"+a.Key)
		}
	}
	cs := s.session(t, "/mcp")
	for tool, err := range cs.Tools(ctx, nil) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, tool.Name)
	}
	if d := cmp.Diff(want, got); d != "" || len(got) < 20 {
		t.Errorf("tools at /mcp (-want +got):\n%s", d)
	}
	for _, srv := range servedServers() {
		useServer(ctx, t, cs, srv.realServer, "mcp_"+srv.slug+"_"+srv.tool)
	}
	// This endpoint starts a sandbox for each session: one of each tier here,
	// others with the Inspector.
	for _, srv := range servedServers() {
		if srv.slug == "c_everything" || srv.slug == "g_filesystem" || srv.slug == "fetch" {
			t.Run(srv.slug, func(t *testing.T) {
				useServer(ctx, t, s.session(t, "/mcp/"+srv.slug), srv.realServer, srv.tool)
			})
		}
	}
	t.Run("allowlist", func(t *testing.T) {
		raw := s.session(t, "/mcp/g_memory")
		list, err := raw.ListTools(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Tools) != 1 || list.Tools[0].Name != "read_graph" {
			t.Errorf("the server's own endpoint lists %d tools", len(list.Tools))
		}
		if _, err := raw.CallTool(ctx, &mcp.CallToolParams{Name: "search_nodes", Arguments: map[string]any{"query": "x"}}); err == nil {
			t.Error("the server's own endpoint calls a tool that tools_allowlist leaves out")
		}
		if _, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "mcp_g_memory_search_nodes", Arguments: map[string]any{"query": "x"}}); err == nil {
			t.Error("/mcp calls a tool that tools_allowlist leaves out")
		}
	})
}

// testFetch: a tool of the WASM server reaches what its policy names, through
// the whole way from the API to the guard, and nothing else.
func (s *serving) testFetch(t *testing.T, records string, queries *lab.DNS) {
	if status, r := s.call(t, "fetch", "fetch", `{"url":"https://allowed.example.com/"}`); status != http.StatusOK || !r.OK || !strings.Contains(r.text(), "the allowed host") {
		t.Errorf("allowed: %d %+v", status, r)
	}
	if status, r := s.call(t, "fetch", "fetch", `{"url":"https://other.example.com/"}`); status != http.StatusOK || r.OK {
		t.Errorf("refused: %d %+v", status, r)
	}
	if slices.Contains(queries.Queries(), "other.example.com") {
		t.Error("a query left for a name that policy refuses")
	}
	found := false
	for _, r := range readRecords(t, records) {
		found = found || r.Tenant == "it" && r.Sandbox == "fetch" && r.Host == "other.example.com" && !r.Allow && r.Reason != ""
	}
	if !found {
		t.Error("no decision record names the refused host")
	}
}

// testSecrets: the server has its secrets, and no one else.
func (s *serving) testSecrets(t *testing.T, e *engine) {
	status, r := s.call(t, "c_everything", "get-env", `{}`)
	if status != http.StatusOK || !strings.Contains(r.text(), "Bearer "+fileSecret) || !strings.Contains(r.text(), envSecret) {
		t.Fatalf("the secrets did not reach the server: %d, ok %v", status, r.OK)
	}
	if _, r := s.call(t, "g_everything", "get-env", `{}`); !r.OK || strings.Contains(r.text(), fileSecret) || strings.Contains(r.text(), envSecret) || strings.Contains(r.text(), "SANDBOXD_") {
		t.Error("a server without the variables has them or others of ours")
	}
	places := map[string]string{"serve's stdout": s.stdout.String(), "serve's stderr": s.stderr.String(), "the engine's log": e.log.String()}
	for _, path := range []string{"/api/v1/automation/connectors", "/api/v1/automation/connectors/c_everything", "/api/v1/servers"} {
		_, places[path] = s.request(t, http.MethodGet, path, "")
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range lines {
		if b, err := os.ReadFile(path); err == nil { // it may have ended
			places[path] = string(b)
		}
	}
	for place, text := range places {
		if strings.Contains(text, fileSecret) || strings.Contains(text, envSecret) {
			t.Errorf("%s shows a secret", place)
		}
	}
	if found := filesWith(t, e.dir, fileSecret, envSecret); len(found) > 0 {
		t.Errorf("secrets are at rest in %v", found)
	}
}

// filesWith returns the regular files below dir, on its own file system, that
// hold one of the texts.
func filesWith(t *testing.T, dir string, texts ...string) []string {
	t.Helper()
	device := func(info os.FileInfo) uint64 {
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			return st.Dev
		}
		return 0
	}
	top, err := os.Lstat(dir)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return nil // gone meanwhile
		}
		info, err := d.Info()
		switch {
		case err != nil:
			return nil
		case d.IsDir() && (device(info) != device(top) || d.Name() == "blobs" || d.Name() == "snapshots"):
			return filepath.SkipDir // an image's own files
		case !d.Type().IsRegular():
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		for _, text := range texts {
			if bytes.Contains(b, []byte(text)) {
				found = append(found, path)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// testStop: TERM ends serve with status 0 within its bound, though clients
// hold their streams open, and every sandbox with it.
func (s *serving) testStop(t *testing.T, e *engine) {
	s.session(t, "/mcp")
	s.session(t, "/mcp/c_memory")
	workers := descendants(t, s.cmd.Process.Pid)
	if len(workers) == 0 || len(e.traces()) == 0 {
		t.Fatal("nothing of serve's runs: this test would prove nothing")
	}
	start := time.Now()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.done:
	case <-time.After(60 * time.Second):
		t.Fatalf("serve did not end on TERM:\n%s", tail(s.stderr.String()))
	}
	t.Logf("stopped in %s", time.Since(start).Round(10*time.Millisecond))
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("serve ended with %v", s.cmd.ProcessState)
	}
	until(t, "workers are gone", 20*time.Second, func() bool {
		for _, pid := range workers {
			if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
				return false
			}
		}
		return true
	})
	e.leavesNothing(t, "serve has ended")
}
