package strict

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// faults parses a document, takes one value of each kind and renders what was
// reported, without the file's name.
func faults(t *testing.T, doc string) []string {
	t.Helper()
	r := NewReporter("f")
	if root := ParseYAML(r, []byte(doc)); root != nil {
		m := r.Map(root, "", "text", "flag", "count", "share", "wait", "size", "names", "sub", "list")
		m.String("text")
		m.Bool("flag")
		m.Int("count", 1, 10)
		m.Number("share", 0.5, 2)
		m.Duration("wait")
		m.Bytes("size")
		m.Strings("names")
		m.List("list")
		r.Map(m.Get("sub"), m.Path("sub"), "inner", "stop_grace").Bool("inner")
	}
	err := r.Err()
	if err == nil {
		return nil
	}
	lines := strings.Split(err.Error(), "\n")
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], "f:")
	}
	return lines
}

func TestFaultsHaveTheirPlaces(t *testing.T) {
	for _, tc := range []struct {
		name, doc string
		want      []string
	}{
		{"good", "text: a\nflag: true\ncount: 3\nshare: 1\nwait: 10m\nsize: 512MiB\nnames: []\nsub: {inner: false}\n", nil},
		{"null values are missing ones", "text:\nflag: ~\nsub: null\n", nil},
		{"all kinds wrong", "text: 1\nflag: yes\ncount: a\nshare: .nan\nwait: 5\nsize: -1\nnames: a\nsub: []\nlist: {}\n", []string{
			"1:7: text: want a string, got a whole number: put it in quotes",
			"2:7: flag: want true or false, got a string",
			"3:8: count: want a whole number, got a string",
			"4:8: share: want a number from 0.5 to 2",
			"5:7: wait: want a duration above zero such as 90s, 10m or 1h30m",
			"6:7: size: want a size above zero such as 512MiB, 1GiB or a whole number of bytes",
			"7:8: names: want a list, got a string",
			"8:6: sub: want a mapping, got a list",
			"9:7: list: want a list, got a mapping",
		}},
		{"numbers in other bases", "count: 010\nsize: 0x10\n", []string{
			"1:8: count: want a whole number from 1 to 10 in plain decimal digits",
			"2:7: size: want a size above zero such as 512MiB, 1GiB or a whole number of bytes",
		}},
		{"size beyond 64 bits", "size: 9999999999GiB\n", []string{
			"1:7: size: want a size above zero such as 512MiB, 1GiB or a whole number of bytes",
		}},
		{"item of a list", "names:\n  - a\n  - true\n", []string{
			"3:5: names[1]: want a string, got true or false: put it in quotes",
		}},
		{"unknown keys", "txet: a\nsub:\n  stop-grace: 1\n  zzzzzzzz: 1\n", []string{
			`1:1: unknown key "txet": did you mean text?`,
			`3:3: sub: unknown key "stop-grace": did you mean stop_grace?`,
			`4:3: sub: unknown key "zzzzzzzz": the keys here are inner, stop_grace`,
		}},
		{"repeated key", "text: a\nflag: true\ntext: b\n", []string{
			`3:1: key "text" was given before, at line 1`,
		}},
		{"keys that are no strings", "1: a\n[a]: b\ntrue: c\n", []string{
			"1:1: a key must be a string: put it in quotes",
			"2:1: a key must be a string: put it in quotes",
			"3:1: a key must be a string: put it in quotes",
		}},
		{"merge key", "sub: &a {inner: true}\nlist:\n  - {<<: *a}\n", []string{
			"3:6: list[0]: merge keys (<<) are not supported: write the keys out",
		}},
		{"alias is shown where it stands", "list: &x [a]\ntext: *x\n", []string{
			"2:7: text: want a string, got a list",
		}},
		{"tags", "text: !!binary YQ==\nlist: !mine [a]\n", []string{
			`1:7: text: tag "!!binary" is not supported`,
			`2:7: list: tag "!mine" is not supported`,
		}},
		{"second document", "text: a\n---\ntext: b\n", []string{
			"2:1: a second document begins here: one file holds one document",
		}},
		{"empty", "", []string{"1:1: the document is empty"}},
		{"only a comment", "# nothing\n", []string{"1:1: the document is empty"}},
		{"not a mapping", "- a\n", []string{"1:1: want a mapping, got a list"}},
		{"not UTF-8", "text: a\nflag: \xff\n", []string{"2:1: the document is not UTF-8"}},
		{"keys that would break the report", "\"a\\nb: fine\": 1\n", []string{
			`1:1: unknown key "a\nb: fine": the keys here are text, flag, count, share, wait, size, names, sub, list`,
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if d := cmp.Diff(tc.want, faults(t, tc.doc)); d != "" {
				t.Errorf("faults (-want +got):\n%s", d)
			}
		})
	}
}

