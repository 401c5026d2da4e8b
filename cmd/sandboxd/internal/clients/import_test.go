package clients

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/config"
)

// marker is in each value that is a secret in these tests.
const marker = "5ecr3tMarker9Qabcd"

func options(name string) Options {
	return Options{
		Name: name, SecretsDir: "secrets", Home: "/home/u",
		LookupEnv: func(n string) (string, bool) {
			v, ok := map[string]string{"PLAIN": "yes", "MY_TOKEN": marker}[n]
			return v, ok
		},
		ReadFile: func(string) ([]byte, error) { return []byte("A=1\nexport B_TOKEN=\"" + marker + "\"\n# c\n"), nil },
		Exists: func(p string) bool {
			return strings.HasPrefix(p, "/home/u/notes") || p == "/" || p == "/home/u/.ssh" || p == "/w"
		},
	}
}

var clientFiles = map[string]string{
	"claude_desktop_config.json": `{"mcpServers": {
		"github": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-github"], "env": {"GITHUB_PERSONAL_ACCESS_TOKEN": "ghp_` + marker + `"}},
		"files": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem@1.0.0", "/home/u/notes", "~/notes/b", "/", "/home/u/.ssh"]}
	}, "globalShortcut": "x"}`,
	".vscode/mcp.json": `// VS Code
	{"inputs": [{"id": "tok", "type": "promptString", "password": true}, {"id": "region", "default": "eu"}],
	 "servers": {
		/* one that asks */
		"asks": {"type": "stdio", "command": "npx", "args": ["p"], "env": {"T": "${input:tok}", "R": "${input:region}", "W": "${workspaceFolder}/x"}, "envFile": "${workspaceFolder}/.env"},
		"net": {"type": "http", "url": "https://mcp.example.com/mcp", "headers": {"Authorization": "Bearer ${input:tok}", "Accept": "x", "X-Key": "` + marker + `"}},
	 },}`,
	".mcp.json": `{"mcpServers": {
		"a.b c/d": {"command": "cmd", "args": ["/c", "npx", "-y", "p"], "env": {"X": "${PLAIN}", "Y": "${MISSING:-dflt}", "Z": "${MISSING}", "T": "${MY_TOKEN}"}},
		"A-b_c-d": {"command": "env", "args": ["API=` + marker + `x1", "MODE=dev", "npx", "p"]},
		"d": {"command": "docker", "args": ["run", "-i", "-e", "API_TOKEN=` + marker + `", "--env=MODE=x", "-eK=v", "img/x", "-e", "N=1"]}
	}}`,
	"mcp_config.json": `{"mcpServers": {
		"r": {"serverUrl": "https://r.example.com/mcp"},
		"proxy": {"command": "npx", "args": ["-y", "mcp-remote@latest", "https://p.example.com/sse", "9000", "--header", "Authorization:${AUTH}", "--transport", "sse-only"], "env": {"AUTH": "Bearer ` + marker + `"}},
		"local": {"url": "http://localhost:7000/mcp", "disabled": true},
		"left1": {"url": "http://plain.example.com/mcp"},
		"left2": {"url": "https://x.example.com/mcp?api_key=` + marker + `"},
		"left3": {"command": "npx", "args": ["p", "--api-key", "` + marker + `"]},
		"left4": {"command": "npx", "args": ["p", "postgres://u:` + marker + `@db/x"]},
		"left5": {"command": "npx", "args": ["p", "${MY_TOKEN}"]},
		"left6": {"command": "npx", "args": ["p", "--header", "Authorization: Bearer ` + marker + `"]},
		"left7": {"command": "npx", "url": "https://x.example.com"},
		"left8": {},
		"odd": {"command": "/opt/x", "args": [1, true], "autoApprove": ["a"], "weird": {"k": "` + marker + `"}}
	}}`,
	"settings.json": `{"theme": "x", "context_servers": {
		"old": {"command": {"path": "npx", "args": ["-y", "p"], "env": {"A": "b"}}, "settings": {}},
		"new": {"source": "custom", "command": "npx", "args": ["q"], "enabled": false}
	}}`,
	"continue.yaml": "name: c\nmcpServers:\n  - name: x\n    command: uvx\n    args: [mcp-server-time]\n  - {name: y, type: streamable-http, url: 'https://y.example.com'}\n",
	"engine.yaml":   "mcp_servers:\n  - id: gh\n    transport: stdio\n    command: npx\n    args: [p]\n    env: {T: '{{secrets.gh}}', U: " + marker + "}\n    tools_allowlist: [a]\n    autostart: true\n",
	"engine.toml":   "[[mcp_servers]]\nid = \"gh\"\ntransport = \"http\"\nurl = \"https://gh.example.com\"\nheaders = {Authorization = \"Bearer " + marker + "\"}\n\n[mcp_servers_x]\n",
	"codex.toml":    "[mcp_servers.docs]\ncommand = \"npx\"\nargs = [\"p\"]\nenv = {A_TOKEN = \"" + marker + "\"}\n",
	"server.json": `{"name": "io.example/weather", "version": "1.0.0", "packages": [
		{"registryType": "mcpb", "identifier": "https://x"}, {"registryType": "npm", "identifier": "@e/weather", "version": "1.0.0", "transport": {"type": "stdio"},
		 "packageArguments": [{"type": "named", "name": "--unit", "value": "c"}, {"type": "positional", "valueHint": "city", "isRequired": true}],
		 "environmentVariables": [{"name": "W_KEY", "isSecret": true, "isRequired": true}, {"name": "OPT"}, {"name": "LANGUAGE", "default": "en"}]}]}`,
}

