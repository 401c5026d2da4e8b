package policies

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/netguard/casefile"
)

// examples stand for what a user's clients are configured with.
func examples([]string) map[string][]string {
	return map[string][]string{
		"npm":  {"https://npm.example.com"},
		"pypi": {"https://index.example.org/", "https://files.example.net:443", "http://plain.example.net:4873"},
		"go":   {"https://modules.example.com:8443", "https://sum.example.com"},
	}
}

// Each preset's cases say what it is for. They are run as every cases file is,
// with the preset as the policy of each.
func TestPresetsDecideAsTheirCasesSay(t *testing.T) {
	for _, name := range Presets() {
		t.Run(name, func(t *testing.T) {
			p, err := Loader{Registries: examples}.Preset(name)
			if err != nil {
				t.Fatal(err)
			}
			policy, err := json.Marshal(p.Egress)
			if err != nil {
				t.Fatal(err)
			}
			var file bytes.Buffer
			for _, c := range lines(t, "presets/"+name+".cases.jsonl") {
				if c["policy"] != nil {
					t.Fatalf("case %s has a policy of its own", c["id"])
				}
				c["policy"] = policy
				line, err := json.Marshal(c)
				if err != nil {
					t.Fatal(err)
				}
				file.Write(append(line, '\n'))
			}
			rep, err := casefile.Run(&file, casefile.Options{Strict: true})
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			if err := rep.Print(&out); err != nil {
				t.Fatal(err)
			}
			if rep.Failed > 0 || rep.Passed == 0 {
				t.Error(out.String())
			}
		})
	}
}

// A policy means the same in a policy file as in a cases file, whose reader is
// another one: what loads here loads there, and nothing else.
func TestFilesAndCasesReadPoliciesAlike(t *testing.T) {
	n := 0
	for _, c := range lines(t, "../netguard/casefile/testdata/cases.jsonl") {
		if string(c["input"]) != `{"load":true}` && string(c["input"]) != `{"load": true}` {
			continue
		}
		n++
		doc := fmt.Sprintf(`{"egress": %s}`, c["policy"])
		_, err := Loader{}.Parse("case", []byte(doc))
		if allowed := string(c["expect"]) == `"allow"`; allowed != (err == nil) {
			t.Errorf("%s %s: expected %s, got %v", c["id"], c["policy"], c["expect"], err)
		}
	}
	if n < 50 {
		t.Errorf("only %d policies were read", n)
	}
}

func lines(t *testing.T, path string) []map[string]json.RawMessage {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []map[string]json.RawMessage
	for s := bufio.NewScanner(f); s.Scan(); {
		var c map[string]json.RawMessage
		if err := json.Unmarshal(s.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		out = append(out, c)
	}
	return out
}
