package integration

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/images"
	"github.com/sandboxd/sandboxd/mcpbridge"
	"github.com/sandboxd/sandboxd/netguard"
	"github.com/sandboxd/sandboxd/sandbox"
	enginerpc "github.com/sandboxd/sandboxd/sandbox/engine"
	"github.com/sandboxd/sandboxd/test/integration/lab"
)

const conformanceVersion = "0.2.0-alpha.12"

// revisions are those that the suite knows scenarios for, and how it is asked
// for those that are required: it has no frozen set for the oldest.
func revisions() []string { return []string{"2025-06-18", "2025-11-25", "2026-07-28"} }

func required(revision string) []string {
	if revision == "2025-06-18" {
		return []string{"--spec-version", revision}
	}
	return []string{"--requirements", revision}
}

// TestConformance runs the official suite in a namespace without a way out:
// against go-sdk's conformance server, bare and in a sandbox behind
// /mcp/{server}, and against clients, go-sdk's and the bridge's own. It takes
// minutes, so that SANDBOXD_CONFORMANCE has to name the file for its table.
func TestConformance(t *testing.T) {
	file := os.Getenv("SANDBOXD_CONFORMANCE")
	if file == "" {
		t.Skip("set SANDBOXD_CONFORMANCE=FILE to run the official suite, or use make conformance")
	}
	s := newSuite(t)
	bare := s.bareServers()
	bridged := s.bridge()
	for _, revision := range revisions() {
		s.servers("server, bare", revision, bare[revision])
		s.servers("server, sandboxed at /mcp/{server}", revision, bridged)
		s.clients("client, bare", revision, "everything-client")
		s.clients("client, the bridge's own", revision, "bridgeclient")
	}
	table, failed := s.table()
	t.Log("\n" + table)
	if err := os.WriteFile(file, []byte(table), 0o600); err != nil {
		t.Fatal(err)
	}
	if failed > 0 {
		t.Errorf("%d required scenarios failed through the bridge", failed)
	}
}

// suite is the official suite with what it is run against.
type suite struct {
	t       *testing.T
	l       *lab.Lab
	command []string
	dir     string
	results map[string]map[string]map[string]outcome // by revision, scenario and way
	order   map[string][]string                      // scenarios by revision
}

// outcome is what the suite says about one scenario.
type outcome struct {
	ok       bool
	required bool
	checks   string
}

func newSuite(t *testing.T) *suite {
	t.Helper()
	node := nodePackage(t)
	modules := npmInstall(t, "conformance-"+conformanceVersion+"-node-"+inspectorNode,
		"@modelcontextprotocol/conformance@"+conformanceVersion, node+"@"+inspectorNode)
	s := &suite{
		t: t, l: lab.New(t), dir: t.TempDir(),
		command: []string{filepath.Join(modules, node, "bin", "node"), filepath.Join(modules, "@modelcontextprotocol", "conformance", "dist", "index.js")},
		results: map[string]map[string]map[string]outcome{}, order: map[string][]string{},
	}
	for _, dir := range []string{s.dir, filepath.Dir(s.dir)} { // the ordinary user runs what is built there
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, program := range []string{
		"github.com/modelcontextprotocol/go-sdk/conformance/everything-server",
		"github.com/modelcontextprotocol/go-sdk/conformance/everything-client",
		"github.com/sandboxd/sandboxd/test/integration/bridgeclient",
	} {
		build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", filepath.Join(s.dir, filepath.Base(program)), program)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", program, err, out)
		}
	}
	return s
}

// bareServers starts the conformance server over HTTP, with sessions for the
// revisions that have them, and without.
func (s *suite) bareServers() map[string]string {
	urls := map[string]string{}
	for _, stateless := range []string{"false", "true"} {
		ln := s.l.Listen("127.0.0.1:0") // to find a port that is free
		address := ln.Addr().String()
		_ = ln.Close()
		cmd := s.l.Command(context.Background(), filepath.Join(s.dir, "everything-server"), "-http", address, "-stateless="+stateless)
		var log syncBuffer
		cmd.Stderr = &log
		if err := cmd.Start(); err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		until(s.t, "the bare server listens", time.Minute, func() bool {
			conn, err := s.l.Dial(s.t.Context(), "tcp", address)
			if err == nil {
				_ = conn.Close()
			}
			return err == nil
		})
		for _, revision := range revisions() {
			if (revision == "2026-07-28") == (stateless == "true") {
				urls[revision] = "http://" + address + "/"
			}
		}
	}
	return urls
}

