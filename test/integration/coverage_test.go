package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/sandboxd/sandboxd/mcpbridge"
	"github.com/sandboxd/sandboxd/test/integration/lab"
)

// A corpus is a file of JSON lines, one server each. {dir} and {file} in its
// arguments stand for a folder and a file that the test makes. A kind is npm
// or go.
type corpusEntry struct {
	Kind    string            `json:"kind"`
	Package string            `json:"package"`
	Version string            `json:"version"`
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env"`
}

// coverageRow is what one server did, as SANDBOXD_COVERAGE_OUT gets it: the
// input of the catalogue's generator.
type coverageRow struct {
	corpusEntry
	Digest    string                  `json:"digest,omitempty"`
	SizeBytes int64                   `json:"size_bytes,omitempty"`
	Build     float64                 `json:"build_seconds,omitempty"`
	Lock      json.RawMessage         `json:"lock,omitempty"` // of the image, but for its tree
	Manifest  json.RawMessage         `json:"package_json,omitempty"`
	Error     string                  `json:"error,omitempty"` // of the build
	Runs      map[string]*coverageRun `json:"runs,omitempty"`  // bare, container, gvisor
}

// coverageRun is one start of it.
type coverageRun struct {
	Start     float64  `json:"start_seconds,omitempty"` // to the answer to initialize
	Tools     []string `json:"tools,omitempty"`
	ToolsHash string   `json:"tools_hash,omitempty"`
	Error     string   `json:"error,omitempty"`
}

// TestCoverage runs every server of a corpus bare, in container and in gvisor,
// under the empty egress policy, and requires that whatever lists bare lists
// the same tools in both tiers. The corpus is SANDBOXD_CORPUS; without one,
// six small servers are run. SANDBOXD_COVERAGE_CACHE keeps their images.
func TestCoverage(t *testing.T) {
	entries := smallCorpus()
	images := cache
	if path := os.Getenv("SANDBOXD_CORPUS"); path != "" {
		entries = readCorpus(t, path)
		if images = os.Getenv("SANDBOXD_COVERAGE_CACHE"); images == "" {
			images = lab.UserDir(t)
		}
	}
	e := startEngine(t)
	c := &coverage{e: e, cache: images}
	rows := make([]*coverageRow, len(entries))
	two := make(chan struct{}, 2)
	var wg sync.WaitGroup
	for i, entry := range entries {
		two <- struct{}{}
		wg.Go(func() {
			defer func() { <-two }()
			rows[i] = c.cover(t, entry)
			t.Logf("%s: %s", entry.Package, rows[i].verdicts())
			c.write(t, rows[i])
		})
	}
	wg.Wait()
	var table strings.Builder
	fmt.Fprintln(&table, "| package | version | MiB | build s | bare | container | gvisor | reason if not |\n| --- | --- | --- | --- | --- | --- | --- | --- |")
	for _, r := range rows {
		fmt.Fprintln(&table, r.table())
		for _, tier := range containerTiers {
			if bare := r.Runs["bare"]; bare != nil && bare.Error == "" && !slices.Equal(bare.Tools, r.Runs[tier].Tools) {
				t.Errorf("%s lists %d tools bare and %d in %s: %s", r.Package, len(bare.Tools), len(r.Runs[tier].Tools), tier, r.Runs[tier].Error)
			}
		}
		if r.Error != "" && os.Getenv("SANDBOXD_CORPUS") == "" {
			t.Errorf("%s: %s", r.Package, r.Error)
		}
	}
	t.Log("\n" + table.String())
}

// smallCorpus is what is run everywhere: small, and of different makes.
func smallCorpus() []corpusEntry {
	npm := func(pkg, version, env string, args ...string) corpusEntry {
		e := corpusEntry{Kind: "npm", Package: pkg, Version: version, Args: args}
		if name, value, ok := strings.Cut(env, "="); ok {
			e.Env = map[string]string{name: value}
		}
		return e
	}
	return []corpusEntry{
		npm("@modelcontextprotocol/server-brave-search", "0.6.2", "BRAVE_API_KEY=dummy"),
		npm("@modelcontextprotocol/server-postgres", "0.6.2", "", "postgresql://u:p@db.example.com:5432/x"),
		npm("@cyanheads/git-mcp-server", "2.15.3", "MCP_TRANSPORT_TYPE=stdio"),
		npm("@modelcontextprotocol/server-sequential-thinking", "2026.8.31", ""),
		npm("@modelcontextprotocol/server-github", "2025.4.8", "GITHUB_PERSONAL_ACCESS_TOKEN=dummy"),
		npm("@modelcontextprotocol/server-filesystem", "2026.8.31", "", "{dir}"),
	}
}

