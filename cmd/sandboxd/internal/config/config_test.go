package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandboxd/sandboxd/netguard"
	"github.com/sandboxd/sandboxd/policies"
	"github.com/sandboxd/sandboxd/policies/strict"
	"github.com/sandboxd/sandboxd/sandbox"
)

// env stands for the process's environment.
func env(kv map[string]string) Options {
	return Options{LookupEnv: func(name string) (string, bool) { v, ok := kv[name]; return v, ok }}
}

// write puts files into a folder and returns their paths.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// parse reads one document as if it lay in dir.
func parse(dir, name, text string, opts Options) (*Config, error) {
	return read(opts, []document{{name: name, dir: dir, data: []byte(text)}})
}

var reveal = cmp.Transformer("reveal", func(s Secret) string { return s.Reveal() })

const wholeYAML = `
listen: 127.0.0.1:9000
tenant: acme
servers:
  files:
    label: Files
    command: npx
    args: [-y, "@modelcontextprotocol/server-filesystem@2026.1.14", /data]
    mounts:
      - notes:/data
      - {source: notes, target: /out, rw: true}
    policy: none
    isolation: gvisor
    tools_allowlist: [read_file, list_directory]
  spare:
    command: wasm:spare.wasm
mcp_servers:
  - id: github
    transport: stdio
    command: npx
    args: ["-y", "@modelcontextprotocol/server-github"]
    env:
      GITHUB_TOKEN: "{{secrets.github_token}}"
      MODE: plain
    policy:
      egress:
        mode: allowlist
        allow: [{host: api.github.com}]
    include: [search_repositories]
    required: true
    autostart: true
  - id: remote
    transport: http
    url: https://mcp.example.com/mcp
    headers: {Authorization: "Bearer {{ secrets.remote }}"}
  - id: local
    transport: websocket
    url: ws://127.0.0.1:7000/mcp
    allow_local_endpoint: true
  - ref: files
    tools_allowlist: [read_file]
`

const wholeTOML = `
listen = "127.0.0.1:9000"
tenant = "acme"

[servers.files]
label = "Files"
command = "npx"
args = ["-y", "@modelcontextprotocol/server-filesystem@2026.1.14", "/data"]
mounts = ["notes:/data", {source = "notes", target = "/out", rw = true}]
policy = "none"
isolation = "gvisor"
tools_allowlist = [
  "read_file", # the one that is used
  "list_directory",
]

[servers.spare]
command = "wasm:spare.wasm"

[[mcp_servers]]
id = "github"
transport = "stdio"
command = "npx"
args = ["-y", "@modelcontextprotocol/server-github"]
include = ["search_repositories"]
required = true
autostart = true
[mcp_servers.env]
GITHUB_TOKEN = "{{secrets.github_token}}"
MODE = 'plain'
[mcp_servers.policy]
egress.mode = "allowlist"
[[mcp_servers.policy.egress.allow]]
host = "api.github.com"

[[mcp_servers]]
id = "remote"
transport = "http"
url = "https://mcp.example.com/mcp"
headers = {Authorization = "Bearer {{ secrets.remote }}"}

[[mcp_servers]]
id = "local"
transport = "websocket"
url = "ws://127.0.0.1:7000/mcp"
allow_local_endpoint = true

[[mcp_servers]]
ref = "files"
tools_allowlist = ["read_file"]
`

