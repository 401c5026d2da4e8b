package clients

import (
	"bytes"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sandboxd/sandboxd/images"
)

// Options say how a client's file is turned into sandboxd's.
type Options struct {
	// Name is the file's path, by which its form is told and where relative
	// paths start.
	Name string
	// SecretsDir is written into the document; empty where there is none.
	SecretsDir string
	// KeepSecretArguments lets arguments that look like secrets stand.
	KeepSecretArguments bool
	// Home and LookupEnv are the user's.
	Home      string
	LookupEnv func(string) (string, bool)
	// ReadFile reads files of variables; Exists tells whether a path is there.
	ReadFile func(string) ([]byte, error)
	Exists   func(string) bool
}

// Imported is a client's file in sandboxd's form.
type Imported struct {
	// Document is YAML that config.Load reads. It holds no secret.
	Document []byte
	// Secrets are to be written to files of the secrets folder, by name.
	Secrets map[string]string
	Report  Report
}

// Report says what became of a file. It holds no value of a secret.
type Report struct {
	Servers []ServerReport `json:"servers"`
	Secrets []SecretReport `json:"secrets"`
	Remarks []string       `json:"remarks"`
}

// ServerReport is what became of one server.
type ServerReport struct {
	Name string `json:"name"`
	ID   string `json:"id"`
	// State is imported, held (written, but not served) or left.
	State   string   `json:"state"`
	Runs    string   `json:"runs,omitempty"` // a reference, or the host of a url
	Remarks []string `json:"remarks"`
}

// SecretReport is one secret of the document's.
type SecretReport struct {
	Name string `json:"name"`
	// State is moved, for one that was in the client's file, or missing.
	State string `json:"state"`
	Used  string `json:"used_by"`
}

// States of a ServerReport and a SecretReport.
const (
	StateImported = "imported"
	StateHeld     = "held"
	StateLeft     = "left"
	StateMoved    = "moved"
	StateMissing  = "missing"
)

// Import turns the file of an MCP client, of the registry or of an engine into
// a document for `sandboxd serve`. It writes nothing.
func Import(data []byte, o Options) (*Imported, error) {
	d, err := read(o.Name, data)
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(filepath.Dir(o.Name))
	if err != nil {
		return nil, err
	}
	// The folder that clients keep in a project is not the project.
	if slices.Contains([]string{".vscode", ".cursor", ".zed", ".roo"}, filepath.Base(dir)) {
		dir = filepath.Dir(dir)
	}
	im := &importer{
		o: o, scope: scope{folder: dir, home: o.Home, lookup: o.LookupEnv, inputs: d.inputs}, ours: d.ours,
		out: &Imported{Secrets: map[string]string{}, Report: Report{Servers: []ServerReport{}, Secrets: []SecretReport{}, Remarks: append([]string{}, d.remarks...)}},
		ids: map[string]bool{},
	}
	for _, e := range d.entries {
		im.take(e)
	}
	if len(im.out.Report.Secrets) > 0 {
		im.doc.SecretsDir = o.SecretsDir
	}
	var b bytes.Buffer
	b.WriteString("# What `sandboxd serve --config` runs; docs/config.md has the format.\n# Without a policy a server has no network: give it one that names its hosts.\n")
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(im.doc); err != nil {
		return nil, err
	}
	im.out.Document = b.Bytes()
	return im.out, nil
}

type documentOut struct {
	SecretsDir string               `yaml:"secrets_dir,omitempty"`
	Servers    map[string]serverOut `yaml:"servers,omitempty"`
	List       []serverOut          `yaml:"mcp_servers"`
}

type serverOut struct {
	ID             string    `yaml:"id,omitempty"`
	Label          string    `yaml:"label,omitempty"`
	Transport      string    `yaml:"transport"`
	Command        string    `yaml:"command,omitempty"`
	Args           []string  `yaml:"args,omitempty"`
	Env            yaml.Node `yaml:"env,omitempty"`
	Mounts         []string  `yaml:"mounts,omitempty"`
	URL            string    `yaml:"url,omitempty"`
	Headers        yaml.Node `yaml:"headers,omitempty"`
	Local          bool      `yaml:"allow_local_endpoint,omitempty"`
	ToolsAllowlist []string  `yaml:"tools_allowlist,omitempty"`
	Include        []string  `yaml:"include,omitempty"`
	Required       bool      `yaml:"required,omitempty"`
	Autostart      bool      `yaml:"autostart,omitempty"`
}