func readCorpus(t *testing.T, path string) (out []corpusEntry) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	only := os.Getenv("SANDBOXD_CORPUS_ONLY") // packages, separated by commas
	for lines.Scan() {
		var e corpusEntry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if only == "" || slices.Contains(strings.Split(only, ","), e.Package) {
			out = append(out, e)
		}
	}
	if len(out) == 0 {
		t.Fatalf("%s holds no server", path)
	}
	return out
}

type coverage struct {
	e     *engine
	cache string
	mu    sync.Mutex
}

func (c *coverage) write(t *testing.T, r *coverageRow) {
	path := os.Getenv("SANDBOXD_COVERAGE_OUT")
	if path == "" {
		return
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Error(err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = f.Write(append(b, '\n'))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Error(err)
	}
}

// command is the server as a client's configuration has it.
func (e corpusEntry) command() []string {
	if e.Kind == "go" {
		version := e.Version
		if version == "?" {
			version = "latest"
		}
		return append([]string{"go", "run", e.Package + "@" + version}, e.Args...)
	}
	return append([]string{"npx", "-y", e.Package + "@" + e.Version}, e.Args...)
}

// cover builds one server and runs it three times.
func (c *coverage) cover(t *testing.T, entry corpusEntry) *coverageRow {
	r := &coverageRow{corpusEntry: entry, Runs: map[string]*coverageRun{}}
	home := lab.UserDir(t)
	if err := c.build(t, home, r); err != nil {
		r.Error = err.Error()
		return r
	}
	root, argv, err := c.unpack(r)
	if root != "" {
		defer os.RemoveAll(root)
	}
	if err != nil {
		r.Error = err.Error()
		return r
	}
	r.Runs["bare"] = c.bare(t, r, root, argv)
	for _, tier := range containerTiers {
		r.Runs[tier] = c.sandboxed(t, r, tier)
	}
	return r
}

func (c *coverage) user(ctx context.Context, home string, args ...string) *exec.Cmd {
	cmd := lab.UserCommand(ctx, home, program, args...)
	cmd.Env = append(cmd.Env, append(c.e.env(), "SANDBOXD_CACHE="+c.cache)...)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

func (c *coverage) build(t *testing.T, home string, r *coverageRow) error {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	start := time.Now()
	cmd := c.user(ctx, home, append([]string{"image", "build", "--json", "--"}, r.command()...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("build: %w: %s", err, ending(stderr.String()))
	}
	r.Build = time.Since(start).Seconds()
	var img struct {
		Ref    string `json:"ref"`
		Digest string `json:"digest"`
		Size   int64  `json:"size_bytes"`
	}
	if err := json.Unmarshal(out, &img); err != nil {
		return err
	}
	r.Digest, r.SizeBytes = img.Digest, img.Size
	lock, err := c.user(ctx, home, "image", "lock", img.Ref).Output()
	if err != nil {
		return err
	}
	members := map[string]json.RawMessage{}
	if err := json.Unmarshal(lock, &members); err != nil {
		return err
	}
	delete(members, "npm") // megabytes
	delete(members, "base")
	r.Lock, err = json.Marshal(members)
	return err
}

// unpack lays the image's files out in a folder, and says how to start the
// server there without any sandbox.
func (c *coverage) unpack(r *coverageRow) (root string, argv []string, err error) {
	blob := func(digest string) string {
		return filepath.Join(c.cache, "images", "oci", "blobs", strings.Replace(digest, ":", "/", 1))
	}
	var manifest v1.Manifest
	var image v1.Image
	if err := decodeFile(blob(r.Digest), &manifest); err != nil {
		return "", nil, err
	}
	if err := decodeFile(blob(manifest.Config.Digest.String()), &image); err != nil {
		return "", nil, err
	}
	if root, err = os.MkdirTemp("/var/tmp", "sb-bare-"); err != nil {
		return "", nil, err
	}
	for _, l := range manifest.Layers {
		if out, err := exec.Command("tar", "-xf", blob(l.Digest.String()), "-C", root, "--no-same-owner").CombinedOutput(); err != nil {
			return root, nil, fmt.Errorf("%w: %s", err, out)
		}
	}
	if err := os.Chmod(root, 0o755); err != nil {
		return root, nil, err
	}
	for _, a := range image.Config.Entrypoint {
		if filepath.IsAbs(a) {
			a = filepath.Join(root, a)
		}
		argv = append(argv, a)
	}
	r.Manifest, _ = os.ReadFile(filepath.Join(root, "app", "node_modules", r.Package, "package.json")) // only npm's have one
	return root, argv, nil
}

func decodeFile(path string, into any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, into)
}

const listBound = 90 * time.Second

// bare starts the server's files with the rights of an ordinary user, without
// a sandbox but for a namespace that has no way out.
func (c *coverage) bare(t *testing.T, r *coverageRow, root string, argv []string) *coverageRun {
	home := lab.UserDir(t)
	dir, file := placeholders(t, home)
	ctx, cancel := context.WithTimeout(t.Context(), listBound)
	defer cancel()
	id := strconv.Itoa(lab.UserID)
	line := append([]string{
		"-n", "--pid", "--fork", "--kill-child", "--mount-proc", "--", "sh", "-c", `ip link set lo up && exec "$@"`, "sh", "setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--",
	}, argv...)
	cmd := exec.CommandContext(ctx, "unshare", append(line, r.args(dir, file)...)...)
	cmd.Dir = home
	cmd.Env = append([]string{"PATH=" + filepath.Join(root, "usr/local/bin") + ":/usr/bin:/bin", "HOME=" + home, "LANG=C.UTF-8"}, r.env(dir, file)...)
	return runCovered(ctx, cmd)
}

func (c *coverage) sandboxed(t *testing.T, r *coverageRow, tier string) *coverageRun {
	home := lab.UserDir(t)
	dir, file := placeholders(t, home)
	ctx, cancel := context.WithTimeout(t.Context(), listBound+time.Minute) // the first start hands the image over
	defer cancel()
	args := []string{"run", "--isolation", tier, "--mount", dir + ":/data/dir:rw", "--mount", file + ":/data/file"}
	for _, kv := range r.env("/data/dir", "/data/file") {
		args = append(args, "--env", kv)
	}
	line := r.command()
	line = append(append(args, "--"), line[:len(line)-len(r.Args)]...)
	return runCovered(ctx, c.user(ctx, home, append(line, r.args("/data/dir", "/data/file")...)...))
}

func runCovered(ctx context.Context, cmd *exec.Cmd) *coverageRun {
	defs, started, err := listTools(ctx, cmd)
	run := &coverageRun{Start: started.Seconds()}
	if err == nil && len(defs) == 0 {
		err = errors.New("it listed no tools")
	}
	if err == nil {
		run.ToolsHash, err = mcpbridge.ToolsHash(defs)
	}
	if err != nil {
		run.Error = err.Error()
		return run
	}
	for _, d := range defs {
		var def struct {
			Name string `json:"name"`
		}
		_ = json.Unmarshal(d, &def) // ToolsHash has seen that it is there
		run.Tools = append(run.Tools, def.Name)
	}
	slices.Sort(run.Tools)
	return run
}

// placeholders are a folder and a file of the ordinary user's.
func placeholders(t *testing.T, home string) (dir, file string) {
	t.Helper()
	dir, file = filepath.Join(home, "dir"), filepath.Join(home, "file.json")
	err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(file, []byte("{}"), 0o600),
		os.Chown(dir, lab.UserID, lab.UserID), os.Chown(file, lab.UserID, lab.UserID))
	if err != nil {
		t.Error(err)
	}
	return dir, file
}

func (e corpusEntry) args(dir, file string) (out []string) {
	r := strings.NewReplacer("{dir}", dir, "{file}", file)
	for _, a := range e.Args {
		out = append(out, r.Replace(a))
	}
	return out
}

func (e corpusEntry) env(dir, file string) (out []string) {
	r := strings.NewReplacer("{dir}", dir, "{file}", file)
	for k, v := range e.Env {
		out = append(out, k+"="+r.Replace(v))
	}
	slices.Sort(out)
	return out
}

// verdicts is one line about the runs.
func (r *coverageRow) verdicts() string {
	if r.Error != "" {
		return lastLine(r.Error)
	}
	var out []string
	for _, where := range append([]string{"bare"}, containerTiers...) {
		out = append(out, where+" "+r.cell(where))
	}
	return strings.Join(out, ", ")
}

func (r *coverageRow) cell(where string) string {
	run := r.Runs[where]
	switch {
	case run == nil:
		return "-"
	case run.Error != "":
		return "no"
	case where != "bare" && run.ToolsHash != r.Runs["bare"].ToolsHash:
		return fmt.Sprintf("%d tools, definitions differ, %.1f s", len(run.Tools), run.Start)
	}
	return fmt.Sprintf("%d tools, %.1f s", len(run.Tools), run.Start)
}

func (r *coverageRow) table() string {
	reason := r.Error
	for _, run := range []*coverageRun{r.Runs["gvisor"], r.Runs["container"], r.Runs["bare"]} {
		if run != nil && run.Error != "" {
			reason = run.Error
		}
	}
	return fmt.Sprintf("| %s | %s | %.0f | %.0f | %s | %s | %s | %s |", r.Package, r.Version, float64(r.SizeBytes)/(1<<20), r.Build,
		r.cell("bare"), r.cell("container"), r.cell("gvisor"), strings.ReplaceAll(lastLine(reason), "|", `\|`))
}

// lastLine is what of a server's complaint fits a table.
func lastLine(s string) string {
	lines := strings.FieldsFunc(s, func(r rune) bool { return r == '\n' })
	if len(lines) == 0 {
		return ""
	}
	first, last := lines[0], lines[len(lines)-1]
	if first != last {
		first += " … " + last
	}
	return first[:min(len(first), 200)]
}