// bridge serves the conformance server from a container and returns its URL.
func (s *suite) bridge() string {
	t := s.t
	e := startEngine(t)
	img, err := images.Scratch(t.TempDir(), "conformance", filepath.Join(s.dir, "everything-server"))
	if err != nil {
		t.Fatal(err)
	}
	rt, err := enginerpc.Dial(t.Context(), enginerpc.ClientConfig{Socket: e.socket})
	if err != nil {
		t.Fatal(err)
	}
	guard, err := netguard.New(netguard.Options{})
	if err != nil {
		t.Fatal(err)
	}
	registry, err := mcpbridge.New(mcpbridge.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, c := range []func(context.Context) error{registry.Close, rt.Close} {
			if err := c(ctx); err != nil {
				t.Error(err)
			}
		}
	})
	if err := registry.Add(t.Context(), mcpbridge.Server{Name: "conformance", Required: true, Start: func(ctx context.Context) (sandbox.Sandbox, error) {
		spec := sandbox.Spec{
			Tenant: "conformance", Name: "conformance", Isolation: sandbox.Container,
			Image: sandbox.Image{Digest: img.Digest, Path: img.Path}, Args: img.Entrypoint, Env: img.Env, Dir: img.Dir,
		}
		return rt.Start(ctx, spec, guard.For(netguard.Subject{Tenant: spec.Tenant, Sandbox: spec.Name}, nil))
	}}); err != nil {
		t.Fatal(err)
	}
	return s.listen(registry.Handler()) + "/mcp/conformance"
}

// listen serves inside the namespace.
func (s *suite) listen(h http.Handler) string {
	ln := s.l.Listen("127.0.0.1:0")
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	s.t.Cleanup(func() { _ = srv.Close(); <-done })
	return "http://" + net.JoinHostPort("127.0.0.1", fmt.Sprint(ln.Addr().(*net.TCPAddr).Port))
}

func (s *suite) servers(way, revision, url string) {
	s.run(way, revision, append([]string{"server", "--url", url}, required(revision)...))
}

// clients runs the scenarios that a program is the client of.
func (s *suite) clients(way, revision, program string) {
	args := append([]string{"client", "--command", filepath.Join(s.dir, program)}, required(revision)...)
	if revision == "2025-06-18" {
		args = append(args, "--suite", "all")
	}
	s.run(way, revision, args)
}

func (s *suite) run(way, revision string, args []string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 8*time.Minute)
	defer cancel()
	argv := append(slices.Clone(s.command), args...)
	cmd := s.l.Command(ctx, argv[0], argv[1:]...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run() // it fails for a scenario that fails: the table says which
	got := parseSummary(out.String())
	if len(got) == 0 {
		s.t.Fatalf("%s, %s: %v\n%s", way, revision, err, &out)
	}
	s.t.Logf("%s, %s: %d scenarios", way, revision, len(got))
	s.note(way, revision, got)
	if os.Getenv("SANDBOXD_CONFORMANCE_VERBOSE") != "" {
		s.t.Logf("%s", &out)
	}
}

type scored struct {
	name string
	outcome
}

func (s *suite) note(way, revision string, got []scored) {
	if s.results[revision] == nil {
		s.results[revision] = map[string]map[string]outcome{}
	}
	for _, g := range got {
		if s.results[revision][g.name] == nil {
			s.results[revision][g.name] = map[string]outcome{}
			s.order[revision] = append(s.order[revision], g.name)
		}
		s.results[revision][g.name][way] = g.outcome
	}
}

// parseSummary reads the lines that the suite ends with: one for each scenario,
// then those that its requirements do not count.
func parseSummary(out string) []scored {
	_, summary, _ := strings.Cut(out, "SUMMARY ===")
	var all []scored
	for line := range strings.SplitSeq(summary, "\n") {
		mark, rest, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || (mark != "✓" && mark != "✗") {
			continue
		}
		if name, checks, ok := strings.Cut(rest, ": "); ok {
			passed, _, _ := strings.Cut(checks, " passed")
			_, failed, _ := strings.Cut(checks, ", ")
			failed, _, _ = strings.Cut(failed, " failed")
			all = append(all, scored{name, outcome{ok: mark == "✓", required: true, checks: passed + "/" + failed}})
			continue
		}
		name, _, _ := strings.Cut(rest, " (")
		if i := slices.IndexFunc(all, func(s scored) bool { return s.name == name }); i >= 0 {
			all[i].required = false
		}
	}
	return all
}

// ways are the columns of the table.
func ways() []string {
	return []string{"server, bare", "server, sandboxed at /mcp/{server}", "client, bare", "client, the bridge's own"}
}

// table lays out what was found, and ends with how many of the required
// scenarios of all revisions passed through the bridge.
func (s *suite) table() (text string, failed int) {
	var b strings.Builder
	passed := 0
	for _, revision := range revisions() {
		for _, side := range [][]string{ways()[:2], ways()[2:]} {
			fmt.Fprintf(&b, "\n%s\n%-46s %-14s %s\n", revision, "scenario (checks passed/failed)", side[0], side[1])
			for _, name := range s.order[revision] {
				bare, ok := s.results[revision][name][side[0]]
				bridged, both := s.results[revision][name][side[1]]
				if !ok && !both {
					continue
				}
				note := ""
				switch {
				case !bridged.required:
					note = " (not required)"
				case bridged.ok:
					passed++
				default:
					failed++
				}
				fmt.Fprintf(&b, "%-46s %-14s %s%s\n", name, bare, bridged, note)
			}
		}
	}
	fmt.Fprintf(&b, "\n%d passed, %d failed\n", passed, failed)
	return b.String(), failed
}

func (o outcome) String() string {
	switch {
	case o.checks == "":
		return "-"
	case o.ok:
		return "pass " + o.checks
	}
	return "FAIL " + o.checks
}