type importer struct {
	o     Options
	scope scope
	ours  bool
	out   *Imported
	doc   documentOut
	ids   map[string]bool // taken, without what names of tools lose
	used  map[string]bool // targets of the mounts of the server at hand
}

// remark adds to the report of the server at hand.
func (r *ServerReport) remark(format string, args ...any) {
	r.Remarks = append(r.Remarks, fmt.Sprintf(format, args...))
}

func (im *importer) take(e entry) {
	rep := &ServerReport{Name: e.name, State: StateImported, Remarks: append([]string{}, e.remarks...)}
	rep.ID = im.id(e.name)
	s := serverOut{ID: rep.ID, ToolsAllowlist: e.tools, Include: e.include, Required: e.required, Autostart: e.autostart}
	if rep.ID != e.name {
		s.Label = label(e.name)
		rep.remark("its name is written %s here", rep.ID)
	}
	im.used = map[string]bool{}
	ok := false
	switch {
	case e.command != "" && e.url != "":
		rep.remark("it has both a command and a url: which one runs?")
	case e.url != "":
		ok = im.network(&e, &s, rep)
	case e.command != "":
		if ok = im.remoteProxy(&e, &s, rep); !ok {
			ok = im.stdio(&e, &s, rep)
		}
	default:
		rep.remark("it has neither a command nor a url")
	}
	switch {
	case !ok:
		rep.State = StateLeft
	case e.disabled || rep.State == StateHeld:
		if e.disabled {
			rep.remark("it is disabled: written under servers, and not served until a ref names it")
		}
		rep.State = StateHeld
		if im.doc.Servers == nil {
			im.doc.Servers = map[string]serverOut{}
		}
		s.ID, s.Autostart = "", false
		im.doc.Servers[rep.ID] = s
	default:
		im.doc.List = append(im.doc.List, s)
	}
	im.out.Report.Servers = append(im.out.Report.Servers, *rep)
}

var notID = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// id makes a name that a server can have and that no other one has.
func (im *importer) id(name string) string {
	id := strings.Trim(notID.ReplaceAllString(name, "-"), "-._")
	id = strings.TrimRight(id[:min(len(id), 60)], "-._")
	if id == "" {
		id = "server"
	}
	fold := func(s string) string { return strings.NewReplacer(".", "_", "-", "_").Replace(strings.ToLower(s)) }
	base := id
	for n := 2; im.ids[fold(id)]; n++ {
		id = base + "-" + strconv.Itoa(n)
	}
	im.ids[fold(id)] = true
	return id
}

// label is a name for people, on one line.
func label(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
	return strings.ToValidUTF8(s[:min(len(s), 200)], "")
}

// stdio takes a server that is started.
func (im *importer) stdio(e *entry, s *serverOut, rep *ServerReport) bool {
	s.Transport = "stdio"
	base := im.scope.folder
	if e.cwd != "" {
		base = im.path(im.scope.expand(e.cwd).value, im.scope.folder)
		rep.remark("cwd was dropped: a server works in its own folder; relative paths were made absolute")
	}
	argv := append([]string{e.command}, e.args...)
	for i := range argv {
		x := im.scope.expand(argv[i])
		if len(x.missing) > 0 || im.secretSource(x) {
			rep.remark("argument %d holds the variable or question %s: arguments can be seen by everyone, so give its value to the server in a variable", i, shown(strings.Join(append(x.missing, x.known...), ", ")))
			return false
		}
		im.unknownVars(x, rep)
		argv[i] = im.path(x.value, "")
	}
	argv, moved := im.argvEnv(argv)
	env := slices.Concat(moved, im.fileEnv(e, base, rep), e.env)
	argv = relative(argv, base, im.o.Exists)
	if i := secretArgument(argv); i > 0 && !im.ours && !im.o.KeepSecretArguments {
		rep.remark("argument %d is or may be a secret, and arguments can be seen by everyone: give it to the server in a variable, or keep it with --keep-secret-arguments", i)
		return false
	}
	s.Command, s.Args = argv[0], argv[1:]
	cmd, err := images.ParseCommand(argv)
	if err != nil {
		rep.State = StateHeld
		rep.remark("it cannot be run: %v; it is written under servers, and not served", err)
	} else {
		rep.Runs = cmd.Ref.String()
		for _, m := range cmd.Mounts {
			im.used[m.Target] = true
		}
		im.suggestMounts(s, cmd.Args, rep)
	}
	s.Env = im.values(env, "variable", e.name, rep, func(name string) bool { return envName.MatchString(name) })
	im.mountsOfEnv(s, env, rep)
	return true
}

