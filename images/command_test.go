package images

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// line splits a command line at blanks; a value with blanks is written 'so'.
func line(s string) (out []string) {
	for i, part := range strings.Split(s, "'") {
		if i%2 == 1 {
			out = append(out, part)
		} else {
			out = append(out, strings.Fields(part)...)
		}
	}
	return out
}

func TestCommandLines(t *testing.T) {
	set := func(k, v string) CommandVar { return CommandVar{Name: k, Value: v} }
	pass := func(k string) CommandVar { return CommandVar{Name: k, Pass: true} }
	for s, want := range map[string]parsed{
		// Python, as servers' own documents have it.
		"uvx mcp-server-fetch":                                             {ref: "pypi:mcp-server-fetch"},
		"uvx mcp-server-git --repository /r":                               {ref: "pypi:mcp-server-git", Command: Command{Args: line("--repository /r")}},
		"/root/.local/bin/uvx --refresh -q awslabs.core-mcp-server@latest": {ref: "pypi:awslabs.core-mcp-server@latest"},
		"uvx --from mcp-server-x==1.2.3 x --flag":                          {ref: "pypi:mcp-server-x@1.2.3#x", Command: Command{Args: line("--flag")}},
		"uvx --from=fastmcp[cli] fastmcp run":                              {ref: "pypi:fastmcp[cli]#fastmcp", Command: Command{Args: line("run")}},
		"uv tool run mcp-server-time --local-timezone=UTC":                 {ref: "pypi:mcp-server-time", Command: Command{Args: line("--local-timezone=UTC")}},
		"uv --directory /srv/weather run weather.py":                       {ref: "dir:/srv/weather#weather.py"},
		"uv run --project /srv/weather --frozen weather -v":                {ref: "dir:/srv/weather#weather", Command: Command{Args: line("-v")}},
		"pipx run --spec pkg==1 cmd -a":                                    {ref: "pypi:pkg@1#cmd", Command: Command{Args: line("-a")}},
		"pipx run pkg":                                                     {ref: "pypi:pkg"},
		"python -m mcp_server_fetch --ignore-robots-txt":                   {ref: "pypi:mcp-server-fetch", Command: Command{Args: line("--ignore-robots-txt")}},
		"python3.12 -u -m server":                                          {ref: "pypi:server"},
		// Go.
		"go run github.com/a/b/cmd/c@v1.2.3 stdio": {ref: "go:github.com/a/b/cmd/c@v1.2.3", Command: Command{Args: line("stdio")}},
		// Container images, as servers' own documents have them.
		"docker run -i --rm -e GITHUB_PERSONAL_ACCESS_TOKEN ghcr.example.com/github/github-mcp-server": {
			ref: "oci:ghcr.example.com/github/github-mcp-server", Command: Command{Env: []CommandVar{pass("GITHUB_PERSONAL_ACCESS_TOKEN")}},
		},
		"docker run -i --rm --mount type=bind,src=/Users/me/Desktop,dst=/projects/Desktop --mount type=bind,src=/other,dst=/projects/other,ro mcp/filesystem /projects": {
			ref: "oci:mcp/filesystem", Command: Command{Args: line("/projects"), Mounts: []CommandMount{
				{Source: "/Users/me/Desktop", Target: "/projects/Desktop", ReadWrite: true}, {Source: "/other", Target: "/projects/other"},
			}},
		},
		"podman run -it --init --pull=always --name x --network=none -v ./notes:/notes:ro,z -w /notes -u 1000:1000 img:1.0@sha256:ab -x": {
			ref: "oci:img:1.0@sha256:ab", Command: Command{
				Args: line("-x"), NoNetwork: true, Dir: "/notes", Mounts: []CommandMount{{Source: "./notes", Target: "/notes"}},
			},
		},
		"docker run -ie A=b -eC --env=D=x=y --env-file /e --entrypoint node img dist/index.js": {
			ref: "oci:img", Command: Command{
				Args: line("dist/index.js"), EnvFiles: line("/e"), Entrypoint: line("node"), Env: []CommandVar{set("A", "b"), pass("C"), set("D", "x=y")},
			},
		},
		"docker container run --rm=true --interactive --cap-drop ALL --security-opt no-new-privileges --read-only --tmpfs /tmp:size=64m --net bridge -- img": {ref: "oci:img"},
		// What stands in front.
		"env A=b C= npx -y p x":             {ref: "npm:p", Command: Command{Args: line("x"), Env: []CommandVar{set("A", "b"), set("C", "")}}},
		"cmd /c npx -y @s/p@1.0.0":          {ref: "npm:@s/p@1.0.0"},
		`C:\nodejs\npx.cmd -y p`:            {ref: "npm:p"},
		"cmd.exe /C env A=b docker run img": {ref: "oci:img", Command: Command{Env: []CommandVar{set("A", "b")}}},
		// References.
		"oci:x/y:1 -a": {ref: "oci:x/y:1", Command: Command{Args: line("-a")}},
		"pypi:p@1#c a": {ref: "pypi:p@1#c", Command: Command{Args: line("a")}},
		"go:m/c@v1":    {ref: "go:m/c@v1"},
	} {
		got, err := parseCommand(line(s), 0)
		if len(got.Args) == 0 {
			got.Args = nil
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(parsed{})); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", s, err, diff)
		}
	}
}

