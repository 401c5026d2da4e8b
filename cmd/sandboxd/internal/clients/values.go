package clients

import (
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

func quoteASCII(s string) string { return strconv.QuoteToASCII(s) }

// values writes variables or headers, with what is or may be a secret moved
// out. The last of a name counts.
func (im *importer) values(in []pair, what, server string, rep *ServerReport, ok func(string) bool) yaml.Node {
	out := yaml.Node{Kind: yaml.MappingNode}
	for i, p := range in {
		if slices.ContainsFunc(in[i+1:], func(q pair) bool { return q.name == p.name }) {
			continue
		}
		if !ok(p.name) {
			rep.remark("the %s %s was dropped: it is no name for one", what, shown(p.name))
			continue
		}
		if strings.ContainsRune(p.value, 0) {
			rep.remark("the %s %s was dropped: its value holds a NUL byte", what, p.name)
			continue
		}
		v := im.value(p, what, server, rep)
		out.Content = append(out.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: p.name, Tag: "!!str"},
			&yaml.Node{Kind: yaml.ScalarNode, Value: v, Tag: "!!str", Style: yaml.DoubleQuotedStyle})
	}
	if len(out.Content) == 0 {
		return yaml.Node{}
	}
	return out
}

// secretRef is how a config refers to a secret.
var secretRef = regexp.MustCompile(`\{\{\s*secrets\.([A-Za-z_][A-Za-z0-9_]{0,127})\s*\}\}`)

// value is what stands in the document for one value.
func (im *importer) value(p pair, what, server string, rep *ServerReport) string {
	user := server + "." + p.name
	if names := secretRef.FindAllStringSubmatch(p.value, -1); im.ours && len(names) > 0 && !strings.Contains(secretRef.ReplaceAllString(p.value, ""), "{") {
		for _, n := range names { // it refers to secrets already
			im.noteSecret(SecretReport{Name: n[1], State: StateMissing, Used: user})
		}
		return p.value
	}
	x := im.scope.expand(p.value)
	im.unknownVars(x, rep)
	prefix, v := "", x.value
	if what == "header" {
		if scheme, rest, found := strings.Cut(v, " "); found && slices.Contains([]string{"bearer", "basic", "token"}, strings.ToLower(scheme)) {
			prefix, v = scheme+" ", strings.TrimSpace(rest)
		}
	} else {
		v = im.path(v, "")
	}
	if len(x.missing) > 0 {
		for _, name := range x.missing {
			im.noteSecret(SecretReport{Name: name, State: StateMissing, Used: user})
		}
		// What stands beside it is written out only where it is no secret.
		rest := strings.TrimSpace(variable.ReplaceAllString(p.value, ""))
		if rest == "" || prefix != "" && rest == strings.TrimSpace(prefix) || !maySecret("", rest) && !looksSecret(rest) && !im.secretSource(x) {
			return prefix + v
		}
		rep.remark("the %s %s mixes a question and a value that may be a secret: give it whole as the secret", what, p.name)
		return "{{secrets." + x.missing[0] + "}}"
	}
	secret := maySecret(p.name, v) || im.secretSource(x) || strings.Contains(v, "{{")
	if what == "header" {
		secret = v != "" && (secret || prefix != "" || !slices.Contains(plainHeaders, strings.ToLower(p.name)))
	}
	if !secret {
		return prefix + v
	}
	return prefix + "{{secrets." + im.secret(server, p.name, v, user) + "}}"
}

// plainHeaders are those that no service keeps a secret in.
var plainHeaders = []string{"user-agent", "accept-language", "origin", "referer", "x-mcp-toolsets", "x-mcp-readonly", "x-mcp-tools"}

// secret gives a value a name: its own where that is free or has the same
// value, else with the server's before it.
func (im *importer) secret(server, name, value, user string) string {
	for n := 0; ; n++ {
		key := secretName(name)
		switch {
		case n == 1:
			key = secretName(server + "_" + name)
		case n > 1:
			key = secretName("s" + strconv.Itoa(n) + "_" + server + "_" + name)
		}
		old, taken := im.out.Secrets[key]
		if taken && old != value || slices.ContainsFunc(im.out.Report.Secrets, func(s SecretReport) bool { return s.Name == key && s.State == StateMissing }) {
			continue
		}
		im.out.Secrets[key] = value
		im.noteSecret(SecretReport{Name: key, State: StateMoved, Used: user})
		return key
	}
}

func (im *importer) noteSecret(s SecretReport) {
	for i, o := range im.out.Report.Secrets {
		if o.Name == s.Name {
			if !slices.Contains(strings.Split(o.Used, ", "), s.Used) {
				im.out.Report.Secrets[i].Used += ", " + s.Used
			}
			return
		}
	}
	im.out.Report.Secrets = append(im.out.Report.Secrets, s)
}

// suggestMounts shows the paths that the arguments name, read-only and at their
// own place, so that the arguments stay as they are.
func (im *importer) suggestMounts(s *serverOut, args []string, rep *ServerReport) {
	for _, a := range args {
		if _, v, ok := strings.Cut(a, "="); ok && strings.HasPrefix(a, "-") {
			a = v
		}
		im.suggestMount(s, a, rep)
	}
}

func (im *importer) mountsOfEnv(s *serverOut, env []pair, rep *ServerReport) {
	for _, p := range env {
		x := im.scope.expand(p.value)
		if len(x.missing) == 0 {
			im.suggestMount(s, im.path(x.value, ""), rep)
		}
	}
}

// wholeHost are places that show more than one server needs.
var wholeHost = []string{"/", "/etc", "/home", "/root", "/proc", "/sys", "/dev", "/run", "/var", "/usr", "/tmp", "/opt", "/bin", "/lib"}

func (im *importer) suggestMount(s *serverOut, path string, rep *ServerReport) {
	if !filepath.IsAbs(path) || strings.ContainsAny(path, ":\n\x00") {
		return
	}
	path = filepath.Clean(path)
	if im.used[path] || !im.o.Exists(path) {
		return
	}
	im.used[path] = true
	if slices.Contains(wholeHost, path) || path == im.o.Home || strings.HasSuffix(path, ".sock") || filepath.Base(path) == ".ssh" {
		rep.remark("%s was not mounted: it shows more than one server should see; mount the folder that it needs", shown(path))
		return
	}
	s.Mounts = append(s.Mounts, path+":"+path)
	rep.remark("%s is mounted read-only: write :rw behind it where the server is to change it", shown(path))
}