// unknownVars remarks upon what stays as it is.
func (im *importer) unknownVars(x expanded, rep *ServerReport) {
	for _, u := range x.unknown {
		rep.remark("%s is not known and stays as it is", shown(u))
	}
}

// secretSource says whether a variable's value that was put in is a secret.
func (im *importer) secretSource(x expanded) bool {
	return slices.ContainsFunc(x.known, func(n string) bool { v, _ := im.scope.lookup(n); return maySecret(n, v) })
}

// path makes ~ and, below base, a relative path absolute.
func (im *importer) path(p, base string) string {
	if p == "~" || strings.HasPrefix(p, "~/") {
		return filepath.Join(im.o.Home, p[1:])
	}
	if base != "" && !filepath.IsAbs(p) {
		return filepath.Join(base, p)
	}
	return p
}

// relative makes the arguments that are relative paths absolute.
func relative(argv []string, base string, exists func(string) bool) []string {
	out := slices.Clone(argv)
	for i, a := range argv {
		isFile := i > 0 && filepath.Ext(a) != "" && !strings.HasPrefix(a, "-") && !strings.ContainsAny(a, ":@=") && exists(filepath.Join(base, a))
		if a == "." || a == ".." || strings.HasPrefix(a, "./") || strings.HasPrefix(a, "../") || isFile {
			out[i] = filepath.Join(base, a)
		}
	}
	if strings.HasSuffix(argv[0], ".wasm") && !filepath.IsAbs(argv[0]) {
		out[0] = filepath.Join(base, argv[0])
	}
	return out
}

// argvEnv moves variables with their values out of a command line: those of
// env, and those of -e NAME=VALUE of a container engine.
func (im *importer) argvEnv(argv []string) (rest []string, env []pair) {
	for len(argv) > 2 && filepath.Base(argv[0]) == "env" {
		k, v, ok := strings.Cut(argv[1], "=")
		if !ok || !envName.MatchString(k) {
			break
		}
		env = append(env, pair{k, v})
		argv = append([]string{argv[0]}, argv[2:]...)
	}
	if len(env) > 0 && !strings.Contains(argv[1], "=") {
		argv = argv[1:]
	}
	if !slices.Contains([]string{"docker", "podman", "nerdctl"}, filepath.Base(argv[0])) {
		return argv, env
	}
	cmd, _ := images.ParseCommand(argv) // of one that is refused, all words are looked at
	rest = slices.Clone(argv)
	for i := 1; i < len(rest)-len(cmd.Args)-1; i++ {
		for _, prefix := range []string{"--env=", "-e", ""} {
			v, ok := strings.CutPrefix(rest[i], prefix)
			k, value, has := strings.Cut(v, "=")
			if !ok || !has || !envName.MatchString(k) || prefix == "" && rest[i-1] != "-e" && rest[i-1] != "--env" {
				continue
			}
			env, rest[i] = append(env, pair{k, value}), prefix+k
			break
		}
	}
	return rest, env
}

// fileEnv reads the file of variables that an entry names.
func (im *importer) fileEnv(e *entry, base string, rep *ServerReport) (env []pair) {
	if e.envFile == "" {
		return nil
	}
	path := im.path(im.scope.expand(e.envFile).value, base)
	data, err := im.o.ReadFile(path)
	if err != nil {
		rep.remark("the file of variables %s cannot be read, and was dropped", shown(path))
		return nil
	}
	for l := range strings.Lines(string(data)) {
		l = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(l), "export "))
		k, v, ok := strings.Cut(l, "=")
		if !ok || l[0] == '#' || !envName.MatchString(k) {
			continue
		}
		if n := len(v); n > 1 && (v[0] == '"' || v[0] == '\'') && v[n-1] == v[0] {
			v = v[1 : n-1]
		}
		env = append(env, pair{k, v})
	}
	rep.remark("the variables of %s were taken in", shown(path))
	return env
}
