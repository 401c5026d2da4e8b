package clients

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tailscale/hujson"
)

func client(t testing.TB, name string) Client {
	t.Helper()
	c, err := Find(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var fetchTarget = Target{Name: "fetch", Command: "/usr/local/bin/sandboxd", Args: []string{"run", "--", "npx", "-y", "<p>"}}

func TestEditKeepsEverythingElse(t *testing.T) {
	const entry = `"fetch": {
      "command": "/usr/local/bin/sandboxd",
      "args": [
        "run",
        "--",
        "npx",
        "-y",
        "<p>"
      ]
    }`
	for name, c := range map[string]struct{ before, after string }{
		"nothing": {"", "{\n  \"mcpServers\": {\n    " + entry + "\n  }\n}\n"},
		"others, comments and order": {
			"// mine\n{\n  \"z\": 1, /* why */\n  \"mcpServers\": {\n    \"a\": {\"command\": \"x\"} // last\n  },\n  \"b\": [1,2]\n}\n",
			"// mine\n{\n  \"z\": 1, /* why */\n  \"mcpServers\": {\n    \"a\": {\"command\": \"x\"}, // last\n    " + entry + "\n  },\n  \"b\": [1,2]\n}\n",
		},
		"a comma at the end": {
			"{\n  \"mcpServers\": {\n    \"a\": {},\n  },\n}",
			"{\n  \"mcpServers\": {\n    \"a\": {},\n    " + entry + ",\n  },\n}",
		},
		"tabs and CRLF": {
			"\ufeff{\r\n\t\"mcpServers\": {\r\n\t}\r\n}\r\n",
			"\ufeff" + strings.ReplaceAll("{\r\n\t\"mcpServers\": {\r\n\t\t"+strings.ReplaceAll(entry, "\n", "\r\n"), "  ", "\t") + "\r\n\t}\r\n}\r\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c2 := client(t, "cursor")
			got, err := c2.Edit([]byte(c.before), []Target{fetchTarget}, nil, false)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.after, string(got)); diff != "" {
				t.Errorf("%s", diff)
			}
			again, err := c2.Edit(got, []Target{fetchTarget}, nil, false)
			if err != nil || string(again) != string(got) {
				t.Errorf("a second time changed it: %v\n%s", err, again)
			}
			back, err := c2.Edit(got, nil, []string{"fetch"}, false)
			if err != nil {
				t.Fatal(err)
			}
			if name != "nothing" && string(back) != c.before {
				t.Errorf("taken out again:\n%s", cmp.Diff(c.before, string(back)))
			}
		})
	}
}

func TestEditRefuses(t *testing.T) {
	c := client(t, "claude-code")
	for text, word := range map[string]string{
		`[]`: "no JSON object", `{`: "not valid JSON", `{"mcpServers": []}`: "no JSON object",
		`{"mcpServers": {}, "mcpServers": {}}`:                      "twice",
		`{"mcpServers": {"fetch": {}, "fetch": {}}}`:                "twice",
		`{"mcpServers": {"fetch": {"command": "npx"}}}`:             "--force",
		`{"mcpServers": {"fetch": {"url": "https://x.example/m"}}}`: "--force",
		strings.Repeat(`{"a":`, 50):                                 "nested",
	} {
		if _, err := c.Edit([]byte(text), []Target{fetchTarget}, nil, false); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v; want an error that says %q", text, err, word)
		}
	}
	foreign := []byte(`{"mcpServers": {"fetch": {"command": "npx"}}}`)
	if _, err := c.Edit(foreign, nil, []string{"fetch"}, false); !errors.Is(err, ErrOccupied) {
		t.Errorf("another's server was removed: %v", err)
	}
	if got, err := c.Edit(foreign, []Target{fetchTarget}, nil, true); err != nil || !strings.Contains(string(got), "sandboxd") {
		t.Errorf("force: %v\n%s", err, got)
	}
	ours := []byte(`{"mcpServers": {"fetch": {"command": "C:\\bin\\sandboxd.exe", "args": ["old"]}}}`)
	if got, err := c.Edit(ours, []Target{fetchTarget}, nil, false); err != nil || strings.Contains(string(got), "old") {
		t.Errorf("sandboxd's own was not replaced: %v\n%s", err, got)
	}
	if got, err := c.Edit([]byte("{ }"), nil, []string{"fetch"}, false); err != nil || string(got) != "{ }" {
		t.Errorf("removing what is not there: %v %s", err, got)
	}
}

