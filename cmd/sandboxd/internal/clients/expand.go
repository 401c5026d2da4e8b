package clients

import (
	"path/filepath"
	"regexp"
	"strings"
)

// variable is ${NAME}, ${NAME:-DEFAULT}, ${env:NAME}, ${input:ID} and the like.
var variable = regexp.MustCompile(`\$\{([^${}]{1,200})\}`)

// expanded is a value with its variables put in. parts of it that nobody here
// knows stand as {{secrets.NAME}}.
type expanded struct {
	value   string
	missing []string // the names of secrets that have yet to be given
	known   []string // the names of variables whose values were put in
	unknown []string // what no client's own variable is
}

// scope is what variables mean in one file.
type scope struct {
	folder string // of the project
	home   string
	lookup func(string) (string, bool)
	inputs []input
}

func (s *scope) expand(v string) expanded {
	var x expanded
	x.value = variable.ReplaceAllStringFunc(v, func(m string) string {
		name := m[2 : len(m)-1]
		kind, rest, has := strings.Cut(name, ":")
		switch {
		case name == "workspaceFolder" || name == "workspaceRoot" || name == "CLAUDE_PROJECT_DIR":
			return s.folder
		case name == "workspaceFolderBasename":
			return filepath.Base(s.folder)
		case name == "userHome" || name == "HOME":
			return s.home
		case name == "pathSeparator" || name == "/":
			return "/"
		case has && kind == "input":
			for _, in := range s.inputs {
				if in.id == rest && in.def != "" && !in.password {
					return in.def
				}
			}
			return x.ask(rest)
		case has && kind == "env":
			return s.environ(&x, rest, "", false)
		case envName.MatchString(name):
			return s.environ(&x, name, "", false)
		case has && envName.MatchString(kind) && strings.HasPrefix(rest, "-"):
			return s.environ(&x, kind, rest[1:], true)
		}
		x.unknown = append(x.unknown, m)
		return m
	})
	return x
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,255}$`)

func (s *scope) environ(x *expanded, name, fallback string, has bool) string {
	if v, ok := s.lookup(name); ok && v != "" {
		x.known = append(x.known, name)
		return v
	}
	if has {
		return fallback
	}
	return x.ask(name)
}

func (x *expanded) ask(name string) string {
	name = secretName(name)
	x.missing = append(x.missing, name)
	return "{{secrets." + name + "}}"
}

var notName = regexp.MustCompile(`[^a-z0-9_]+`)

// secretName makes a name that a secret can have.
func secretName(s string) string {
	s = strings.Trim(notName.ReplaceAllString(strings.ToLower(s), "_"), "_")
	if s == "" || s[0] >= '0' && s[0] <= '9' {
		s = "s_" + s
	}
	return s[:min(len(s), 128)]
}