// TestEveryClientsFileLoads: what import writes is what serve reads, no secret
// is in it or in the report, and each is in a file of its own.
func TestEveryClientsFileLoads(t *testing.T) {
	for name, text := range clientFiles {
		t.Run(name, func(t *testing.T) {
			im, err := Import([]byte(text), options(filepath.Join("/w", name)))
			if err != nil {
				t.Fatal(err)
			}
			report, err := json.Marshal(im.Report)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(im.Document), marker) || strings.Contains(string(report), marker) {
				t.Errorf("a secret is shown:\n%s\n%s", im.Document, report)
			}
			moved := 0
			for n, v := range im.Secrets {
				if strings.Contains(v, marker) {
					moved++
				}
				if !strings.Contains(string(im.Document), "{{secrets."+n+"}}") {
					t.Errorf("nothing uses the secret %s", n)
				}
			}
			if moved == 0 && strings.Contains(text, marker) {
				t.Errorf("no secret was moved out:\n%s", im.Document)
			}
			if _, err := load(t, im); err != nil {
				t.Errorf("%v\n%s", err, im.Document)
			}
		})
	}
}

// load reads the document as serve does; secrets that are missing are given.
func load(t testing.TB, im *Imported) (*config.Config, error) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "secrets"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, s := range im.Report.Secrets {
		if err := os.WriteFile(filepath.Join(dir, "secrets", s.Name), []byte(or(im.Secrets[s.Name], "given")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "sandboxd.yaml")
	text := string(im.Document)
	for _, p := range []string{"/home/u/notes/b", "/home/u/notes", "/w"} { // mounts have to be there
		text = strings.ReplaceAll(text, "- "+p+":", "- "+dir+":")
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return config.Load(config.Options{}, path)
}

// server is what a test wants of one.
type server struct {
	State, Command string
	Env            map[string]string
	Mounts         int
}

func TestImport(t *testing.T) {
	for name, want := range map[string]map[string]server{
		"claude_desktop_config.json": {
			"github": {StateImported, "npx -y @modelcontextprotocol/server-github", map[string]string{"GITHUB_PERSONAL_ACCESS_TOKEN": "ghp_" + marker}, 0},
			"files":  {StateImported, "npx -y @modelcontextprotocol/server-filesystem@1.0.0 /home/u/notes /home/u/notes/b / /home/u/.ssh", map[string]string{}, 2},
		},
		".vscode/mcp.json": {
			"asks": {StateImported, "npx p", map[string]string{"T": "given", "R": "eu", "W": "/w/x", "A": "1", "B_TOKEN": marker}, 0},
			"net":  {StateImported, "https://mcp.example.com/mcp", map[string]string{"Authorization": "Bearer given", "X-Key": marker}, 0},
		},
		".mcp.json": {
			"a.b-c-d":   {StateImported, "cmd /c npx -y p", map[string]string{"X": "yes", "Y": "dflt", "Z": "given", "T": marker}, 0},
			"A-b_c-d-2": {StateImported, "npx p", map[string]string{"API": marker + "x1", "MODE": "dev"}, 0},
		},
		"mcp_config.json": {
			"r":     {StateImported, "https://r.example.com/mcp", map[string]string{}, 0},
			"proxy": {StateImported, "https://p.example.com/sse", map[string]string{"Authorization": "Bearer " + marker}, 0},
			"local": {State: StateHeld}, "odd": {State: StateHeld},
			"left1": {State: StateLeft}, "left2": {State: StateLeft}, "left3": {State: StateLeft}, "left4": {State: StateLeft},
			"left5": {State: StateLeft}, "left6": {State: StateLeft}, "left7": {State: StateLeft}, "left8": {State: StateLeft},
		},
		"engine.yaml": {"gh": {StateImported, "npx p", map[string]string{"T": "given", "U": marker}, 0}},
		"server.json": {"weather": {StateImported, "npx -y @e/weather@1.0.0 --unit c", map[string]string{"W_KEY": "given", "LANGUAGE": "en"}, 0}},
		"settings.json": {
			"old": {StateImported, "npx -y p", map[string]string{"A": "b"}, 0}, "new": {State: StateHeld},
		},
	} {
		t.Run(name, func(t *testing.T) {
			im, err := Import([]byte(clientFiles[name]), options(filepath.Join("/w", name)))
			if err != nil {
				t.Fatal(err)
			}
			cfg, err := load(t, im)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]server{}
			for _, r := range im.Report.Servers {
				s := server{State: r.State}
				if i := slices.IndexFunc(cfg.Servers, func(c config.Server) bool { return c.ID == r.ID }); i >= 0 {
					c := cfg.Servers[i]
					s.Command = strings.TrimSpace(strings.Join(append([]string{c.Command}, c.Args...), " ") + c.URL)
					s.Mounts, s.Env = len(c.Mounts), map[string]string{}
					for _, v := range append(c.Env, c.Headers...) {
						s.Env[v.Name] = v.Value.Reveal()
					}
				} else if s.State == StateImported {
					t.Errorf("%s is said to be imported and is not served", r.ID)
				}
				if len(r.Remarks) == 0 && s.State != StateImported {
					t.Errorf("%s was not imported, for no reason", r.ID)
				}
				if r.ID != "d" {
					got[r.ID] = s
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s\n%s", diff, im.Document)
			}
		})
	}
}

func TestContainerVariablesMoveOut(t *testing.T) {
	im, err := Import([]byte(clientFiles[".mcp.json"]), options("/w/.mcp.json"))
	if err != nil {
		t.Fatal(err)
	}
	doc := string(im.Document)
	for _, want := range []string{"- API_TOKEN\n", "- --env=MODE\n", "- -eK\n", `API_TOKEN: "{{secrets.api_token}}"`, "- N=1\n"} {
		if !strings.Contains(doc, want) {
			t.Errorf("no %q in\n%s", want, doc)
		}
	}
}

func TestUnreadableClientFiles(t *testing.T) {
	for text, word := range map[string]string{
		"":                                   "not valid",
		"{":                                  "not valid",
		`{"mcpServers": {"a": "` + marker:    "not valid",
		`[]`:                                 "want a mapping",
		`{}`:                                 "no servers",
		`{"mcpServers": 1}`:                  "want servers",
		`{"mcpServers": {"a": 1}}`:           "want a server",
		`{"mcpServers": {"a": {"args": 1}}}`: "want a list",
		`{"mcpServers": {"a": {"env": {"A": [1]}}}}`: "want a string",
		`{"mcpServers": {"a": {}, "a": {}}}`:         "given before",
		strings.Repeat("[", 1<<19):                   "nested",
		`{"a":` + strings.Repeat(`{"a":`, 100):       "nested",
		"{\"a\": \"\xff\"}":                          "UTF-8",
		strings.Repeat(" ", 2<<20):                   "more than",
	} {
		_, err := Import([]byte(text), options("/w/x.json"))
		if err == nil || !strings.Contains(err.Error(), word) || strings.Contains(err.Error(), marker) {
			t.Errorf("%.60q: %v; want an error that says %q", text, err, word)
		}
	}
}

func TestSecretsAreTold(t *testing.T) {
	for _, c := range []struct {
		name, value string
		want        bool
	}{
		{"GITHUB_TOKEN", "x", true},
		{"API_KEY", "abc", true},
		{"DB_PASS", "x", true},
		{"X", "sk-abcdefghijklmnop1234", true},
		{"URL", "https://u:p@x.example.com", true},
		{"URL", "https://x.example.com/?token=1", true},
		{"ID", "a8f5f167f44f4964e6c998dee827110c", true},
		{"X", "eyJhbGciOiJIUzI1NiJ9.e30", true},
		{"DATABASE_DSN", "x y", true},
		{"MODE", "production", false},
		{"PORT", "8080", false},
		{"URL", "https://api.example.com/v1", false},
		{"TOKEN_FILE", "/home/u/token", false},
		{"DEBUG", "true", false},
		{"TZ", "Europe/Berlin", false},
		{"LANG", "en_US", false},
		{"API_TOKEN", "", false},
		{"PATH", "/usr/local/bin:/usr/bin", false},
	} {
		if got := maySecret(c.name, c.value); got != c.want {
			t.Errorf("%s=%s: %v", c.name, c.value, got)
		}
	}
	for _, c := range []struct {
		args string
		want int
	}{
		{"npx -y @modelcontextprotocol/server-filesystem@2026.8.31 /home/u/notes", -1},
		{"npx p --token abc", 3},
		{"npx p --api-key=abc", 2},
		{"npx p --port=80", -1},
		{"oci:img@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", -1},
		{"npx p --figma-api-key=figd_x", 2},
		{"docker run -i -e TOKEN ghcr.example.com/github/github-mcp-server:v1.0.0", -1},
		{"npx -y mcp-server-kubernetes-with-a-very-long-name2", -1},
	} {
		if got := secretArgument(strings.Fields(c.args)); got != c.want {
			t.Errorf("%s: %d, want %d", c.args, got, c.want)
		}
	}
}

func FuzzImport(f *testing.F) {
	for name, text := range clientFiles {
		f.Add(strings.TrimPrefix(filepath.Ext(name), "."), text)
	}
	f.Fuzz(func(t *testing.T, ext, text string) {
		o := options("/w/x." + ext)
		if !slices.Contains([]string{"json", "yaml", "toml"}, ext) {
			o.Name = "/w/x"
		}
		o.Exists = func(string) bool { return false }
		im, err := Import([]byte(text), o)
		if err != nil {
			return
		}
		if _, err := load(t, im); err != nil {
			t.Fatalf("%v\n%s", err, im.Document)
		}
	})
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "a"), filepath.Join(dir, "l")
	if err := WriteFile(path, []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("a", link); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(link, []byte("2"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, _ := os.ReadFile(path)
	info, err := os.Lstat(link)
	if err != nil || string(got) != "2" || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("%q, %v, %v", got, info.Mode(), err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("the mode became %v, %v", info.Mode(), err)
	}
	if err := os.Symlink("gone", filepath.Join(dir, "dangling")); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{filepath.Join(dir, "dangling"), dir, filepath.Join(dir, "no", "x")} {
		if err := WriteFile(bad, nil, 0o600); err == nil {
			t.Errorf("%s was written", bad)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".sandboxd-*")); err != nil || len(left) > 0 {
		t.Error(left, errors.Join(err))
	}
}
