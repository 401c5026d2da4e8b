package main

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

// TestCompletion: a shell is offered what is there, and nothing where a file
// has faults.
func TestCompletion(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("SANDBOXD_CACHE", filepath.Join(dir, "cache"))
	good := writeFile(t, filepath.Join(dir, "good.yaml"), "mcp_servers:\n- {id: notes, command: npx, args: [p]}\n")
	bad := writeFile(t, filepath.Join(dir, "bad.yaml"), "mcp_servers: 3\n")
	for line, want := range map[string]string{
		"catalog show ":                       "brave-search\n",
		"catalog add fil":                     "filesystem\n",
		"run --config " + good + " --server ": "notes\n",
		"run --config " + bad + " --server ":  ":4\n",
		"image rm ":                           ":4\n",
		"catalog show github ":                ":4\n",
	} {
		out, _, err := sandboxd(append([]string{"__complete"}, strings.Split(line, " ")...)...)
		if err != nil || !strings.HasPrefix(out, want) && !strings.Contains(out, "\n"+want) {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
		if want == ":4\n" && !strings.HasPrefix(out, want) {
			t.Errorf("%s offers\n%s", line, out)
		}
	}
}

// TestMistakes: what a newcomer gets wrong is a usage error that says what to
// do next.
func TestMistakes(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("SANDBOXD_CACHE", filepath.Join(dir, "cache"))
	for line, says := range map[string]string{
		"rum":                              `unknown command "rum": did you mean run?`,
		"policy chek x.yaml":               `unknown command "chek": did you mean check?`,
		"zzzzzz":                           `unknown command "zzzzzz": see sandboxd --help`,
		"policy check " + dir + "/no.yaml": "no.yaml does not exist: check the path",
		"build " + dir + "/no":             "no such folder",
		"run --mount " + dir + "/no:/n -- npx -y p": "no such file",
	} {
		_, _, err := sandboxd(strings.Split(line, " ")...)
		var usage usageError
		if !errors.As(err, &usage) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// TestNothingFound: an empty list says so, apart from what scripts read.
func TestNothingFound(t *testing.T) {
	t.Setenv("SANDBOXD_CACHE", filepath.Join(t.TempDir(), "cache"))
	for _, c := range []struct{ line, says string }{
		{"image ls", "no image was built here yet"},
		{"catalog search nosuchword", "no server in which every word occurs"},
	} {
		out, errs, err := sandboxd(strings.Split(c.line, " ")...)
		if err != nil || out != "" || !strings.Contains(errs, c.says) {
			t.Errorf("%s: %v %q %q", c.line, err, out, errs)
		}
		if out, _, err = sandboxd(append(strings.Split(c.line, " "), "--json")...); err != nil || out != "[]\n" {
			t.Errorf("%s --json: %v %q", c.line, err, out)
		}
	}
}