func TestBothFormsSayTheSame(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"notes/a": ""})
	none, err := policies.Loader{}.Preset("none")
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		Listen: "127.0.0.1:9000", Tenant: "acme", Secrets: []Secret{NewSecret("ghp_1"), NewSecret("r2")},
		Servers: []Server{
			{
				ID: "files", Label: "Files", Transport: Stdio, Command: "npx", Dir: dir,
				Args:      []string{"-y", "@modelcontextprotocol/server-filesystem@2026.1.14", "/data"},
				Policy:    none,
				Isolation: sandbox.GVisor,
				Mounts: []Mount{
					{Source: dir + "/notes", Target: "/data"}, {Source: dir + "/notes", Target: "/out", ReadWrite: true},
				},
				ToolsAllowlist: []string{"read_file"},
			},
			{
				ID: "github", Label: "github", Transport: Stdio, Command: "npx", Dir: dir,
				Args: []string{"-y", "@modelcontextprotocol/server-github"},
				Env:  []Var{{"GITHUB_TOKEN", NewSecret("ghp_1")}, {"MODE", NewSecret("plain")}},
				Policy: &policies.Policy{Name: "of server github", Egress: &netguard.Config{
					Mode: netguard.ModeAllowlist, Allow: []netguard.Rule{{Host: "api.github.com"}},
				}},
				Include: []string{"search_repositories"}, Required: true, Autostart: true,
			},
			{
				ID: "remote", Label: "remote", Transport: HTTP, URL: "https://mcp.example.com/mcp", Dir: dir,
				Headers: []Var{{"Authorization", NewSecret("Bearer r2")}},
			},
			{
				ID: "local", Label: "local", Transport: WebSocket, URL: "ws://127.0.0.1:7000/mcp", Dir: dir,
				AllowLocalEndpoint: true,
			},
		},
	}
	opts := env(map[string]string{"SANDBOXD_SECRET_GITHUB_TOKEN": "ghp_1", "SANDBOXD_SECRET_REMOTE": "r2"})
	for name, text := range map[string]string{"c.yaml": wholeYAML, "c.toml": wholeTOML} {
		got, err := parse(dir, name, text, opts)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got, reveal, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
		if ep := got.Servers[3].LocalEndpoint(); ep != "127.0.0.1:7000" {
			t.Errorf("the local endpoint is %q", ep)
		}
	}
}

// stripped drops the places of faults, which differ between the forms.
func stripped(t *testing.T, err error) []string {
	t.Helper()
	var faults strict.Faults
	if !errors.As(err, &faults) {
		t.Fatalf("error of type %T: %v", err, err)
	}
	var out []string
	for _, f := range faults {
		out = append(out, f.Path+": "+f.Msg)
	}
	return out
}

