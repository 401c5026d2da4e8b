package integration

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandboxd/sandboxd/test/integration/lab"
)

// realServer is a community server with one call that shows it works.
type realServer struct {
	pkg   string
	args  []string
	mount bool
	// policy is a preset; its networks all have to get into the gateway.
	policy string
	tool   string
	input  map[string]any
	want   string
}

var realServers = []realServer{
	{pkg: "@modelcontextprotocol/server-everything", tool: "echo", input: map[string]any{"message": "hello from the test"}, want: "hello from the test"},
	{pkg: "@modelcontextprotocol/server-filesystem", args: []string{"/data"}, mount: true, tool: "read_text_file", input: map[string]any{"path": "/data/note.txt"}, want: "a note of the host's"},
	{pkg: "@modelcontextprotocol/server-memory", policy: "public-web", tool: "read_graph", input: map[string]any{}, want: "entities"},
}

func (s realServer) command() []string {
	return append([]string{"npx", "-y", s.pkg}, s.args...)
}

var containerTiers = []string{"container", "gvisor"}

// TestServersThroughRun: real servers answer initialize, tools/list and a
// call through `sandboxd run`, started by an ordinary user, in both tiers.
func TestServersThroughRun(t *testing.T) {
	e := startEngine(t)
	for _, s := range realServers {
		buildImage(t, append([]string{"--"}, s.command()...)...)
		for _, tier := range containerTiers {
			t.Run(filepath.Base(s.pkg)+"/"+tier, func(t *testing.T) {
				home := lab.UserDir(t)
				args := []string{"run", "--isolation", tier}
				if s.mount {
					args = append(args, "--mount", noteFolder(t, home)+":/data")
				}
				if s.policy != "" {
					args = append(args, "--policy", s.policy)
				}
				args = append(append(args, "--"), s.command()...)
				ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
				defer cancel()
				cmd := lab.UserCommand(ctx, home, program, args...)
				cmd.Env = append(cmd.Env, e.env()...)
				stderr := &syncBuffer{}
				cmd.Stderr = stderr
				client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
				session, err := client.Connect(ctx, &mcp.CommandTransport{Command: cmd}, nil)
				if err != nil {
					t.Fatalf("initialize: %v\n%s\n%s", err, stderr, e.log)
				}
				defer session.Close()
				useServer(ctx, t, session, s, s.tool)
			})
		}
	}
}

// useServer lists the tools and makes the server's call under the given name.
func useServer(ctx context.Context, t *testing.T, session *mcp.ClientSession, s realServer, tool string) {
	t.Helper()
	list, err := session.ListTools(ctx, nil)
	if err != nil {
		t.Fatalf("tools/list: %v", err)
	}
	found := false
	for _, tl := range list.Tools {
		found = found || tl.Name == tool
	}
	if !found {
		t.Fatalf("no tool %q among %d", tool, len(list.Tools))
	}
	res, err := session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: s.input})
	if err != nil {
		t.Fatalf("tools/call: %v", err)
	}
	var text strings.Builder
	for _, c := range res.Content {
		if tc, ok := c.(*mcp.TextContent); ok {
			text.WriteString(tc.Text)
		}
	}
	if res.IsError || !strings.Contains(text.String(), s.want) {
		t.Fatalf("%s gave %q (error %v), want something with %q", tool, text.String(), res.IsError, s.want)
	}
}

// noteFolder is a folder of the user's with one file.
func noteFolder(t *testing.T, home string) string {
	t.Helper()
	dir := filepath.Join(home, "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	note := filepath.Join(dir, "note.txt")
	if err := os.WriteFile(note, []byte("a note of the host's\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{dir, note} {
		if err := os.Chown(p, lab.UserID, lab.UserID); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