func TestEveryClientsForm(t *testing.T) {
	url := Target{Name: "s", URL: "http://127.0.0.1:8787/mcp"}
	for name, want := range map[string][2]string{
		"claude-code":    {`{"type":"stdio","command":"sandboxd","args":[]}`, `{"type":"http","url":"http://127.0.0.1:8787/mcp"}`},
		"claude-desktop": {`{"command":"sandboxd","args":[]}`, ""},
		"cursor":         {`{"command":"sandboxd","args":[]}`, `{"url":"http://127.0.0.1:8787/mcp"}`},
		"vscode":         {`{"type":"stdio","command":"sandboxd","args":[]}`, `{"type":"http","url":"http://127.0.0.1:8787/mcp"}`},
		"windsurf":       {`{"command":"sandboxd","args":[]}`, `{"serverUrl":"http://127.0.0.1:8787/mcp"}`},
		"zed":            {`{"source":"custom","command":"sandboxd","args":[]}`, `{"source":"custom","url":"http://127.0.0.1:8787/mcp"}`},
	} {
		c := client(t, name)
		for i, target := range []Target{{Name: "s", Command: "sandboxd"}, url} {
			got, err := c.Edit(nil, []Target{target}, nil, false)
			if want[i] == "" {
				if err == nil {
					t.Errorf("%s took a url", name)
				}
				continue
			}
			var doc map[string]map[string]json.RawMessage
			if err != nil || json.Unmarshal(got, &doc) != nil {
				t.Fatalf("%s: %v\n%s", name, err, got)
			}
			v, err := hujson.Parse(doc[c.key]["s"])
			if err != nil {
				t.Fatal(err)
			}
			if v.Minimize(); v.String() != want[i] {
				t.Errorf("%s: %s, want %s", name, v, want[i])
			}
			if again, err := c.Edit(got, nil, []string{"s"}, false); err != nil || strings.Contains(string(again), `"s"`) {
				t.Errorf("%s: sandboxd's own entry was not taken out: %v\n%s", name, err, again)
			}
			// What install writes, import reads.
			if d, err := read("x.json", got); err != nil || len(d.entries) != 1 {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := c.File("linux", "/home/u", ""); err != nil {
			t.Error(err)
		}
	}
	if f, err := client(t, "claude-desktop").File("darwin", "/Users/u", ""); err != nil || f != "/Users/u/Library/Application Support/Claude/claude_desktop_config.json" {
		t.Error(f, err)
	}
	if f, err := client(t, "vscode").File("linux", "/h", "/p"); err != nil || f != "/p/.vscode/mcp.json" {
		t.Error(f, err)
	}
	if _, err := client(t, "windsurf").File("linux", "/h", "/p"); err == nil {
		t.Error("windsurf has no file of a project")
	}
}

func TestDiffHidesSecrets(t *testing.T) {
	old := []byte("{\n\"a\": 1,\n\"env\": {\"API_TOKEN\": \"" + marker + "\"},\n\"b\": \"ghp_" + marker + "\"\n}\n")
	now := []byte("{\n\"a\": 1,\n\"c\": 2\n}\n")
	got := Diff("f", old, now)
	if strings.Contains(got, marker) || !strings.Contains(got, "+\"c\": 2\n") || !strings.Contains(got, "API_TOKEN") || strings.Contains(got, "\"a\"") {
		t.Error(got)
	}
	if Diff("f", old, old) != "" {
		t.Error("a difference of nothing")
	}
}

func FuzzEdit(f *testing.F) {
	for _, s := range []string{"", "{}", "{\"mcpServers\":{\"a\":{},},}", "// c\n{\"x\":1 // y\n}", "{\"mcpServers\":{\"fetch\":{\"command\":\"sandboxd\"}}}", "{\"mcpServers\":{\"a\":1,/**/}}"} {
		f.Add(s)
	}
	c := client(f, "cursor")
	f.Fuzz(func(t *testing.T, s string) {
		before, err := read("x.json", []byte(s))
		if err != nil && s != "" {
			return
		}
		got, err := c.Edit([]byte(s), []Target{fetchTarget}, nil, true)
		if err != nil {
			return
		}
		after, err := read("x.json", got)
		if err != nil {
			t.Fatalf("%v\n%s", err, got)
		}
		if before != nil && len(after.entries) < len(before.entries) {
			t.Fatalf("servers were lost:\n%s", got)
		}
		if again, err := c.Edit(got, []Target{fetchTarget}, nil, false); err != nil || string(again) != string(got) {
			t.Fatalf("not idempotent: %v\n%s", err, again)
		}
		plain, err := hujson.Parse([]byte(s))
		if err == nil && plain.IsStandard() {
			if v, err := hujson.Parse(got); err != nil || !v.IsStandard() {
				t.Fatalf("plain JSON became more than that:\n%s", got)
			}
		}
	})
}