func TestFaultsAreTheSameInBothForms(t *testing.T) {
	dir := t.TempDir()
	for _, tc := range []struct {
		name, yaml, toml string
		want             []string
	}{
		{
			"stdio fields on a network transport",
			"mcp_servers:\n- {id: a, transport: http, url: 'https://a.example.com', command: x, args: [], env: {}, policy: none, isolation: gvisor, mounts: []}\n",
			"[[mcp_servers]]\nid='a'\ntransport='http'\nurl='https://a.example.com'\ncommand='x'\nargs=[]\nenv={}\npolicy='none'\nisolation='gvisor'\nmounts=[]\n",
			[]string{
				"mcp_servers[0].command: is for stdio servers; this one has transport http",
				"mcp_servers[0].args: is for stdio servers; this one has transport http",
				"mcp_servers[0].env: is for stdio servers; this one has transport http",
				"mcp_servers[0].policy: is for stdio servers; this one has transport http",
				"mcp_servers[0].isolation: is for stdio servers; this one has transport http",
				"mcp_servers[0].mounts: is for stdio servers; this one has transport http",
			},
		},
		{
			"network fields on stdio",
			"mcp_servers:\n- {id: a, transport: stdio, command: x, url: 'https://a.example.com', headers: {}, allow_local_endpoint: true}\n",
			"[[mcp_servers]]\nid='a'\ntransport='stdio'\ncommand='x'\nurl='https://a.example.com'\nheaders={}\nallow_local_endpoint=true\n",
			[]string{
				"mcp_servers[0].url: is for network servers; this one has transport stdio",
				"mcp_servers[0].headers: is for network servers; this one has transport stdio",
				"mcp_servers[0].allow_local_endpoint: is for network servers; this one has transport stdio",
			},
		},
		{
			"a ref with other fields",
			"servers: {a: {command: x}}\nmcp_servers:\n- {ref: a, command: y, tools_allowlist: [t], label: b}\n",
			"[servers.a]\ncommand='x'\n[[mcp_servers]]\nref='a'\ncommand='y'\ntools_allowlist=['t']\nlabel='b'\n",
			[]string{
				"mcp_servers[0]: command cannot stand beside ref: a reference takes tools_allowlist alone",
				"mcp_servers[0]: label cannot stand beside ref: a reference takes tools_allowlist alone",
			},
		},
		{
			"unknown keys everywhere",
			"lisen: a\nservers: {a: {command: x, comand: y}}\nmcp_servers:\n- {id: b, command: x, mounts: [{src: a}]}\n- {id: c, command: x, policy: {egres: {}}}\n",
			"lisen='a'\n[servers.a]\ncommand='x'\ncomand='y'\n[[mcp_servers]]\nid='b'\ncommand='x'\nmounts=[{src='a'}]\n[[mcp_servers]]\nid='c'\ncommand='x'\npolicy.egres={}\n",
			[]string{
				`: unknown key "lisen": did you mean listen?`,
				`servers.a: unknown key "comand": did you mean command?`,
				`mcp_servers[0].mounts[0]: unknown key "src": the keys here are source, target, rw`,
				`mcp_servers[1].policy: unknown key "egres": did you mean egress?`,
			},
		},
		{
			"what is missing",
			"mcp_servers:\n- {transport: stdio}\n- {id: b, transport: http}\n- {id: c}\n- {id: d, command: x, url: y}\n- {ref: }\n- {id: e, command: ''}\n",
			"[[mcp_servers]]\ntransport='stdio'\n[[mcp_servers]]\nid='b'\ntransport='http'\n[[mcp_servers]]\nid='c'\n[[mcp_servers]]\nid='d'\ncommand='x'\nurl='y'\n[[mcp_servers]]\nref=''\n[[mcp_servers]]\nid='e'\ncommand=''\n",
			[]string{
				"mcp_servers[0].id: is missing: a server needs an id, or a ref to one that has it",
				"mcp_servers[0].command: is missing: a stdio server needs one",
				"mcp_servers[1].url: is missing: a http server needs one",
				"mcp_servers[2].transport: is missing: want stdio with a command, or http or websocket with a url",
				"mcp_servers[3].transport: is missing: want stdio with a command, or http or websocket with a url",
				"mcp_servers[4].ref: names no server",
				"mcp_servers[5].command: is missing: a stdio server needs one",
			},
		},
		{
			"names that clash",
			"servers: {a: {command: x}}\nmcp_servers:\n- {id: a, command: x}\n- {id: my-b, command: x}\n- {id: my_b, command: x}\n- {ref: a}\n- {ref: a}\n- {ref: bb}\n- {ref: my-c}\n- {id: 'no good', command: x}\n",
			"[servers.a]\ncommand='x'\n[[mcp_servers]]\nid='a'\ncommand='x'\n[[mcp_servers]]\nid='my-b'\ncommand='x'\n[[mcp_servers]]\nid='my_b'\ncommand='x'\n[[mcp_servers]]\nref='a'\n[[mcp_servers]]\nref='a'\n[[mcp_servers]]\nref='bb'\n[[mcp_servers]]\nref='my-c'\n[[mcp_servers]]\nid='no good'\ncommand='x'\n",
			[]string{
				"mcp_servers[0]: server a is registered twice: give one of them another name",
				"mcp_servers[2]: server my_b differs from my-b in case or punctuation alone, which names of tools do not keep: rename one",
				"mcp_servers[4].ref: server a is referred to twice: name its tools in one place",
				`mcp_servers[5].ref: no server "bb" is registered: write it under servers, or as an entry with an id`,
				`mcp_servers[6].ref: no server "my-c" is registered: did you mean my-b?`,
				"mcp_servers[7].id: want letters, digits and ._- in a name, 64 at most, a letter or a digit first",
			},
		},
		{
			"kinds of values",
			"listen: 8787\ntenant: A B\nmcp_servers:\n- {id: a, command: x, args: [1], env: {A: 1, 'B-C': x}, required: 'yes', isolation: vm}\n- 7\n",
			"listen=8787\ntenant='A B'\nmcp_servers=[{id='a',command='x',args=[1],env={A=1,'B-C'='x'},required='yes',isolation='vm'},7]\n",
			[]string{
				"listen: want a string, got a whole number: put it in quotes",
				"tenant: want lower-case letters, digits and dashes, 63 at most",
				"mcp_servers[0].args[0]: want a string, got a whole number: put it in quotes",
				"mcp_servers[0].env.A: want a string, got a whole number: put it in quotes",
				"mcp_servers[0].env.B-C: is not a variable's name",
				"mcp_servers[0].required: want true or false, got a string",
				`mcp_servers[0].isolation: unknown isolation "vm": use wasm-inprocess, wasm, container, gvisor or kata`,
				"mcp_servers[1]: want a mapping, got a whole number",
			},
		},
		{
			"mounts",
			"mcp_servers:\n- {id: a, command: x, mounts: [a, 'a:b', 'a:/b:rx', '/:/', '/gone:/b', {target: /b}, '/:/c', '/:/c:rw']}\n",
			"[[mcp_servers]]\nid='a'\ncommand='x'\nmounts=['a','a:b','a:/b:rx','/:/','/gone:/b',{target='/b'},'/:/c','/:/c:rw']\n",
			[]string{
				"mcp_servers[0].mounts[0]: want SRC:DST, SRC:DST:rw or a mapping of source, target and rw",
				"mcp_servers[0].mounts[1]: the target must be an absolute, clean path below /",
				"mcp_servers[0].mounts[2]: want SRC:DST, SRC:DST:rw or a mapping of source, target and rw",
				"mcp_servers[0].mounts[3]: the target must be an absolute, clean path below /",
				"mcp_servers[0].mounts[4]: source /gone: no such file or directory",
				"mcp_servers[0].mounts[5]: has no source",
				"mcp_servers[0].mounts[7]: another mount has the same target",
			},
		},
		{
			"policies",
			"mcp_servers:\n- {id: a, command: x, policy: nope}\n- {id: b, command: x, policy: gone.yaml}\n- {id: c, command: x, isolation: wasm, policy: {isolation: container}}\n- {id: d, command: x, env: {A: b}, policy: {env: []}}\n- {id: e, command: x, policy: {egress: {mode: publik}}}\n",
			"[[mcp_servers]]\nid='a'\ncommand='x'\npolicy='nope'\n[[mcp_servers]]\nid='b'\ncommand='x'\npolicy='gone.yaml'\n[[mcp_servers]]\nid='c'\ncommand='x'\nisolation='wasm'\npolicy={isolation='container'}\n[[mcp_servers]]\nid='d'\ncommand='x'\nenv={A='b'}\npolicy={env=[]}\n[[mcp_servers]]\nid='e'\ncommand='x'\npolicy={egress={mode='publik'}}\n",
			[]string{
				`mcp_servers[0].policy: no such preset: "nope": did you mean none? the presets are none, public-web, registries; a file is given with its path`,
				"mcp_servers[1].policy: policy: " + dir + "/gone.yaml does not exist: check the path",
				"mcp_servers[2].isolation: wasm is less than the minimum of the policy, container",
				"mcp_servers[3].env.A: the policy does not let the server have it: add it to env there",
				`mcp_servers[4].policy.egress.mode: "publik" is neither allowlist nor public`,
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for name, text := range map[string]string{"c.yaml": tc.yaml, "c.toml": tc.toml} {
				_, err := parse(dir, name, text, env(nil))
				if d := cmp.Diff(tc.want, stripped(t, err), cmpopts.SortSlices(func(a, b string) bool { return a < b })); d != "" {
					t.Errorf("%s (-want +got):\n%s", name, d)
				}
			}
		})
	}
}