func TestSyntaxErrorHasItsLine(t *testing.T) {
	for doc, line := range map[string]string{
		"text: a\nflag: {true\n":          "2",
		"text: a\n\nflag: a: b\n":         "3",
		"text: a\nnames:\n  - a\n b: c\n": "4",
		"text: \"a\n\n\n":                 "3",
		"{a":                              "1",
		"text: a\n\tflag: b\n":            "2",
		"text: *nowhere\n":                "1",
	} {
		got := faults(t, doc)
		if len(got) != 1 || !strings.HasPrefix(got[0], line+":1: not valid YAML: ") {
			t.Errorf("%q: got %q, want line %s", doc, got, line)
		}
	}
}

func TestBoundsOfADocument(t *testing.T) {
	bomb := "list: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 9; i++ {
		one := fmt.Sprintf("*a%d", i-1)
		bomb += fmt.Sprintf("l%d: &a%d [%s]\n", i, i, strings.Repeat(one+", ", 9)+one)
	}
	for _, tc := range []struct{ name, doc, says string }{
		{"aliases that multiply", bomb, "aliases counted each time"},
		{"alias inside its own anchor", "list: &a [*a]\n", "nested more than"},
		{"deep lists", "list: " + strings.Repeat("[", 100) + strings.Repeat("]", 100), "nested more than"},
		{"many values", "list: [" + strings.Repeat("a,", MaxNodes) + "]", "more than 50000 values"},
		{"many bytes", "text: " + strings.Repeat("a", MaxBytes), "more than the 1048576 that are read"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := faults(t, tc.doc); len(got) != 1 || !strings.Contains(got[0], tc.says) {
				t.Errorf("got %.300q", got)
			}
		})
	}
}

func TestFaultsAreBounded(t *testing.T) {
	got := faults(t, "names: ["+strings.Repeat("1,", 500)+"]\n")
	if len(got) != maxFaults+1 || !strings.Contains(got[maxFaults], "400 more faults") {
		t.Errorf("%d faults, the last %q", len(got), got[len(got)-1])
	}
}

func TestAtFindsTheDeepestNode(t *testing.T) {
	r := NewReporter("f")
	root := ParseYAML(r, []byte("allow:\n  - host: a\n    ports: [1, 2]\n  - cidr: b\n"))
	for path, line := range map[string]int{
		"": 1, "allow": 2, "allow[0].host": 2, "allow[0].ports[1]": 3, "allow[1].cidr": 4,
		"allow[1].ports[0]": 4, "allow[7].host": 2, "allow[x]": 2, "mode": 1, "allow[-1]": 2, "allow[": 2,
	} {
		if n := root.At(path); n == nil || n.Line != line {
			t.Errorf("At(%q) is %+v, want line %d", path, n, line)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"allow", "deny", "mode", "ports", "allow_local_endpoint"}
	for word, want := range map[string]string{
		"alow": "allow", "moed": "mode", "port": "ports", "AllowLocalEndpoint": "allow_local_endpoint",
		"xyz": "", "a": "", strings.Repeat("allow", 99): "",
	} {
		if got := Nearest(word, known); got != want {
			t.Errorf("Nearest(%.20q) = %q, want %q", word, got, want)
		}
	}
}

func FuzzParseYAML(f *testing.F) {
	for _, seed := range []string{
		"a: 1\nb: [x, {y: z}]\n", "a: &x [1]\nb: *x\n", "a: &a [*a]", "<<: {a: b}", "---\n---\n", "\xff", "? [a]\n: b\n",
		"a: !!binary x", "a: |\n  text\n", "\ufeffa: b", "a: \"\\x00\"",
	} {
		f.Add([]byte(seed))
	}
	if data, err := os.ReadFile("../presets/registries.yaml"); err == nil {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := NewReporter("f")
		root := ParseYAML(r, data)
		if root == nil && r.Err() == nil {
			t.Fatal("neither a tree nor a fault")
		}
		lines := strings.Count(string(data), "\n") + strings.Count(string(data), "\r") +
			strings.Count(string(data), "\u0085") + strings.Count(string(data), "\u2028") + strings.Count(string(data), "\u2029") + 2
		walk(root, func(n *Node) {
			if n.Kind < Null || n.Kind > Mapping || n.Line < 1 || n.Line > lines || n.Col < 1 {
				t.Fatalf("node %+v", n)
			}
		})
		for _, x := range r.faults {
			if x.Line < 1 || x.Line > lines || x.Col < 1 || strings.ContainsAny(x.Path, "\n\r") {
				t.Fatalf("fault %+v", x)
			}
		}
	})
}

func walk(n *Node, visit func(*Node)) {
	if n == nil {
		return
	}
	visit(n)
	for _, i := range n.Items {
		walk(i, visit)
	}
	for _, f := range n.Fields {
		walk(f.Value, visit)
	}
}
