package integration

import (
	"context"
	"net/http"
	"os"
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

// shippedExample copies the example, byte for byte, to where the ordinary user
// can read it.
func shippedExample(t *testing.T, l *lab.Lab) string {
	t.Helper()
	dir := filepath.Join(l.Home, "example")
	if err := os.CopyFS(dir, os.DirFS("../../docs/example")); err != nil {
		t.Fatal(err)
	}
	err := filepath.Walk(dir, func(path string, _ os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		return os.Chown(path, lab.UserID, lab.UserID)
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestTheWorkedExample runs docs/example as its README says.
func TestTheWorkedExample(t *testing.T) {
	e := startEngine(t)
	buildImage(t, "--", "npx", "-y", "@modelcontextprotocol/server-filesystem", "/notes")
	l := lab.New(t)
	dir := shippedExample(t, l)
	records := filepath.Join(l.Home, "records.jsonl")
	s := startServe(t, l, e.env(), "--records", records, "--config", filepath.Join(dir, "config.yaml"))

	t.Run("flow", func(t *testing.T) {
		flow := func() (int, string, string) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			cmd := l.Command(ctx, filepath.Join(dir, "flow.sh"))
			cmd.Env = append(cmd.Env, "SANDBOXD="+program, "SANDBOXD_SERVER="+s.base)
			return finish(t, cmd)
		}
		status, stdout, stderr := flow()
		if want := "garden.md: 2 open\nhouse.md: 1 open\ntogether: 3 open\n"; status != 0 || stdout != want {
			t.Errorf("status %d\n%s%s", status, stdout, stderr)
		}
		readme, err := os.ReadFile(filepath.Join(dir, "README.md"))
		if err != nil || !strings.Contains(string(readme), "    "+strings.ReplaceAll(strings.TrimSpace(stdout), "\n", "\n    ")+"\n") {
			t.Errorf("the README shows something else than %q (%v)", stdout, err)
		}
		// A step that fails ends the flow.
		if err := os.Rename(filepath.Join(dir, "notes", "house.md"), filepath.Join(dir, "notes", "garden-and-house.md")); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, "notes", "garden-and-house.md"), 0); err != nil {
			t.Fatal(err)
		}
		if status, stdout, _ := flow(); status == 0 || strings.Contains(stdout, "together") {
			t.Errorf("a note that cannot be read: status %d\n%s", status, stdout)
		}
	})
	t.Run("connector", func(t *testing.T) {
		var keys []string
		for _, c := range s.connectors(t) {
			for _, a := range c.Actions {
				keys = append(keys, c.Name+" "+a.Key)
			}
		}
		slices.Sort(keys)
		if diff := cmp.Diff([]string{"notes list_directory", "notes read_text_file"}, keys); diff != "" {
			t.Error(diff)
		}
		if status, _ := s.call(t, "notes", "write_file", `{"path":"/notes/new.md","content":"x"}`); status != http.StatusNotFound {
			t.Errorf("write_file is called: %d", status)
		}
		if status, r := s.call(t, "notes", "read_text_file", `{"path":"/etc/passwd"}`); status != http.StatusOK || r.OK {
			t.Errorf("a file outside the notes: %d %+v", status, r)
		}
	})
	t.Run("tools", func(t *testing.T) { s.testExampleTools(t) })
	t.Run("policy", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for _, args := range [][]string{{"policy", "check", "--strict", filepath.Join(dir, "policy.yaml")}} {
			if status, stdout, stderr := finish(t, l.Command(ctx, program, args...)); status != 0 {
				t.Errorf("%v: %d\n%s%s", args, status, stdout, stderr)
			}
		}
		status, stdout, _ := finish(t, l.Command(ctx, program, "policy", "explain", "--policy", filepath.Join(dir, "policy.yaml"), "https://example.com/"))
		if status == 0 || !strings.Contains(stdout, "policy.none") {
			t.Errorf("explained: %d\n%s", status, stdout)
		}
	})
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	<-s.done
	if b, err := os.ReadFile(records); err == nil && strings.Contains(string(b), `"allow":true`) {
		t.Errorf("something was let out:\n%s", b)
	}
}

// testExampleTools: go-sdk's client sees the two tools, and calls one.
func (s *serving) testExampleTools(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	cs, err := client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: s.base + "/mcp", HTTPClient: s.client, MaxRetries: -1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cs.Close()
	list, err := cs.ListTools(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
	}
	slices.Sort(names)
	if diff := cmp.Diff([]string{"mcp_notes_list_directory", "mcp_notes_read_text_file"}, names); diff != "" {
		t.Error(diff)
	}
	res, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "mcp_notes_read_text_file", Arguments: map[string]any{"path": "/notes/garden.md"}})
	if err != nil || res.IsError || !strings.Contains(res.Content[0].(*mcp.TextContent).Text, "water the beans") {
		t.Errorf("%+v, %v", res, err)
	}
	if _, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "mcp_notes_write_file", Arguments: map[string]any{"path": "/notes/x", "content": "x"}}); err == nil {
		t.Error("mcp_notes_write_file is called")
	}
}