func TestPlacesOfFaults(t *testing.T) {
	yaml := "mcp_servers:\n  - id: a\n    transport: http\n    url: https://a.example.com\n    command: x\n    headers:\n      Host: b\n"
	toml := "[[mcp_servers]]\nid = \"a\"\ntransport = \"http\"\nurl = \"https://a.example.com\"\ncommand = \"x\"\n[mcp_servers.headers]\nß = 1\nHost = \"b\"\n"
	for _, tc := range []struct {
		name, text string
		want       []string
	}{
		{"c.yaml", yaml, []string{"c.yaml:5:5", "c.yaml:7:13"}},
		{"c.toml", toml, []string{"c.toml:5:1", "c.toml:7:1", "c.toml:8:8"}},
		{"c.toml", "a = 1\n[x\n", []string{"c.toml:2:3"}},
		{"c.toml", "servers.a.command = 'x'\nservers.a.command = 'y'\n", []string{"c.toml:2:1"}},
		{"c.toml", "listen = 2026-01-01\n", []string{"c.toml:1:10"}},
		{"c.toml", "listen = [ [\n", []string{"c.toml:1:13"}},
		{"c.toml", "listen = " + strings.Repeat("[", 100) + strings.Repeat("]", 100), []string{"c.toml:1:1"}},
		{"c.ini", "", []string{"c.ini:1:1"}},
	} {
		_, err := parse("/", tc.name, strings.ReplaceAll(tc.text, "ß", "'ß'"), env(nil))
		var faults strict.Faults
		if !errors.As(err, &faults) {
			t.Fatalf("%q: %v", tc.text, err)
		}
		var got []string
		for _, f := range faults {
			got = append(got, strings.SplitN(f.String(), ": ", 2)[0])
		}
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%.80q (-want +got):\n%s%v", tc.text, d, err)
		}
	}
}