func TestRefusedCommandLines(t *testing.T) {
	for s, word := range map[string]string{
		"docker run --privileged img":                                 "gives the host away",
		"docker run --network host img":                               "host's own network",
		"docker run --net=container:db img":                           "others' network",
		"docker run --network mynet img":                              "others' network",
		"docker run -v /:/host img":                                   "whole host",
		"docker run -v /../:/host img":                                "whole host",
		"docker run -v //etc/:/etc img":                               "whole host",
		"docker run -v /var/run/docker.sock:/var/run/docker.sock img": "socket",
		"docker run -v /run/user/1000/podman/podman.sock:/s:ro img":   "socket",
		"docker run --mount type=bind,source=/run,target=/r img":      "host's own state",
		"docker run -v /proc:/p img":                                  "host's own state",
		"docker run -v /a/../proc/1/root:/p img":                      "host's own state",
		"docker run -v cache:/cache img":                              "named volume",
		"docker run -v /cache img":                                    "names no folder",
		"docker run --mount type=volume,src=c,dst=/c img":             "type \"volume\"",
		"docker run -v ~/x:/x img":                                    "begins with ~",
		"docker run -v ${HOME}/x:/x img":                              "holds a variable",
		"docker run -v /a:b img":                                      "absolute path",
		"docker run -v /a:/ img":                                      "absolute path",
		"docker run -v /a:/b:shared img":                              "\"shared\"",
		"docker run --mount type=bind,src=/a,dst=/b,volume-opt=x img": "volume-opt",
		"docker run -d img":                                           "background",
		"docker run -id img":                                          "background",
		"docker run -p 8080:8080 img":                                 "not published",
		"docker run -P img":                                           "not published",
		"docker run --cap-add SYS_ADMIN img":                          "open the sandbox",
		"docker run --device=/dev/kvm img":                            "open the sandbox",
		"docker run --pid host img":                                   "name spaces",
		"docker run --security-opt seccomp=unconfined img":            "loosen",
		"docker run --memory 1g img":                                  "policy",
		"docker run --platform linux/s390x img":                       "does not run here",
		"docker run -e 'A B=c' img":                                   "variable's name",
		"docker run -e":                                               "needs a value",
		"docker run -i":                                               "no image",
		"docker run":                                                  "no image",
		"docker exec -i c cmd":                                        "docker run IMAGE",
		"docker compose run x":                                        "docker run IMAGE",
		"docker mcp gateway run":                                      "docker run IMAGE",
		"docker run https://x/y":                                      "no image",
		"docker run --rm=maybe img":                                   "takes no value",
		"docker run --tmpfs /data img":                                "/tmp",
		"docker run -w work img":                                      "not absolute",
		"docker run --entrypoint= img":                                "empty --entrypoint",
		"uvx git+https://example.com/a/b":                             "no package of an index",
		"uvx --from git+https://example.com/a/b b":                    "no package of an index",
		"uvx --from ./here x":                                         "no package of an index",
		"uvx pkg>=1":                                                  "no package of an index",
		"uvx --with other pkg":                                        "one package",
		"uvx --index-url https://example.com/simple pkg":              "own configuration",
		"uvx --python 3.9 pkg":                                        "brings its own Python",
		"uvx --from a ../b":                                           "command's name",
		"uvx":                                                         "no command",
		"uv run server.py":                                            "no file",
		"uv run mcp":                                                  "--directory",
		"uv run --with mcp[cli] mcp run s.py":                         "one package",
		"uv pip install x":                                            "uv tool run",
		"uv --directory /a#b run x":                                   "cannot be named",
		"pipx install x":                                              "pipx run",
		"python -c 'import os'":                                       "\"-c\"",
		"python -m a.b":                                               "which package",
		"python":                                                      "no module",
		"python /nonexistent/x.py":                                    "no file",
		"go run .":                                                    "folder of this host",
		"go run ./cmd/x":                                              "folder of this host",
		"go run main.go":                                              "folder of this host",
		"go run github.com/a/b":                                       "no version",
		"go run github.com/a/b@":                                      "no version",
		"go run -mod=mod a@v1":                                        "-m",
		"go build x":                                                  "go run",
		"node -e x":                                                   "line of code",
		"node --require ./x y.js":                                     "further code",
		"node --inspect x.js":                                         "opens a port",
		"node":                                                        "no file",
		"node /nonexistent/x.js":                                      "no file",
		"deno run x":                                                  "script of this host",
		"sh -c 'npx x'":                                               "server's own command",
		"sandboxd run -- npx x":                                       "sandboxed already",
		"cmd npx x":                                                   "/c",
		"env -i npx x":                                                "\"-i\"",
		"env A-B=c npx x":                                             "variable's name",
		"env env env env env env npx x":                               "too many",
		"env A=b":                                                     "no command",
	} {
		got, err := parseCommand(line(s), 0)
		if !errors.Is(err, ErrReference) || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %+v, %v; want a refusal that says %q", s, got, err, word)
		}
	}
}

