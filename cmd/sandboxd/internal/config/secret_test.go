//go:build unix

package config

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
)

func TestASecretIsShownNowhere(t *testing.T) {
	const value = "hunter2"
	server := Server{ID: "a", Env: []Var{{"TOKEN", NewSecret(value)}}}
	shown := map[string]string{"error": fmt.Errorf("failed: %v", server).Error()}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T%v"} {
		shown[verb] = fmt.Sprintf(verb, server) + fmt.Sprintf(verb, &server) + fmt.Sprintf(verb, server.Env[0].Value) + fmt.Sprintf(verb, &server.Env[0])
	}
	var text, js bytes.Buffer
	for _, h := range []slog.Handler{slog.NewTextHandler(&text, nil), slog.NewJSONHandler(&js, nil)} {
		slog.New(h).Info("start", "server", server, "env", server.Env, "value", server.Env[0].Value, "p", &server.Env[0].Value)
	}
	shown["slog text"], shown["slog json"] = text.String(), js.String()
	for name, marshal := range map[string]func(any) ([]byte, error){
		"json": json.Marshal, "yaml": yaml.Marshal, "toml": toml.Marshal, "xml": xml.Marshal,
	} {
		out, err := marshal(server.Env[0])
		if err != nil {
			t.Fatal(name, err)
		}
		if !bytes.Contains(out, []byte(redacted)) {
			t.Errorf("%s shows %s", name, out)
		}
		shown[name] = string(out)
	}
	for how, s := range shown {
		for _, form := range []string{value, "68756e74657232", "68756E74657232", "aHVudGVyMg"} {
			if strings.Contains(s, form) {
				t.Errorf("%s shows it: %s", how, s)
			}
		}
	}
	if server.Env[0].Value.Reveal() != value {
		t.Error("Reveal does not")
	}
}

func TestTemplates(t *testing.T) {
	x := secrets{env: env(map[string]string{
		"SANDBOXD_SECRET_A": "aaa", "SANDBOXD_SECRET_B_2": "{{secrets.a}}", "SANDBOXD_SECRET_EMPTY": "", "PATH": "/bin",
	}).LookupEnv}
	for _, tc := range []struct{ in, want, says string }{
		{"plain", "plain", ""},
		{"", "", ""},
		{"{{secrets.a}}", "aaa", ""},
		{"{{secrets.A}}", "aaa", ""},
		{"Bearer {{ secrets.a }}!{{secrets.a}}", "Bearer aaa!aaa", ""},
		{"{{secrets.b_2}}", "{{secrets.a}}", ""}, // a value is not read as a template
		{"{{name}} {x} {{ }}", "{{name}} {x} {{ }}", ""},
		{"{{secrets.missing}}", "", "set SANDBOXD_SECRET_MISSING"},
		{"{{secrets.missing}} {{secrets.other}}", "", "SANDBOXD_SECRET_OTHER"},
		{"{{secrets.empty}}", "", "is empty"},
		{"{{secrets.PATH}}", "", "set SANDBOXD_SECRET_PATH"}, // our own environment is not theirs
		{"{{secrets.a", "", "written {{secrets.NAME}}"},
		{"{{secret.a}}", "", "written {{secrets.NAME}}"},
		{"{{Secrets.a}}", "", "written {{secrets.NAME}}"},
		{"{secrets.a}", "", "written {{secrets.NAME}}"},
		{"{{secrets.}}", "", "no name for a secret"},
		{"{{secrets.../../etc/passwd}}", "", "no name for a secret"},
		{"{{secrets.a-b}}", "", "no name for a secret"},
	} {
		got, err := x.expand(tc.in)
		if tc.says == "" && (err != nil || got.Reveal() != tc.want) || tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)) {
			t.Errorf("%q: %q, %v", tc.in, got.Reveal(), err)
		}
		if err != nil && strings.Contains(err.Error(), "aaa") {
			t.Errorf("%q: the error shows a value: %v", tc.in, err)
		}
	}
}