func TestOAuth(t *testing.T) {
	for _, tc := range []struct{ oauth, more, says string }{
		{`{issuers: ["https://as.example.com/t"], hosts: [a.example.com, "b.example.com:8443"], client_id: me, client_secret: "{{secrets.x}}", scopes: [read], redirect_port: 8085}`, "", ""},
		{`{issuers: ["http://127.0.0.1:9"]}`, "allow_local_endpoint: true", ""},
		{`{}`, "", "issuers: is missing"},
		{`{issuer: "https://as.example.com"}`, "", "did you mean issuers"},
		{`{issuers: []}`, "", "issuers"},
		{`{issuers: ["http://as.example.com"]}`, "", "want https://"},
		{`{issuers: ["http://10.0.0.1"]}`, "allow_local_endpoint: true", "want https://"},
		{`{issuers: ["https://127.0.0.1"]}`, "", "only with allow_local_endpoint: true"},
		{`{issuers: ["https://169.254.169.254"]}`, "allow_local_endpoint: true", "no local endpoint"},
		{`{issuers: ["https://u:hunter2@as.example.com"]}`, "", "want https://HOST"},
		{`{issuers: ["https://as.example.com/{{secrets.x}}"]}`, "", "env and headers only"},
		{`{issuers: ["https://as.example.com"], hosts: ["https://a.example.com"]}`, "", "want HOST or HOST:PORT"},
		{`{issuers: ["https://as.example.com"], hosts: ["*.example.com"]}`, "", "want HOST or HOST:PORT"},
		{`{issuers: ["https://as.example.com"], hosts: [localhost]}`, "", "only with allow_local_endpoint: true"},
		{`{issuers: ["https://as.example.com"], client_secret: hunter2}`, "", "belongs to a client_id"},
		{`{issuers: ["https://as.example.com"], client_metadata_url: "https://a.example.com"}`, "", "client id metadata document"},
		{`{issuers: ["https://as.example.com"], scopes: ["a b"]}`, "", "is not a scope"},
		{`{issuers: ["https://as.example.com"]}`, "headers: {authorization: hunter2}", "cannot stand beside oauth"},
	} {
		doc := "mcp_servers:\n- id: a\n  url: https://mcp.example.com/mcp\n  oauth: " + tc.oauth + "\n"
		if tc.more != "" {
			doc += "  " + tc.more + "\n"
		}
		if strings.HasPrefix(tc.more, "allow") {
			doc = strings.Replace(doc, "https://mcp.example.com", "https://127.0.0.1:9", 1)
		}
		cfg, err := parse("/", "c.yaml", doc, env(map[string]string{"SANDBOXD_SECRET_X": "hunter2"}))
		switch {
		case tc.says == "" && err != nil, tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)):
			t.Errorf("%s: got %v, want %q", tc.oauth, err, tc.says)
		case err != nil && strings.Contains(err.Error(), "hunter2"):
			t.Errorf("%s: %v", tc.oauth, err)
		case err == nil && strings.Contains(fmt.Sprintf("%+v", cfg.Servers[0].OAuth), "hunter2"):
			t.Errorf("%+v", cfg.Servers[0].OAuth)
		}
	}
	_, err := parse("/", "c.yaml", "mcp_servers:\n- {id: a, command: x, oauth: {issuers: [\"https://as.example.com\"]}}\n", env(nil))
	if err == nil || !strings.Contains(err.Error(), "is for network servers") {
		t.Errorf("oauth for a stdio server: %v", err)
	}
}

