package images

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// apt runs apt-get as an ordinary user on a state of its own: the host's
// sources, keys, proxy and, where it can read them, package lists, but no
// hook, no lock and no folder of the host's.
type apt struct {
	dir  string // state, cache and configuration
	env  []string
	hold *os.File
}

// newApt prepares dir, which must be empty. update says whether to fetch fresh
// lists rather than use the host's.
func newApt(ctx context.Context, dir string, environ []string, hold *os.File, update bool) (*apt, error) {
	for _, d := range []string{"cache/archives/partial", "state/lists/partial", "etc", "debs"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return nil, err
		}
	}
	conf := filepath.Join(dir, "apt.conf")
	a := &apt{dir: dir, env: append(fetchEnv(environ, dir), "APT_CONFIG="+conf, "DEBIAN_FRONTEND=noninteractive"), hold: hold}
	acquire, err := a.hostSettings(ctx, environ)
	if err != nil {
		return nil, err
	}
	var c bytes.Buffer
	c.Write(acquire)
	lists := "/var/lib/apt/lists"
	if update {
		lists = filepath.Join(dir, "state/lists")
	}
	// An empty status file makes every dependency one to fetch; an empty parts
	// folder keeps the host's hooks out.
	for k, v := range map[string]string{
		"Dir::Etc::parts": filepath.Join(dir, "etc"), "Dir::Etc::main": "/dev/null",
		"Dir::Cache": filepath.Join(dir, "cache"), "Dir::State": filepath.Join(dir, "state"),
		"Dir::State::status": filepath.Join(dir, "state/status"), "Dir::State::lists": lists,
	} {
		fmt.Fprintf(&c, "%s %q;\n", k, v)
	}
	if err := os.WriteFile(filepath.Join(dir, "state/status"), nil, 0o600); err != nil {
		return nil, err
	}
	if err := os.WriteFile(conf, c.Bytes(), 0o600); err != nil {
		return nil, err
	}
	if update {
		_, err = a.get(ctx, "-qq", "--error-on=any", "update")
	}
	return a, err
}

// hostSettings are the lines of the host's apt configuration that say how to
// fetch.
func (a *apt) hostSettings(ctx context.Context, environ []string) ([]byte, error) {
	res, err := tool{name: "apt-config", args: []string{"dump"}, env: fetchEnv(environ, a.dir), dir: a.dir, hold: a.hold}.run(ctx)
	if err != nil {
		return nil, toolError("apt-config", err, res.stderr)
	}
	var out bytes.Buffer
	lines := bufio.NewScanner(bytes.NewReader(res.stdout))
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "Acquire::") {
			out.Write(lines.Bytes())
			out.WriteByte('\n')
		}
	}
	return out.Bytes(), lines.Err()
}

func (a *apt) get(ctx context.Context, args ...string) (result, error) {
	res, err := tool{name: "apt-get", args: args, env: a.env, dir: filepath.Join(a.dir, "debs"), hold: a.hold}.run(ctx)
	if err != nil {
		return res, toolError("apt-get", err, res.stderr)
	}
	return res, nil
}

var (
	instRE = regexp.MustCompile(`^Inst (\S+) \((\S+) `)
	// apt's own words, in LC_ALL=C
	aptNetRE     = regexp.MustCompile(`(?i)Could not resolve|Could not connect|Connection (refused|failed|timed out)|Failed to fetch|Temporary failure`)
	aptUnknownRE = regexp.MustCompile(`Unable to locate package (\S+)|Can't select .*package '?([^' ]+)|no installation candidate`)
)

// closure lists the packages with all they depend on, as name=version.
func (a *apt) closure(ctx context.Context, names []string) ([]string, error) {
	res, err := a.get(ctx, append([]string{"install", "-s", "-qq", "--no-install-recommends", "--"}, names...)...)
	if err != nil {
		return nil, err
	}
	var out []string
	lines := bufio.NewScanner(bytes.NewReader(res.stdout))
	for lines.Scan() {
		if m := instRE.FindStringSubmatch(lines.Text()); m != nil {
			out = append(out, m[1]+"="+m[2])
		}
	}
	return out, lines.Err()
}

// download fetches packages, whose hashes apt checks against the signed lists,
// and returns their files in the order of names.
func (a *apt) download(ctx context.Context, specs []string) ([]string, error) {
	if _, err := a.get(ctx, append([]string{"download", "-qq", "--"}, specs...)...); err != nil {
		return nil, err
	}
	return filepath.Glob(filepath.Join(a.dir, "debs", "*.deb"))
}

// toolError makes one line of a failed program's stderr.
func toolError(name string, err error, stderr []byte) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	text := string(stderr)
	switch {
	case aptUnknownRE.MatchString(text):
		return fail(ErrNotFound, "the distribution has no such package: "+quoted(firstError(text)), "look for its name with apt-cache search")
	case aptNetRE.MatchString(text):
		return fail(ErrNetwork, "the distribution's mirror could not be reached", "check that apt-get update works for your user, proxy settings included")
	}
	return fail(ErrTool, status(name, err)+": "+quoted(firstError(text)), "")
}

// firstError is the first line that apt or dpkg marks as an error.
func firstError(text string) string {
	for line := range strings.Lines(text) {
		if s, ok := strings.CutPrefix(line, "E: "); ok {
			return strings.TrimSpace(s)
		}
		if strings.Contains(line, "error:") {
			return strings.TrimSpace(line)
		}
	}
	return strings.TrimSpace(text)
}
