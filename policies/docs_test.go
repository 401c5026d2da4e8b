package policies

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/netguard"
	"github.com/sandboxd/sandboxd/netguard/casefile"
)

const doc = "../docs/policy.md"

func manual(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// block is the n-th fenced block of a language.
func block(t *testing.T, text, lang string, n int) string {
	t.Helper()
	parts := strings.Split(text, "```"+lang+"\n")
	if len(parts) <= n+1 {
		t.Fatalf("%s has no %s block %d", doc, lang, n)
	}
	body, _, ok := strings.Cut(parts[n+1], "```")
	if !ok {
		t.Fatalf("%s: %s block %d does not end", doc, lang, n)
	}
	return body
}

// source parses a Go file of the repository.
func source(t *testing.T, path string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// The manual knows every reason, every key of a policy and of the operator's
// settings, and every field of a record.
func TestTheManualIsWhole(t *testing.T) {
	text := manual(t)
	missing := func(kind, word string) {
		if !strings.Contains(text, "`"+word+"`") {
			t.Errorf("%s does not name the %s %s", doc, kind, word)
		}
	}
	reasons := 0
	ast.Inspect(source(t, "../netguard/reason.go"), func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 || len(spec.Names) != 1 || !strings.HasPrefix(spec.Names[0].Name, "Reason") {
			return true
		}
		if lit, ok := spec.Values[0].(*ast.BasicLit); ok {
			word, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Fatal(err)
			}
			reasons++
			missing("reason", word)
		}
		return true
	})
	if reasons < 40 {
		t.Errorf("only %d reasons were found", reasons)
	}
	keys := 0
	for _, path := range []string{"decode.go", "egress.go", "../cmd/sandboxd/internal/config/operator.go"} {
		ast.Inspect(source(t, path), func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if sel, ok := call.Fun.(*ast.SelectorExpr); !ok || sel.Sel.Name != "Map" {
				return true
			}
			for _, arg := range call.Args[2:] {
				if lit, ok := arg.(*ast.BasicLit); ok {
					word, err := strconv.Unquote(lit.Value)
					if err != nil {
						t.Fatal(err)
					}
					keys++
					if strings.Contains(path, "operator.go") && strings.Contains(block(t, text, "yaml", 1), word+":") {
						continue
					}
					missing("key", word)
				}
			}
			return true
		})
	}
	if keys < 40 {
		t.Errorf("only %d keys were found", keys)
	}
	for field := range reflect.TypeFor[netguard.Record]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		missing("field", name)
	}
	for _, name := range append(Presets(), RegistryNames()...) {
		if !strings.Contains(text, "`"+name+"`") && !strings.Contains(text, "{{registry."+name+"}}") {
			t.Errorf("%s does not name %s", doc, name)
		}
	}
}

func TestTheManualsExamplesHold(t *testing.T) {
	text := manual(t)
	p, err := Loader{Registries: examples}.Parse("example", []byte(block(t, text, "yaml", 0)))
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Warnings) > 0 || len(p.Egress.Allow) != 5 {
		t.Errorf("%+v, %v", p.Egress.Allow, p.Warnings)
	}
	rep, err := casefile.Run(strings.NewReader(block(t, text, "json", 0)), casefile.Options{Strict: true})
	if err != nil || rep.Passed != 1 || rep.Failed != 0 {
		t.Errorf("%+v, %v", rep, err)
	}
}
