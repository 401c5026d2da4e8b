package mcpbridge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/sandbox"
)

// need skips on a laptop and fails where CI is set.
func need(t testing.TB, err error, what string) {
	t.Helper()
	if err == nil {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("%s: %v", what, err)
	}
	t.Skipf("%s: %v", what, err)
}

// npmServer installs a package once into the user's cache, without scripts,
// and returns its entry point.
func npmServer(t testing.TB, pkg, version, entry string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	need(t, err, "a cache folder")
	dir := filepath.Join(cache, "sandboxd-test", strings.ReplaceAll(pkg, "/", "+")+"@"+version)
	file := filepath.Join(dir, "node_modules", pkg, entry)
	if _, err := os.Stat(file); err == nil {
		return file
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "npm", "install", "--prefix", dir, "--ignore-scripts", "--no-audit", "--no-fund", pkg+"@"+version).CombinedOutput()
	need(t, err, "npm install: "+string(out))
	return file
}

// process is a bare process without a network, as a sandbox.
type process struct {
	cmd   *exec.Cmd
	stdio sandbox.Stdio
	done  chan struct{}
	exit  sandbox.Exit
	once  sync.Once
}

// startProcess runs a command in an empty network namespace of its own.
func startProcess(args ...string) (*process, error) {
	// The process outlives whatever context started it, like any sandbox.
	cmd := exec.Command("unshare", append([]string{"--net", "--"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.TempDir()}
	p := &process{cmd: cmd, done: make(chan struct{})}
	var ends []*os.File
	pipe := func() (r, w *os.File, err error) {
		r, w, err = os.Pipe()
		ends = append(ends, r, w)
		return r, w, err
	}
	inR, inW, err1 := pipe()
	outR, outW, err2 := pipe()
	errR, errW, err3 := pipe()
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inR, outW, errW
	p.stdio = sandbox.Stdio{In: inW, Out: outR, Err: errR}
	if err := cmd.Start(); err != nil {
		for _, f := range ends {
			_ = f.Close()
		}
		return nil, err
	}
	_, _, _ = inR.Close(), outW.Close(), errW.Close()
	go func() {
		defer close(p.done)
		_ = cmd.Wait()
		ws, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if ws.Signaled() {
			p.exit = sandbox.Exit{Cause: sandbox.Killed, Signal: int(ws.Signal()), Code: 128 + int(ws.Signal())}
		} else {
			p.exit = sandbox.Exit{Cause: sandbox.Exited, Code: cmd.ProcessState.ExitCode()}
		}
	}()
	return p, nil
}

func (p *process) ID() string           { return "process" }
func (p *process) Stdio() sandbox.Stdio { return p.stdio }

func (p *process) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-p.done:
		return p.exit, nil
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

func (p *process) Close(ctx context.Context) error {
	_ = p.stdio.In.Close()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		select {
		case <-p.done:
		case <-ctx.Done():
		case <-time.After(2 * time.Second):
		}
		_ = syscall.Kill(-p.cmd.Process.Pid, sig)
	}
	_, err := p.Wait(ctx)
	return err
}

func node(t testing.TB, args ...string) func(context.Context) (sandbox.Sandbox, error) {
	t.Helper()
	_, err := exec.LookPath("node")
	need(t, err, "node")
	p, err := startProcess("true")
	need(t, err, "a network namespace")
	<-p.done
	if p.exit.Code != 0 {
		need(t, errors.New("unshare failed"), "a network namespace")
	}
	return func(context.Context) (sandbox.Sandbox, error) {
		return startProcess(append([]string{"node"}, args...)...)
	}
}

func TestRealNodeServers(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "hello.txt"), []byte("hello from a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	everything := node(t, npmServer(t, "@modelcontextprotocol/server-everything", "2026.8.31", "dist/index.js"))
	filesystem := node(t, npmServer(t, "@modelcontextprotocol/server-filesystem", "2026.8.31", "dist/index.js"), dir)
	memory := node(t, npmServer(t, "@modelcontextprotocol/server-memory", "2026.8.31", "dist/index.js"))
	gitlab := func() func(context.Context) (sandbox.Sandbox, error) {
		file := npmServer(t, "@modelcontextprotocol/server-gitlab", "2025.4.25", "dist/index.js")
		return func(context.Context) (sandbox.Sandbox, error) {
			return startProcess("env", "GITLAB_PERSONAL_ACCESS_TOKEN=dummy", "node", file)
		}
	}()
	r := newRegistry(t, Config{},
		Server{Name: "everything", Start: everything, Required: true}, Server{Name: "filesystem", Start: filesystem, Required: true},
		Server{Name: "memory", Start: memory, Required: true}, Server{Name: "gitlab", Start: gitlab, Required: true})
	tools := map[string]int{}
	for _, s := range r.Status() {
		tools[s.Name] = s.Tools
		if len(s.LeftOut) > 0 {
			t.Errorf("%s: left out %v", s.Name, s.LeftOut)
		}
	}
	// What these versions list when they run bare, for a client that can be asked everything.
	if diff := cmp.Diff(map[string]int{"everything": 17, "filesystem": 14, "memory": 9, "gitlab": 9}, tools); diff != "" {
		t.Errorf("tools differ from the bare run: %s", diff)
	}
	for _, tt := range []struct{ server, action, args, want string }{
		{"everything", "echo", `{"message":"hi there"}`, "hi there"},
		{"everything", "get-sum", `{"a":2,"b":40}`, "42"},
		{"filesystem", "read_text_file", `{"path":"` + dir + `/hello.txt"}`, "hello from a file"},
		{"memory", "create_entities", `{"entities":[]}`, "entities"},
	} {
		res, err := r.Call(t.Context(), tt.server, tt.action, json.RawMessage(tt.args))
		if err != nil || !res.OK || !strings.Contains(string(res.Content)+string(res.StructuredContent), tt.want) {
			t.Errorf("%s %s: %v %s %s", tt.server, tt.action, err, res.Content, res.StructuredContent)
		}
	}
	if res, err := r.Call(t.Context(), "filesystem", "read_text_file", json.RawMessage(`{"path":"/etc/passwd"}`)); err != nil || res.OK || res.Error == nil || res.Error.Code != CodeToolError {
		t.Errorf("a tool's own failure: %+v, %v", res, err)
	}
	url := serve(t, r).URL
	cs := connect(t, url+"/mcp", nil)
	list, err := cs.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := tools["everything"] + tools["filesystem"] + tools["memory"] + tools["gitlab"]; len(list.Tools) != want {
		t.Errorf("aggregated %d tools, want %d", len(list.Tools), want)
	}
	for _, endpoint := range []struct{ path, tool string }{{"/mcp", "mcp_everything_echo"}, {"/mcp/everything", "echo"}} {
		cs := connect(t, url+endpoint.path, nil)
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: endpoint.tool, Arguments: map[string]any{"message": "x y"}})
		if err != nil || !strings.Contains(res.Content[0].(*mcp.TextContent).Text, "x y") {
			t.Errorf("%s: %+v, %v", endpoint.path, res, err)
		}
	}
	raw := connect(t, url+"/mcp/everything", nil)
	if res, err := raw.ListResources(t.Context(), nil); err != nil || len(res.Resources) == 0 {
		t.Errorf("resources: %+v, %v", res, err)
	}
	if res, err := raw.ListPrompts(t.Context(), nil); err != nil || len(res.Prompts) == 0 {
		t.Errorf("prompts: %+v, %v", res, err)
	}
}

