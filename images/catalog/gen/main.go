// Command gen makes a catalogue's index out of what a run of a corpus has seen
// (make coverage-servers writes it) and of hints that people wrote: short names
// and the hosts that a server's own code names. It starts and fetches nothing,
// and takes in only servers that listed the same tools in every tier.
package main

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/images/catalog"
)

//go:embed hints.json
var hintsFile []byte

type hint struct {
	Short string   `json:"short"`
	Hosts []string `json:"hosts"`
	Mount string   `json:"mount"`
}

// row is what a run of the corpus has written about one server.
type row struct {
	Kind    string            `json:"kind"`
	Package string            `json:"package"`
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env"`
	Lock    struct {
		Version   string `json:"version"`
		Integrity string `json:"integrity"`
	} `json:"lock"`
	Manifest struct {
		Name        string `json:"mcpName"`
		Description string `json:"description"`
	} `json:"package_json"`
	Runs map[string]struct {
		Tools     []string `json:"tools"`
		ToolsHash string   `json:"tools_hash"`
	} `json:"runs"`
}

func main() {
	report := flag.String("report", "", "what make coverage-servers wrote (JSON lines)")
	out := flag.String("out", "images/catalog/index.json", "the index to write")
	version := flag.Int64("version", 1, "of the index")
	created := flag.String("created", time.Now().UTC().Format(time.DateOnly), "date of the index")
	flag.Parse()
	if err := run(*report, *out, *version, *created); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(report, out string, version int64, created string) error {
	day, err := time.Parse(time.DateOnly, created)
	if err != nil {
		return err
	}
	var hints map[string]hint
	if err := json.Unmarshal(hintsFile, &hints); err != nil {
		return err
	}
	f, err := os.Open(report)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read from
	x := catalog.Index{Meta: catalog.IndexMeta{Catalog: catalog.Release{
		Format: 1, Name: "sandboxd", Version: version, Created: day, Expires: day.AddDate(1, 0, 0),
	}}}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var r row
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return err
		}
		h, ok := hints[r.Package]
		if !ok || r.Kind != "npm" {
			continue
		}
		if e, ok := entry(r, h); ok {
			x.Servers = append(x.Servers, e)
		} else {
			fmt.Fprintln(os.Stderr, "gen: left out, since its tools differ between tiers:", r.Package)
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	slices.SortFunc(x.Servers, func(a, b catalog.Entry) int { return strings.Compare(a.Meta.Catalog.Short, b.Meta.Catalog.Short) })
	x.Metadata.Count = len(x.Servers)
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(x); err != nil {
		return err
	}
	if _, err := catalog.Parse(b.Bytes()); err != nil {
		return err
	}
	return os.WriteFile(out, b.Bytes(), 0o644)
}

var secretName = regexp.MustCompile(`(?i)token|key|secret|pass`)

func entry(r row, h hint) (catalog.Entry, bool) {
	seen := r.Runs["container"]
	if seen.ToolsHash == "" || seen.ToolsHash != r.Runs["gvisor"].ToolsHash {
		return catalog.Entry{}, false
	}
	name := r.Manifest.Name
	if name == "" {
		name = "io.github.sandboxd/" + h.Short
	}
	p := catalog.Package{RegistryType: "npm", Identifier: r.Package, Version: r.Lock.Version, Transport: catalog.Transport{Type: "stdio"}}
	for _, a := range r.Args {
		p.Arguments = append(p.Arguments, catalog.Argument{Type: "positional", Value: strings.ReplaceAll(a, "{dir}", h.Mount)})
	}
	for k, v := range r.Env {
		variable := catalog.Variable{Name: k, Required: true}
		if variable.Secret = secretName.MatchString(k); variable.Secret {
			variable.Placeholder = v
		} else {
			variable.Value = v
		}
		p.Variables = append(p.Variables, variable)
	}
	slices.SortFunc(p.Variables, func(a, b catalog.Variable) int { return strings.Compare(a.Name, b.Name) })
	facts := catalog.Facts{
		Short: h.Short, Integrity: r.Lock.Integrity, Tools: seen.Tools, ToolsHash: seen.ToolsHash, Mount: h.Mount,
		Tiers: []string{"container", "gvisor"}, Platform: "linux/" + runtime.GOARCH,
	}
	if len(h.Hosts) > 0 {
		facts.Policy = policy(h.Hosts)
	}
	return catalog.Entry{
		Server: catalog.Server{Name: name, Description: describe(r.Manifest.Description), Version: r.Lock.Version, Packages: []catalog.Package{p}},
		Meta:   catalog.EntryMeta{Catalog: facts},
	}, true
}

// describe cuts a description to the hundred characters that the registry
// allows.
func describe(s string) string {
	r := []rune(strings.Join(strings.Fields(s), " "))
	if len(r) > 100 {
		r = append(r[:99], '…')
	}
	return string(r)
}

func policy(hosts []string) json.RawMessage {
	type rule struct {
		Host string `json:"host"`
	}
	var rules []rule
	for _, h := range hosts {
		rules = append(rules, rule{h})
	}
	b, err := json.Marshal(map[string]any{"egress": map[string]any{"mode": "allowlist", "allow": rules}})
	if err != nil { // cannot happen with strings
		return nil
	}
	return b
}
