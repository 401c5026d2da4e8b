package gowasm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/images"
)

// goCommand is the go command as this package runs it.
type goCommand struct {
	program string
	env     []string
	root    string // GOROOT
	version string // as in go1.26.6
}

// userSettings are what the caller's own Go configuration says about where
// modules come from and who vouches for them. Nothing else of it is kept.
var userSettings = []string{
	"GOPROXY", "GOSUMDB", "GOPRIVATE", "GONOPROXY", "GONOSUMDB", "GOINSECURE", "GOAUTH", "GOMODCACHE", "GOCACHE",
}

// findGo asks the go command for its settings and makes the environment of
// every later run: no flags of the caller's, no cgo, no other toolchain, no
// version control, and wasip1 as what is built for.
func findGo(ctx context.Context, program, dir string, environ []string) (goCommand, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return goCommand{}, &images.Error{Kind: images.ErrTool, What: "Go is not installed or not in PATH", Next: "install Go " + testedGo + "; it is needed to build a module, not to run it"}
	}
	g := goCommand{program: path, env: append(slices.Clone(environ), "GOTOOLCHAIN=local", "GOFLAGS=")}
	stdout, stderr, err := g.run(ctx, dir, append([]string{"env", "-json", "GOROOT", "GOVERSION"}, userSettings...)...)
	if err != nil {
		return goCommand{}, toolFailed(ctx, "go env", stderr, err)
	}
	var set map[string]string
	if err := json.Unmarshal(stdout, &set); err != nil {
		return goCommand{}, fmt.Errorf("go env: %w", err)
	}
	g.root, g.version = set["GOROOT"], set["GOVERSION"]
	if !filepath.IsAbs(g.root) || g.version == "" {
		return goCommand{}, &images.Error{Kind: images.ErrTool, What: "go env names no GOROOT or no version", Next: "look at what go env prints"}
	}
	g.env = []string{
		"LC_ALL=C", "GOENV=off", "GOFLAGS=", "GOTOOLCHAIN=local", "GO111MODULE=on", "GOVCS=*:off",
		"CGO_ENABLED=0", "GOOS=wasip1", "GOARCH=wasm",
	}
	for _, kv := range environ {
		k, _, _ := strings.Cut(kv, "=")
		switch strings.ToLower(k) {
		case "path", "home", "tmpdir", "http_proxy", "https_proxy", "no_proxy", "ssl_cert_file", "ssl_cert_dir":
			g.env = append(g.env, kv)
		}
	}
	for _, k := range userSettings {
		if set[k] != "" {
			g.env = append(g.env, k+"="+set[k])
		}
	}
	return g, nil
}

// with returns the command with more in its environment.
func (g goCommand) with(env ...string) goCommand {
	g.env = append(slices.Clone(g.env), env...)
	return g
}

// most is how much of a stream is kept.
const most = 64 << 20

// run runs it in dir. When ctx ends the whole process group is killed.
func (g goCommand) run(ctx context.Context, dir string, args ...string) (stdout, stderr []byte, err error) {
	var out, errs capped
	cmd := exec.CommandContext(ctx, g.program, args...)
	cmd.Env, cmd.Dir = g.env, dir
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = 5 * time.Second
	ownGroup(cmd)
	err = cmd.Run()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return out.Bytes(), errs.Bytes(), err
}

// capped keeps the beginning of what is written to it, and fails after that.
type capped struct{ bytes.Buffer }

func (c *capped) Write(p []byte) (int, error) {
	if c.Len()+len(p) > most {
		return 0, errors.New("more output than the go command has reason for")
	}
	return c.Buffer.Write(p)
}

// toolFailed is a go command that failed for a reason that is not looked into.
func toolFailed(ctx context.Context, what string, stderr []byte, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
	return &images.Error{Kind: images.ErrTool, What: what + " failed: " + quoted(lastLine(stderr, err)), Next: "run it by hand to see all of it"}
}

// lastLine is what a program said last, or how it ended.
func lastLine(stderr []byte, err error) string {
	lines := strings.Split(strings.TrimSpace(string(stderr)), "\n")
	if last := strings.TrimSpace(lines[len(lines)-1]); last != "" {
		return last
	}
	return err.Error()
}

// quoted makes text of a stranger fit for one line: quoted and cut.
func quoted(s string) string {
	const most = 240
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strconv.QuoteToASCII(s)
}
