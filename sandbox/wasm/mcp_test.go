//go:build linux

package wasm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandboxd/sandboxd/sandbox"
)

func fetchSpec(t testing.TB, tier sandbox.Isolation) sandbox.Spec {
	t.Helper()
	s := spec(t, tier)
	s.Name, s.Image, s.Args, s.Env = "fetch", image(t, "fetch"), []string{"fetch"}, []string{"SECRET=value", "A=1"}
	return s
}

// connect opens an MCP session with a sandboxed server.
func connect(t testing.TB, sb sandbox.Sandbox) *mcp.ClientSession {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	session, err := client.Connect(ctx, &mcp.IOTransport{Reader: sb.Stdio().Out, Writer: sb.Stdio().In}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return session
}

func call(t testing.TB, s *mcp.ClientSession, tool string, args any) *mcp.CallToolResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	res, err := s.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func textOf(t testing.TB, res *mcp.CallToolResult) string {
	t.Helper()
	if len(res.Content) != 1 {
		t.Fatalf("%d contents", len(res.Content))
	}
	return res.Content[0].(*mcp.TextContent).Text
}

func TestExampleServer(t *testing.T) {
	forTiers(t, func(t *testing.T, tier sandbox.Isolation) {
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Test", "yes")
			fmt.Fprint(w, strings.Repeat("0123456789", 100))
		}))
		defer web.Close()
		e := newEgress(map[string]string{"allowed.test:80": hostPort(web.URL)})
		sb := start(t, newRuntime(t), fetchSpec(t, tier), e)
		session := connect(t, sb)
		list, err := session.ListTools(context.Background(), nil)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, tool := range list.Tools {
			names = append(names, tool.Name)
		}
		if got := strings.Join(names, " "); got != "echo env_keys fetch time" {
			t.Errorf("tools: %s", got)
		}
		if got := textOf(t, call(t, session, "echo", map[string]any{"text": "hällo"})); got != "hällo" {
			t.Errorf("echo: %q", got)
		}
		if got := textOf(t, call(t, session, "env_keys", nil)); got != "A\nHOME\nSECRET" {
			t.Errorf("env_keys: %q", got)
		}
		var out struct {
			Status    int
			Headers   map[string]string
			Text      string
			Truncated bool
		}
		res := call(t, session, "fetch", map[string]any{"url": "http://allowed.test/x", "max_bytes": 15})
		if err := json.Unmarshal([]byte(textOf(t, res)), &out); err != nil {
			t.Fatal(err)
		}
		if out.Status != 200 || out.Text != "012345678901234" || !out.Truncated || out.Headers["X-Test"] != "yes" {
			t.Errorf("fetch: %+v", out)
		}
		for _, url := range []string{"http://other.test/", "http://169.254.169.254/latest/meta-data/", "https://10.0.0.1/"} {
			res := call(t, session, "fetch", map[string]any{"url": url})
			if !res.IsError || !strings.Contains(textOf(t, res), "refused") {
				t.Errorf("%s: %+v", url, res)
			}
		}
		_ = session.Close()
		if exit := sb.wait(); exit.Cause != sandbox.Exited || exit.Code != 0 {
			t.Errorf("exit %+v", exit)
		}
	})
}
