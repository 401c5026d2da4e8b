package gowasm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/images"
)

// goPackage is what go list says of a package, as far as it is used.
type goPackage struct {
	ImportPath     string
	Name           string
	Dir            string
	Standard       bool
	Module         *goModule
	GoFiles        []string
	SFiles         []string
	HFiles         []string
	SysoFiles      []string
	EmbedFiles     []string
	IgnoredGoFiles []string
	Imports        []string
	Error          *struct {
		ImportStack []string
		Err         string
	}
}

type goModule struct {
	Path, Version string
	Dir           string
	Main          bool
	Replace       *goModule
}

// sealed is the module's name and version if its content is vouched for by
// go.sum, and empty if it is a folder of this host.
func (m *goModule) sealed() string {
	if m == nil || m.Main {
		return ""
	}
	if m.Replace != nil {
		m = m.Replace
	}
	if m.Version == "" {
		return ""
	}
	return m.Path + "@" + m.Version
}

// buildTags: time zones are built in, since a guest has no files of them.
const buildTags = "timetzdata"

// list returns the package to build, last, after all that it needs.
func list(ctx context.Context, g goCommand, dir, pkg string) ([]goPackage, error) {
	stdout, stderr, err := g.run(ctx, dir, "list", "-deps", "-e", "-tags="+buildTags,
		"-json=ImportPath,Name,Dir,Standard,Module,GoFiles,SFiles,HFiles,SysoFiles,EmbedFiles,IgnoredGoFiles,Imports,Error", "--", pkg)
	if err != nil {
		if strings.Contains(string(stderr), "requires go >=") {
			return nil, &images.Error{Kind: images.ErrTool, What: "a newer Go is needed: " + quoted(lastLine(stderr, err)), Next: "install that Go; none is fetched on a module's word"}
		}
		return nil, toolFailed(ctx, "go list", stderr, err)
	}
	var out []goPackage
	for d := json.NewDecoder(bytes.NewReader(stdout)); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		out = append(out, p)
	}
	if len(out) == 0 {
		return nil, &images.Error{Kind: images.ErrNotFound, What: "no Go package in " + quoted(pkg), Next: targetForms}
	}
	return out, nil
}

// Finding is one thing that cannot work in a module, or may not.
type Finding struct {
	// Kind is cgo, system, missing or compile for what stops a build, exec,
	// plugin or raw-socket for what fails only where it is used.
	Kind string `json:"kind"`
	// Package is its import path, with the module's version after @ where it
	// has one.
	Package string `json:"package"`
	// Detail is one clause for a person.
	Detail string `json:"detail"`
	// Library says that only libraries do it, and the server perhaps never.
	Library bool `json:"library,omitempty"`
}

// inspect looks through the packages of a build before it begins: fatal is
// what cannot be compiled, warnings what will fail if it is ever used.
func inspect(packages []goPackage) (fatal, warnings []Finding) {
	importers, own := map[string][]string{}, map[string]bool{}
	server := packages[len(packages)-1].Module
	for _, p := range packages {
		own[p.ImportPath] = p.Module != nil && server != nil && p.Module.Path == server.Path
		if f, ok := p.broken(); ok {
			fatal = append(fatal, f)
		}
		if p.Standard {
			continue
		}
		for _, imp := range p.Imports {
			importers[imp] = append(importers[imp], p.ImportPath)
		}
	}
	for _, w := range []struct{ imp, kind, detail string }{
		{"os/exec", "exec", "can start programs, which always fails there"},
		{"plugin", "plugin", "can load plugins, which always fails there"},
		{"golang.org/x/net/icmp", "raw-socket", "can open raw sockets, which always fails there"},
	} {
		if by := importers[w.imp]; len(by) > 0 {
			slices.Reverse(by) // the server's own packages come first then
			detail := w.detail
			if len(by) > 1 {
				detail += fmt.Sprintf("; so can %d more: %s", len(by)-1, cut(by[1:]))
			}
			library := !slices.ContainsFunc(by, func(p string) bool { return own[p] })
			warnings = append(warnings, Finding{Kind: w.kind, Package: by[0], Detail: detail, Library: library})
		}
	}
	return fatal, warnings
}

// cut names the first few.
func cut(names []string) string {
	const few = 4
	if len(names) > few {
		return strings.Join(names[:few], ", ") + ", …"
	}
	return strings.Join(names, ", ")
}

// broken says why a package cannot be built, if it is plain already.
func (p goPackage) broken() (Finding, bool) {
	if p.Error == nil {
		return Finding{}, false
	}
	f := Finding{Kind: "missing", Package: p.label(), Detail: clean(p.Error.Err)}
	if p.excluded() {
		f.Kind, f.Detail = "system", "is written for other systems only"
		if p.usesC() {
			f.Kind, f.Detail = "cgo", "needs cgo, so a C compiler and a C library"
		}
	}
	if n := len(p.Error.ImportStack); n > 1 {
		f.Detail += "; imported by " + clean(p.Error.ImportStack[n-2])
	}
	return f, true
}

// excluded reports whether there is a package, with files for others only.
func (p goPackage) excluded() bool {
	return p.Error != nil && strings.Contains(p.Error.Err, "build constraints exclude all Go files")
}

// label is the import path with the module's version.
func (p goPackage) label() string {
	if p.Module != nil && p.Module.Version != "" {
		return p.ImportPath + "@" + p.Module.Version
	}
	return p.ImportPath
}

// usesC reports whether a file that was left out imports C.
func (p goPackage) usesC() bool {
	for _, name := range p.IgnoredGoFiles {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.ImportsOnly)
		if err != nil {
			continue // it is no part of this build anyway
		}
		for _, imp := range f.Imports {
			if imp.Path.Value == `"C"` {
				return true
			}
		}
	}
	return false
}

// clean makes one line of a stranger's text fit for a terminal.
func clean(s string) string {
	q := quoted(strings.Join(strings.Fields(s), " "))
	return q[1 : len(q)-1]
}
