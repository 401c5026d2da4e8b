package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/test/integration/lab"
)

// The Inspector, and a node that is new enough for it.
const (
	inspectorVersion = "2.12.0"
	inspectorNode    = "22.23.5"
)

// inspector returns the command of the official Inspector's command-line mode.
// It is installed once, into the cache.
func inspector(t *testing.T) []string {
	t.Helper()
	node := nodePackage(t)
	modules := npmInstall(t, "inspector-"+inspectorVersion+"-node-"+inspectorNode, "@modelcontextprotocol/inspector@"+inspectorVersion, node+"@"+inspectorNode)
	return []string{
		filepath.Join(modules, node, "bin", "node"),
		filepath.Join(modules, "@modelcontextprotocol", "inspector", "clients", "launcher", "build", "index.js"), "--cli",
	}
}

// nodePackage is the npm package that carries a node for this machine.
func nodePackage(t *testing.T) string {
	t.Helper()
	arch := map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH]
	if arch == "" {
		t.Skipf("no node package for %s", runtime.GOARCH)
	}
	return "node-linux-" + arch
}

// npmInstall installs packages once, into a folder of the cache, and returns
// the folder of their modules.
func npmInstall(t *testing.T, folder string, packages ...string) string {
	t.Helper()
	dir := filepath.Join(cache, folder)
	if _, err := os.Stat(dir); err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		fresh := fmt.Sprintf("%s.%d", dir, os.Getpid())
		t.Cleanup(func() { _ = os.RemoveAll(fresh) })
		args := append([]string{"install", "--prefix", fresh, "--ignore-scripts", "--no-audit", "--no-fund"}, packages...)
		cmd := lab.UserCommand(ctx, lab.UserDir(t), "npm", args...)
		cmd.Env = append(cmd.Env, npmEnv()...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v could not be installed: %v\n%s", packages, err, out)
		}
		if err := os.Rename(fresh, dir); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "node_modules")
}

// testInspector: the official client lists the aggregated tools and calls one
// of each server, at both endpoints.
func (s *serving) testInspector(t *testing.T) {
	command := inspector(t)
	use := func(t *testing.T, endpoint string, args ...string) []byte {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		argv := append(slices.Clone(command), s.base+endpoint, "--transport", "http", "--method")
		cmd := s.l.Command(ctx, argv[0], append(argv[1:], args...)...)
		status, stdout, stderr := finish(t, cmd)
		if status != 0 {
			t.Fatalf("%s %v: status %d\n%s%s", endpoint, args, status, stdout, stderr)
		}
		return []byte(stdout)
	}
	names := func(t *testing.T, endpoint string) []string {
		t.Helper()
		var list struct{ Tools []struct{ Name string } }
		if err := json.Unmarshal(use(t, endpoint, "tools/list"), &list); err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, tool := range list.Tools {
			out = append(out, tool.Name)
		}
		return out
	}
	call := func(t *testing.T, srv served, endpoint, tool string) {
		t.Helper()
		args := []string{"tools/call", "--tool-name", tool}
		for k, v := range srv.input {
			args = append(args, "--tool-arg", fmt.Sprintf("%s=%v", k, v))
		}
		var r result
		if err := json.Unmarshal(use(t, endpoint, args...), &r); err != nil || !strings.Contains(r.text(), srv.want) {
			t.Errorf("%s: %v %+v", tool, err, r)
		}
	}
	aggregated := names(t, "/mcp")
	for _, srv := range servedServers() {
		t.Run(srv.slug, func(t *testing.T) {
			tool := "mcp_" + srv.slug + "_" + srv.tool
			if !slices.Contains(aggregated, tool) {
				t.Errorf("no %s in %v", tool, aggregated)
			}
			call(t, srv, "/mcp", tool)
		})
	}
	// One of each tier: this endpoint starts a sandbox for each session.
	for _, srv := range servedServers() {
		if srv.slug == "c_filesystem" || srv.slug == "g_everything" || srv.slug == "fetch" {
			t.Run("own/"+srv.slug, func(t *testing.T) {
				call(t, srv, "/mcp/"+srv.slug, srv.tool)
			})
		}
	}
}