// What a real server writes is the same bytes, bare and through the relay.
func TestRealNodeServerBytes(t *testing.T) {
	start := node(t, npmServer(t, "@modelcontextprotocol/server-everything", "2026.8.31", "dist/index.js"))
	in := strings.Join([]string{
		initLine, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`,
		`{"jsonrpc":"2.0","id":"two","method":"tools/call","params":{"name":"echo","arguments":{"message":"é \u2028 x"}}}`,
		`{"jsonrpc":"2.0","id":3,"method":"prompts/list"}`, `{"jsonrpc":"2.0","id":4,"method":"nothing"}`, "",
	}, "\n")
	run := func(relayed bool) []string {
		sb, err := start(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if relayed {
			if _, err := relay.RelayStdio(t.Context(), strings.NewReader(in), &out, sb, relay.StdioOptions{}); err != nil {
				t.Fatal(err)
			}
		} else {
			go io.Copy(io.Discard, sb.Stdio().Err)
			if _, err := io.WriteString(sb.Stdio().In, in); err != nil {
				t.Fatal(err)
			}
			_ = sb.Stdio().In.Close()
			if _, err := io.Copy(&out, sb.Stdio().Out); err != nil {
				t.Fatal(err)
			}
			if err := sb.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		var answers []string // what the server says unasked depends on time
		for l := range strings.SplitAfterSeq(out.String(), "\n") {
			if m, err := relay.Peek([]byte(l)); err == nil && m.Kind == relay.Response {
				answers = append(answers, l)
			}
		}
		return answers
	}
	bare, relayed := run(false), run(true)
	if len(bare) != 5 {
		t.Errorf("bare gave %d answers: %q", len(bare), bare)
	}
	if diff := cmp.Diff(bare, relayed); diff != "" {
		t.Error(diff)
	}
}