func TestURLs(t *testing.T) {
	for _, tc := range []struct{ transport, url, local, says string }{
		{"http", "https://mcp.example.com", "", ""},
		{"sse", "https://mcp.example.com:8443/sse", "", ""},
		{"websocket", "wss://mcp.example.com/mcp", "", ""},
		{"http", "http://localhost:3000/mcp", "true", ""},
		{"http", "https://10.0.0.5/mcp", "true", ""},
		{"http", "http://mcp.example.com", "", "plaintext"},
		{"websocket", "ws://mcp.example.com", "", "plaintext"},
		{"http", "wss://mcp.example.com", "", "begins with https://"},
		{"websocket", "https://mcp.example.com", "", "begins with wss://"},
		{"http", "file:///etc/passwd", "", "want https://HOST/PATH"},
		{"http", "https://", "", "want https://HOST/PATH"},
		{"http", "https:opaque", "", "want https://HOST/PATH"},
		{"http", "https://user:hunter2@mcp.example.com", "", "credentials"},
		{"http", "https://mcp.example.com/#hunter2", "", "fragment"},
		{"http", "https://mcp.example.com/{{secrets.hunter2}}", "", "env and headers only"},
		{"http", "https://127.0.0.1/mcp", "", "allow_local_endpoint: true"},
		{"http", "https://[::1]/mcp", "", "allow_local_endpoint: true"},
		{"http", "https://LOCALHOST./mcp", "", "allow_local_endpoint: true"},
		{"http", "https://192.168.0.9/mcp", "", "allow_local_endpoint: true"},
		{"http", "http://169.254.169.254/latest", "true", "no local endpoint"},
		{"http", "http://8.8.8.8/mcp", "true", "no local endpoint"},
	} {
		doc := "mcp_servers:\n- {id: a, transport: " + tc.transport + ", url: '" + tc.url + "'"
		if tc.local != "" {
			doc += ", allow_local_endpoint: " + tc.local
		}
		_, err := parse("/", "c.yaml", doc+"}\n", env(nil))
		switch {
		case tc.says == "" && err != nil, tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)):
			t.Errorf("%s: got %v, want %q", tc.url, err, tc.says)
		case err != nil && strings.Contains(err.Error(), "hunter2"):
			t.Errorf("%s: the message repeats a secret: %v", tc.url, err)
		}
	}
}