// TestScriptsBelongToAPackage: node FILE seals the folder of its package.
func TestScriptsBelongToAPackage(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"p/package.json": "{}", "p/build/index.js": "", "alone/x.js": "", "py/pyproject.toml": "", "py/src/s.py": ""} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ argv, ref string }{
		{"node " + dir + "/p/build/index.js a", "dir:" + dir + "/p#build/index.js"},
		{"node --no-warnings --max-old-space-size=512 " + dir + "/p/build/index.js a", "dir:" + dir + "/p#build/index.js"},
		{"node " + dir + "/p a", "dir:" + dir + "/p"},
		{"python3 " + dir + "/py/src/s.py a", "dir:" + dir + "/py#src/s.py"},
		{"uv run " + dir + "/py/src/s.py a", "dir:" + dir + "/py#src/s.py"},
	} {
		got, err := parseCommand(line(c.argv), 0)
		if err != nil || got.ref != c.ref || len(got.Args) != 1 {
			t.Errorf("%s: %+v, %v", c.argv, got, err)
		}
		if strings.Contains(c.argv, "--max") && (len(got.Env) != 1 || got.Env[0].Value != "--no-warnings --max-old-space-size=512") {
			t.Errorf("%s: %+v", c.argv, got.Env)
		}
	}
	if got, err := parseCommand([]string{"node", dir + "/alone/x.js"}, 0); !errors.Is(err, ErrReference) {
		t.Errorf("a script without a package gave %+v, %v", got, err)
	}
}

func FuzzParseCommand(f *testing.F) {
	for _, argv := range [][]string{
		line("docker run -ie A=b -v /a:/b:ro --mount type=bind,src=/a,dst=/b img x"), line("uvx --from a==1 b"), line("uv --directory /d run x"),
		line("go run a/b@v1"), line("env A=b cmd /c npx -y p"), line("python -m a_b"), line("node --no-warnings x.js"),
		{"docker", "run", "-v", "/\x00:/x", "i"},
	} {
		b, _ := json.Marshal(argv)
		f.Add(string(b))
	}
	f.Fuzz(func(t *testing.T, s string) {
		var argv []string
		if json.Unmarshal([]byte(s), &argv) != nil {
			t.Skip()
		}
		p, err := parseCommand(argv, 0)
		if err != nil {
			if !errors.Is(err, ErrReference) || strings.ContainsAny(err.Error(), "\n\x00\x1b") {
				t.Fatalf("%q: %q", argv, err)
			}
			return
		}
		if strings.ContainsAny(p.ref, "\n\x00") && !strings.HasPrefix(p.ref, "wasm:") && p.ref != argv[0] || len(p.Args) >= len(argv) {
			t.Fatalf("%q: %+v", argv, p)
		}
		for _, m := range p.Mounts {
			if c := filepath.Clean(m.Source); c == "/" || strings.HasSuffix(c, ".sock") || strings.HasPrefix(c, "/proc") && (len(c) == 5 || c[5] == '/') || !filepath.IsAbs(m.Target) {
				t.Fatalf("%q mounts %+v", argv, m)
			}
		}
		for _, v := range p.Env {
			if !envNameRE.MatchString(v.Name) {
				t.Fatalf("%q: %+v", argv, v)
			}
		}
	})
}
