package engine_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// script runs build.sh with an environment of its own.
func script(t *testing.T, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "./build.sh", args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Env = &out, &errs, env
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func TestPathIsStableAndBuildsNothing(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "cache")
	env := append(os.Environ(), "SANDBOXD_ENGINE_CACHE="+cache)
	first, stderr, code := script(t, env, "--path")
	if code != 0 {
		t.Fatalf("exit status %d: %s", code, stderr)
	}
	if !regexp.MustCompile(`^` + regexp.QuoteMeta(cache) + `/[0-9a-f]{16}\n$`).MatchString(first) {
		t.Errorf("path is %q", first)
	}
	again, _, _ := script(t, append(env, "GOFLAGS=-tags=other"), "--path")
	if again != first {
		t.Errorf("the caller's GOFLAGS changed the path from %q to %q", first, again)
	}
	if _, err := os.Stat(cache); !os.IsNotExist(err) {
		t.Errorf("--path left something in the cache: %v", err)
	}
}

func TestMistakesNameTheNextStep(t *testing.T) {
	for _, tc := range []struct {
		name, says string
		env        []string
		args       []string
		code       int
	}{
		{"unknown part", "use containerd containerd-shim-runc-v2 runc runsc", os.Environ(), []string{"nope"}, 2},
		{"relative cache", "absolute path", append(os.Environ(), "SANDBOXD_ENGINE_CACHE=here"), nil, 2},
		{"no go", "install Go", []string{"PATH=/usr/bin:/bin", "HOME=" + t.TempDir()}, nil, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := os.Stat("/usr/bin/go"); err == nil && tc.name == "no go" {
				t.Skip("go is in /usr/bin here")
			}
			stdout, stderr, code := script(t, tc.env, tc.args...)
			if code != tc.code || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, tc.says) {
				t.Errorf("exit status %d, stdout %q, stderr %q", code, stdout, stderr)
			}
		})
	}
}