func TestSecretFiles(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, dir, map[string]string{
		"good": "from-file\n", "both": "from-file", "open": "x", "big": strings.Repeat("x", maxSecret+1), "nul": "a\x00b", "lines": "a\nb\n",
	})
	for name, mode := range map[string]os.FileMode{"open": 0o640} {
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	x := secrets{dir: dir, env: env(map[string]string{"SANDBOXD_SECRET_BOTH": "from-env"}).LookupEnv}
	for name, want := range map[string]string{
		"good": "from-file", "both": "from-env", "lines": "a\nb",
		"open": "!chmod 600", "big": "!larger than 65536", "nul": "!NUL", "folder": "!not a regular", "fifo": "!not a regular",
		"gone": "!or write " + dir + "/gone",
	} {
		v, err := x.lookup(name)
		if says, bad := strings.CutPrefix(want, "!"); bad && (err == nil || !strings.Contains(err.Error(), says)) || !bad && (err != nil || v != want) {
			t.Errorf("%s: %q, %v", name, v, err)
		}
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(filepath.Join(dir, "good"), 65534, 65534); err != nil {
			t.Fatal(err)
		}
		if _, err := x.lookup("good"); err == nil || !strings.Contains(err.Error(), "belongs to user 65534") {
			t.Errorf("another user's file: %v", err)
		}
	}
}

func TestSecretsDir(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"s/token": "hunter2\n", "file": ""})
	doc := func(secretsDir string) string {
		return "secrets_dir: " + secretsDir + "\nmcp_servers:\n- {id: a, command: x, env: {T: '{{secrets.token}}'}}\n"
	}
	cfg, err := parse(dir, "c.yaml", doc("s"), env(nil))
	if err != nil || cfg.Servers[0].Env[0].Value.Reveal() != "hunter2" {
		t.Errorf("got %v, %v", cfg, err)
	}
	for name, says := range map[string]string{"gone": "no such file", "file": "not a folder"} {
		if _, err := parse(dir, "c.yaml", doc(name), env(nil)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "s"), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := parse(dir, "c.yaml", doc("s"), env(nil)); err == nil || !strings.Contains(err.Error(), "chmod 700") {
		t.Errorf("a folder that others may write: %v", err)
	}
}

// Whatever is wrong with a document, its faults never repeat a value that was
// written as a variable's, a header's or a url's.
func TestFaultsNeverShowAValue(t *testing.T) {
	for _, doc := range []string{
		"mcp_servers:\n- {id: a, command: x, env: {T: hunter2, T: hunter2}}\n",
		"mcp_servers:\n- {id: a, command: x, env: [hunter2]}\n",
		"mcp_servers:\n- {id: a, command: x, env: hunter2}\n",
		"mcp_servers:\n- {id: a, command: x, env: {T: [hunter2]}}\n",
		"mcp_servers:\n- {id: a, command: x, env: {T: {hunter2: 1}}}\n",
		"mcp_servers:\n- {id: a, command: x, env: {T: \"hunter2\\0\"}}\n",
		"mcp_servers:\n- {id: a, command: x, env: {T: 'hunter2 {{secrets.gone}}'}}\n",
		"mcp_servers:\n- {id: a, command: x, env: {T: !!binary hunter2}}\n",
		"mcp_servers:\n- {id: a, url: 'https://a.example.com', headers: {A: \"hunter2\\n\"}}\n",
		"mcp_servers:\n- {id: a, url: 'hunter2'}\n",
		"mcp_servers:\n- {id: a, url: 'https://a.example.com/%zzhunter2'}\n",
		"mcp_servers:\n- {id: a, url: ['hunter2']}\n",
		"mcp_servers:\n- {id: a, url: 'http://8.8.8.8/hunter2', allow_local_endpoint: true}\n",
		"mcp_servers:\n- {id: a, command: x, args: ['hunter2 {{secrets.a}}']}\n",
		"mcp_servers:\n- {id: a, command: x, env: {T: hunter2: x}}\n",
		"mcp_servers:\n- {id: a, command: x, env: {T: \"hunter2}}\n",
	} {
		_, err := parse("/", "c.yaml", doc, env(nil))
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", doc, err)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add("c.yaml", wholeYAML)
	f.Add("c.toml", wholeTOML)
	f.Add("c.toml", "[[a.b]]\n[a.b.c]\nd=[[],[{}]]\n[[a.b]]\n")
	f.Add("c.toml", "a.b.c={d.e=1}\n'' = 1\nservers=[]\n")
	f.Fuzz(func(t *testing.T, name, text string) {
		cfg, err := parse("/nowhere", name, text, env(map[string]string{"SANDBOXD_SECRET_A": "hunter2"}))
		if (cfg == nil) == (err == nil) {
			t.Fatalf("config %v with error %v", cfg, err)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") && !strings.Contains(text, "hunter2") {
			t.Fatal(err)
		}
		if cfg == nil {
			return
		}
		for _, s := range cfg.Servers {
			if (s.Transport == Stdio) != (s.Policy != nil) || (s.Transport == Stdio) != (s.Command != "") || (s.Transport == Stdio) != (s.URL == "") {
				t.Fatalf("server %+v", s)
			}
		}
	})
}