func TestHeaders(t *testing.T) {
	for header, says := range map[string]string{
		"X-Api-Key: k": "", "authorization: Basic Zm9v": "",
		"host: a": "set by the connection", "Mcp-Session-Id: a": "set by the connection", "sec-websocket-key: a": "set by the connection",
		`"a b": c`: "is not a header's name", `X-A: "a\r\nX-B: b"`: "control byte", `"": a`: "is not a header's name",
		"X-A: a, x-a: b": "in another spelling",
	} {
		_, err := parse("/", "c.yaml", "mcp_servers:\n- {id: a, url: 'https://a.example.com', headers: {"+header+"}}\n", env(nil))
		if (says == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", header, err)
		}
	}
}

func TestListen(t *testing.T) {
	for listen, want := range map[string]string{
		"127.0.0.1:1": "", "[::1]:8787": "", "localhost:0": "",
		"0.0.0.0:8787": "whoever reaches it", ":8787": "whoever reaches it", "192.168.1.1:80": "whoever reaches it",
		"8787": "want HOST:PORT", "127.0.0.1:http": "want HOST:PORT", "127.0.0.1:65536": "want HOST:PORT",
		"127.0.0.1:0080": "want HOST:PORT", "example.com:80": "must be an address", "/run/x.sock": "want HOST:PORT",
	} {
		cfg, err := parse("/", "c.yaml", "listen: '"+listen+"'\n", env(nil))
		got := ""
		switch {
		case err != nil:
			got = err.Error()
		case len(cfg.Warnings) > 0:
			got = cfg.Warnings[0].String()
		}
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("listen %s: %q, want %q", listen, got, want)
		}
	}
}

func TestLaterFilesTakePrecedence(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"global.toml":          "tenant='global'\n[[mcp_servers]]\nid='a'\ncommand='old'\ntools_allowlist=['x','y']\n[servers.b]\ncommand='bee'\ntools_allowlist=['x','y']\n[servers.unused]\ncommand='z'\n",
		"project/project.yaml": "listen: 127.0.0.1:1\nservers: {a: {command: new, policy: own.yaml}}\nmcp_servers: [{ref: b, tools_allowlist: [y, z]}]\n",
		"project/own.yaml":     "isolation: gvisor\n",
	})
	cfg, err := Load(env(nil), filepath.Join(dir, "global.toml"), filepath.Join(dir, "project/project.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Tenant != "global" || cfg.Listen != "127.0.0.1:1" || len(cfg.Servers) != 2 {
		t.Fatalf("got %+v", cfg)
	}
	b, a := cfg.Servers[0], cfg.Servers[1]
	if a.Command != "new" || a.Dir != filepath.Join(dir, "project") || a.Policy.Isolation != sandbox.GVisor {
		t.Errorf("a is %+v", a)
	}
	if d := cmp.Diff([]string{"y"}, b.ToolsAllowlist); b.Command != "bee" || d != "" {
		t.Errorf("b is %+v", b)
	}
	if len(cfg.Warnings) != 2 {
		t.Errorf("warnings are %v", cfg.Warnings)
	}
}

func TestFaultsOfPolicyFilesCarryTheirOwnName(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"c.yaml": "mcp_servers:\n- {id: a, command: x, policy: ./p.yaml}\n- {id: b, command: x, policy: p.yaml}\n",
		"p.yaml": "egress:\n  mode: allowlist\n  alow: []\n",
	})
	_, err := Load(env(nil), filepath.Join(dir, "c.yaml"))
	if err == nil || strings.Count(err.Error(), "p.yaml:3:3: egress: unknown key") != 1 || strings.Count(err.Error(), "faults of its own") != 2 {
		t.Errorf("got %v", err)
	}
	if _, err := Load(env(nil), dir+"/gone.yaml"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	if _, err := Load(env(nil)); err == nil {
		t.Error("no file is a config")
	}
}
