package integration

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/test/integration/lab"
)

// TestServeRefuses: what cannot be served is said in one clear line that
// names the next step, with the status that its kind has.
func TestServeRefuses(t *testing.T) {
	l := lab.New(t)
	module := fetchModule(t)
	taken := l.Listen("127.0.0.1:0").Addr().String()
	l.WriteFile("broken.wasm", "#!/bin/sh\n")
	for _, tc := range []struct {
		name, file, text string
		args             []string
		status           int
		says             []string // each in the one line
		lines            int      // 0 means 1
	}{
		{"required server without a module", "a.yaml", "mcp_servers: [{id: a, command: ./gone.wasm, required: true}]\n", nil, 1, []string{`required server "a"`, "no such file", "give the path"}, 0},
		{"required server with a broken module", "b.yaml", "mcp_servers: [{id: b, command: ./broken.wasm, required: true}]\n", nil, 1, []string{`required server "b"`, "not a WebAssembly module", "GOOS=wasip1"}, 0},
		{"required server without an engine", "c.yaml", "mcp_servers: [{id: c, command: npx, args: [-y, x], required: true}]\n", nil, 1, []string{`required server "c"`, "none.sock", "sandboxd engine"}, 0},
		{"port in use", "d.yaml", "listen: " + taken + "\nmcp_servers: [{id: d, command: " + module + "}]\n", nil, 1, []string{taken, "in use", "--listen"}, 0},
		{"wrong key in YAML", "e.yaml", "tenant: t\nmcp_servers:\n  - id: e\n    comand: x\n", nil, 2, []string{"e.yaml:4:5: mcp_servers[0]: unknown key \"comand\"", "did you mean command?"}, 2},
		{"wrong key in TOML", "f.toml", "[[mcp_servers]]\nid = \"f\"\ncommand = \"x\"\ntool_allowlist = []\n", nil, 2, []string{"f.toml:4:1: mcp_servers[0]: unknown key \"tool_allowlist\"", "did you mean tools_allowlist?"}, 0},
		{"wrong key in a policy", "g.yaml", "mcp_servers:\n  - id: g\n    command: x\n    policy:\n      egress: {mode: allowlist, alow: []}\n", nil, 2, []string{"g.yaml:5:33: mcp_servers[0].policy.egress: unknown key \"alow\"", "did you mean allow?"}, 0},
		{"reference to nobody", "h.toml", "[[mcp_servers]]\nref = \"nobody\"\n", nil, 2, []string{"h.toml:2:7: mcp_servers[0].ref", "no server \"nobody\""}, 0},
		{"secret that is not set", "i.yaml", "mcp_servers:\n- id: i\n  command: x\n  env: {A: \"{{secrets.missing}}\"}\n", nil, 2, []string{"i.yaml:4:12: mcp_servers[0].env.A", "SANDBOXD_SECRET_MISSING"}, 0},
		{"secret in an argument", "j.yaml", "mcp_servers:\n- id: j\n  command: x\n  args: [\"{{secrets.missing}}\"]\n", nil, 2, []string{"j.yaml:4:10: mcp_servers[0].args[0]", "env"}, 0},
		{"beyond loopback without a token", "k.yaml", "mcp_servers: [{id: k, command: ./gone.wasm}]\n", []string{"--listen", "0.0.0.0:0"}, 2, []string{"--token-file"}, 0},
		{"wrong tier for the server", "l.yaml", "mcp_servers: [{id: l, command: npx, args: [-y, x], isolation: wasm, required: true}]\n", nil, 2, []string{"needs a container", "gvisor"}, 0},
		{"no such file", "", "", []string{"--config", "gone.yaml"}, 2, []string{"gone.yaml", "check the path"}, 0},
		{"no file", "", "", nil, 2, []string{"--config FILE"}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			args := []string{"serve"}
			if tc.file != "" {
				l.WriteFile(tc.file, tc.text)
				args = append(args, "--config", tc.file)
				if !strings.Contains(tc.text, "listen:") {
					args = append(args, "--listen", "127.0.0.1:0")
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := l.Command(ctx, program, append(args, tc.args...)...)
			cmd.Env = append(cmd.Env, "SANDBOXD_CACHE="+cache, "SANDBOXD_ENGINE="+filepath.Join(l.Home, "none.sock"))
			status, stdout, stderr := finish(t, cmd)
			if status != tc.status || stdout != "" {
				t.Errorf("status %d, want %d; stdout %q", status, tc.status, stdout)
			}
			for _, part := range tc.says {
				if !strings.Contains(stderr, part) {
					t.Errorf("no %q", part)
				}
			}
			if n := strings.Count(stderr, "\n"); n != max(tc.lines, 1) || !strings.HasPrefix(stderr, "sandboxd: ") {
				t.Errorf("want %d line(s) of sandboxd's", max(tc.lines, 1))
			}
			if t.Failed() {
				t.Logf("stderr:\n%s", stderr)
			}
		})
	}
}

// TestServeToken: with a token file serve listens for others, and nobody gets
// in without the token.
func TestServeToken(t *testing.T) {
	l := lab.New(t)
	token := l.WriteFile("token", "a-token-of-the-test\n")
	config := l.WriteFile("c.yaml", "mcp_servers: [{id: a, command: "+fetchModule(t)+", required: true}]\n")
	s := startServe(t, l, []string{"SANDBOXD_CACHE=" + cache}, "--config", config, "--token-file", token)
	for _, path := range []string{"/mcp", "/mcp/a", "/api/v1/automation/connectors", "/api/v1/servers"} {
		if status, body := s.request(t, http.MethodGet, path, ""); status != http.StatusUnauthorized || strings.Contains(body, "echo") {
			t.Errorf("%s without the token: %d %s", path, status, body)
		}
	}
	for _, tc := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"--token-file", token}, 0, `"ok":true`},
		{nil, 1, `"unauthorized"`},
	} {
		cmd := l.Command(t.Context(), program, append([]string{"call", "--server", s.base}, append(tc.args, "a", "echo", `{"text":"x"}`)...)...)
		if status, stdout, stderr := finish(t, cmd); status != tc.status || !strings.Contains(stdout, tc.want) {
			t.Errorf("call %v: %d %s%s", tc.args, status, stdout, stderr)
		}
	}
	// The hint that serve prints must work as it stands.
	until(t, "serve prints a call to try", time.Minute, func() bool { return strings.Contains(s.stderr.String(), "try:") })
	_, hint, _ := strings.Cut(s.stderr.String(), "sandboxd call ")
	hint, _, _ = strings.Cut(hint, "\n")
	m := regexp.MustCompile(`^(.*) '(.*)'$`).FindStringSubmatch(hint)
	if m == nil {
		t.Fatalf("the hint reads %q", hint)
	}
	args := append(append([]string{"call"}, strings.Fields(m[1])...), m[2])
	if status, stdout, stderr := finish(t, l.Command(t.Context(), program, args...)); status != 0 {
		t.Errorf("the hint %q gives status %d: %s%s", hint, status, stdout, stderr)
	}
	if strings.Contains(s.stderr.String(), "a-token-of-the-test") {
		t.Error("stderr shows the token")
	}
}

// descendants are the processes below one, at any depth.
func descendants(t *testing.T, root int) []int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	parents := map[int]int{}
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // ended
		}
		_, rest, _ := strings.Cut(string(b[strings.LastIndexByte(string(b), ')'):]), " ")
		f := strings.Fields(rest)
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil || len(f) < 2 {
			continue
		}
		if parents[pid], err = strconv.Atoi(f[1]); err != nil {
			t.Fatal(err)
		}
	}
	var out []int
	for pid := range parents {
		for p := pid; p > 1; p = parents[p] {
			if parents[p] == root {
				out = append(out, pid)
				break
			}
		}
	}
	return out
}
