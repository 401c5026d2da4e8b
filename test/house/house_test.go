package house

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/sandboxd/sandboxd/"

// rule forbids imports by prefix to every file under folder (tests aside).
type rule struct {
	folder  string
	except  []string // folders below that have rules of their own
	forbids map[string]string
}

var rules = []rule{
	{folder: "sandbox", except: []string{"sandbox/wasm", "sandbox/container", "sandbox/engine", "sandbox/sandboxtest"}, forbids: map[string]string{
		module:       "the root package is the contract: it knows no room of the house",
		"github.com": "the contract needs the standard library alone",
	}},
	{folder: "sandbox/wasm", forbids: map[string]string{
		module + "netguard":      "a sandbox gets its egress handed in",
		module + "mcpbridge":     "a sandbox knows no MCP",
		"github.com/containerd/": "the WASM tier needs no engine",
	}},
	{folder: "sandbox/container", forbids: map[string]string{
		module + "netguard":          "the engine reads nothing that a stranger wrote",
		module + "mcpbridge":         "the engine reads nothing that a stranger wrote",
		module + "images":            "the engine builds nothing",
		"github.com/tetratelabs/":    "the engine runs containers",
		"net/http":                   "the engine reads nothing that a stranger wrote",
		"golang.org/x/net/":          "the engine reads nothing that a stranger wrote",
		"crypto/tls":                 "the engine reads nothing that a stranger wrote",
		"github.com/modelcontextpro": "the engine reads nothing that a stranger wrote",
	}},
	{folder: "sandbox/engine", forbids: map[string]string{
		module + "netguard":          "the engine's client is handed an Egress",
		module + "mcpbridge":         "the engine knows no MCP",
		"github.com/tetratelabs/":    "the engine runs containers",
		"net/http":                   "the engine reads nothing that a stranger wrote",
		"crypto/tls":                 "the engine reads nothing that a stranger wrote",
		"github.com/modelcontextpro": "the engine reads nothing that a stranger wrote",
	}},
	{folder: "netguard", forbids: map[string]string{
		module + "sandbox":   "the guard stands alone",
		module + "mcpbridge": "the guard stands alone",
		module + "policies":  "the guard stands alone: policies compiles to it",
		module + "images":    "the guard stands alone",
		"os/exec":            "the guard starts nothing",
	}},
	{folder: "mcpbridge", forbids: map[string]string{
		module + "netguard":       "HTTP clients are handed in",
		module + "policies":       "filters are handed in",
		module + "images":         "servers are started by what is handed in",
		module + "sandbox/":       "the bridge knows no runtime",
		"os/exec":                 "servers are started by what is handed in",
		"github.com/tetratelabs/": "the bridge knows no runtime",
		"github.com/containerd/":  "the bridge knows no runtime",
	}},
	{folder: "mcpbridge/remote", forbids: map[string]string{
		"os": "tokens are kept by the store that is handed in",
	}},
	{folder: "policies", forbids: map[string]string{
		module + "images": "policies are documents",
		"net/http":        "policies do no I/O beyond files",
		"os/exec":         "policies do no I/O beyond files",
	}},
	{folder: "images/catalog", except: []string{"images/catalog/gen"}, forbids: map[string]string{
		module + "images":  "a catalogue is files: nothing of it builds",
		module + "sandbox": "a catalogue is files: nothing of it runs",
		"os/exec":          "a catalogue is files: nothing of it runs",
	}},
	{folder: "cmd/sandboxd/internal/clients", forbids: map[string]string{
		module + "netguard":  "clients' files are read and written, nothing is dialled",
		module + "mcpbridge": "clients' files are read and written, nothing is spoken to",
		module + "sandbox":   "clients' files are read and written, nothing is started",
		"net/http":           "clients' files are read and written, nothing is dialled",
		"os/exec":            "clients' files are read and written, nothing is started",
	}},
	{folder: "images", except: []string{"images/wasm"}, forbids: map[string]string{
		module + "netguard":  "images has no dialer of its own",
		module + "mcpbridge": "images knows no MCP",
		"net/http":           "images has no dialer of its own",
	}},
	{folder: "images/gowasm", forbids: map[string]string{
		module + "sandbox": "what is built is run by others",
		module + "cmd":     "a room is not built on the hall",
	}},
}

func TestImportsFollowTheHouse(t *testing.T) {
	root := filepath.Join("..", "..")
	checked := 0
	for _, r := range rules {
		err := filepath.WalkDir(filepath.Join(root, r.folder), func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, _ := filepath.Rel(root, p)
			if d.IsDir() {
				if d.Name() == "testdata" || hasOwnModule(p, root) {
					return filepath.SkipDir
				}
				for _, e := range r.except {
					if rel == e {
						return filepath.SkipDir
					}
				}
				return nil
			}
			if !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go") {
				return nil
			}
			checked++
			for _, imp := range importsOf(t, p) {
				for prefix, why := range r.forbids {
					if strings.HasPrefix(imp, prefix) {
						t.Errorf("%s imports %s: %s", rel, imp, why)
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if checked < 20 {
		t.Fatalf("looked at %d files only: is the test run from its own folder?", checked)
	}
}

func TestEveryPackageHasAComment(t *testing.T) {
	root := filepath.Join("..", "..")
	commented := map[string]bool{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || d.Name() == ".git" || p != root && hasOwnModule(p, root)) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			return err
		}
		dir := filepath.Dir(p)
		commented[dir] = commented[dir] || f.Doc != nil
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for dir, ok := range commented {
		if !ok {
			t.Errorf("%s: no package comment says what it is for and may never do", dir)
		}
	}
}

// hasOwnModule reports whether dir is the root of a nested module.
func hasOwnModule(dir, root string) bool {
	if dir == root {
		return false
	}
	m, err := filepath.Glob(filepath.Join(dir, "go.mod"))
	return err == nil && len(m) > 0
}

func importsOf(t *testing.T, file string) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, s := range f.Imports {
		p, err := strconv.Unquote(s.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}
