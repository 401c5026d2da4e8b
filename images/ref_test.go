package images

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseRef(t *testing.T) {
	good := map[string]Ref{
		"npm:a":                      {Kind: KindNPM, Name: "a"},
		"npm:@s/p.q@1.2.3":           {Kind: KindNPM, Name: "@s/p.q", Version: "1.2.3"},
		"npm:@s/p":                   {Kind: KindNPM, Name: "@s/p"},
		"npm:a@1.0.0-beta.1+x":       {Kind: KindNPM, Name: "a", Version: "1.0.0-beta.1+x"},
		"npm:a@^1":                   {Kind: KindNPM, Name: "a", Version: "^1"},
		"npm:a@1.x":                  {Kind: KindNPM, Name: "a", Version: "1.x"},
		"npm:a@next#cmd":             {Kind: KindNPM, Name: "a", Version: "next", Bin: "cmd"},
		"npm:JSONStream":             {Kind: KindNPM, Name: "JSONStream"},
		"go:x.io/a/cmd/b@v1.2.3":     {Kind: KindGo, Name: "x.io/a/cmd/b", Version: "v1.2.3"},
		"go:x.io/a/v2":               {Kind: KindGo, Name: "x.io/a/v2"},
		"pypi:a.b-c[cli]@1.2rc1#cmd": {Kind: KindPyPI, Name: "a.b-c[cli]", Version: "1.2rc1", Bin: "cmd"},
		"oci:host:5000/a/b:1":        {Kind: KindOCI, Name: "host:5000/a/b:1"},
		"oci:/a/layout":              {Kind: KindOCI, Name: "/a/layout"},
		"dir:/a/b#src/x.py":          {Kind: KindDir, Name: "/a/b", Bin: "src/x.py"},
		"wasm:./x.wasm":              {Kind: KindWASM, Name: "./x.wasm"},
		"wasm:/with space#and@.wasm": {Kind: KindWASM, Name: "/with space#and@.wasm"},
	}
	for s, want := range good {
		got, err := ParseRef(s)
		if err != nil || got != want {
			t.Errorf("ParseRef(%q) = %+v, %v", s, got, err)
		}
		if got.String() != s {
			t.Errorf("ParseRef(%q).String() = %q", s, got.String())
		}
	}
	for _, s := range []string{
		"", "a", "npm:", "npm:@", "npm:a@", "npm:a#", "npm:../a", "npm:a/b", "npm:@s/../b", "npm:.a", "npm:-a", "npm:_a", "npm:@/a", "npm:@s/",
		"npm:a b", "npm:a\n", "npm:a@1.2.3;x", "npm:a@npm:b@1", "npm:a@file:/etc", "npm:a@git+ssh://x/y", "npm:a@http://x/y.tgz", "npm:a@github:x/y",
		"npm:a@--x", "npm:a#-x", "npm:a#../x", "npm:node_modules", "npm:@s/node_modules", "npm:favicon.ico", "npm:" + strings.Repeat("a", 215),
		"npm:é", "go:", "go:a", "go:x.io/../a", "go:x.io/a@", "go:x.io/a@none", "go:x.io/-a", "go:-x.io/a", "go:x.io/a@v1 -toolexec=x", "go:x.io/a@v1@v2", "go:./a@v1", "go:x.io//a", "pypi:", "pypi:x@", "pypi:../x", "pypi:x[a;b]", "pypi:x@1;y", "pypi:x==1 --index-url=y", "pypi:-r", "pypi:x#", "oci:", "oci:-x", "oci:a b", "oci:a#b", "dir:", "dir:/", "dir:/a#../b", "dir:/a#/b", "wasm:", "wasm:a\x00b", "npm:a@1.2.3@4",
	} {
		if r, err := ParseRef(s); !errors.Is(err, ErrReference) {
			t.Errorf("ParseRef(%q) = %+v, %v; want ErrReference", s, r, err)
		} else if strings.ContainsAny(err.Error(), "\n\x00") {
			t.Errorf("ParseRef(%q): error holds raw text: %q", s, err)
		}
	}
}

func TestFromCommand(t *testing.T) {
	npm := func(name, version, bin string) Ref { return Ref{Kind: KindNPM, Name: name, Version: version, Bin: bin} }
	for line, want := range map[string]struct {
		ref  Ref
		args string
	}{
		"npx -y @s/p":                               {npm("@s/p", "", ""), ""},
		"npx -y @s/p@1.2.3 -y --yes -- /a":          {npm("@s/p", "1.2.3", ""), "-y --yes -- /a"},
		"/usr/local/bin/npx --yes --quiet p@latest": {npm("p", "latest", ""), ""},
		"npx -- p a":                                {npm("p", "", ""), "a"},
		"npx -y -p @s/p cmd --flag":                 {npm("@s/p", "", "cmd"), "--flag"},
		"npx --package=@s/p@2.0.0 -- cmd a":         {npm("@s/p", "2.0.0", "cmd"), "a"},
		"npx --loglevel silent p":                   {npm("p", "", ""), ""},
		"npm exec -y p -- --flag":                   {npm("p", "", ""), "--flag"},
		"npm exec p --yes a -- -b":                  {npm("p", "", ""), "a -b"},
		"npm x --package=q -- cmd -p":               {npm("q", "", "cmd"), "-p"},
		"pnpm dlx p --port 1":                       {npm("p", "", ""), "--port 1"},
		"pnpx p":                                    {npm("p", "", ""), ""},
		"bunx --bun p x":                            {npm("p", "", ""), "x"},
		"bun x p":                                   {npm("p", "", ""), ""},
		"yarn dlx -q -p q cmd":                      {npm("q", "", "cmd"), ""},
		"npm:p@1.0.0 -a":                            {npm("p", "1.0.0", ""), "-a"},
		"./a/../b.wasm -a b":                        {Ref{Kind: KindWASM, Name: "b.wasm"}, "-a b"},
		"wasm:b.bin a":                              {Ref{Kind: KindWASM, Name: "b.bin"}, "a"},
	} {
		ref, args, err := FromCommand(strings.Fields(line))
		if err != nil || ref != want.ref || strings.Join(args, " ") != want.args {
			t.Errorf("%s: %+v %q %v", line, ref, args, err)
		}
	}
	for line, word := range map[string]string{
		"":                                 "no command",
		"npx":                              "no command",
		"npx -y":                           "no command",
		"npx -p":                           "needs a value",
		"npx -p q":                         "no command",
		"npx -p a -p b cmd":                "more than one",
		"npx -c ls p":                      "shell line",
		"npx --registry http://x p":        "npm configuration",
		"npx --unknown p":                  "--unknown",
		"npx --yes=no p":                   "--yes=no",
		"npx github:user/repo":             "not an npm package",
		"npx user/repo":                    "not an npm package",
		"npx ./local":                      "not an npm package",
		"npx https://x/y.tgz":              "not an npm package",
		"npm exec p --port 1":              "--port",
		"npm start":                        "cannot sandbox",
		"npm install p":                    "cannot sandbox",
		"sh -c x":                          "own command",
		"./native":                         "cannot sandbox",
		"npm:a@git+ssh://h/x":              "not a version",
		"npx --node-options=--require=x p": "NODE_OPTIONS",
	} {
		ref, _, err := FromCommand(strings.Fields(line))
		if !errors.Is(err, ErrReference) || !strings.Contains(err.Error(), word) {
			t.Errorf("%q: %+v, %v; want a refusal that says %q", line, ref, err, word)
		}
	}
}

func TestNodeFlags(t *testing.T) {
	for line, want := range map[string][]string{
		"#!/usr/bin/env node\n":                          {},
		"#!/usr/bin/env -S node --no-warnings --a=b\r\n": {"--no-warnings", "--a=b"},
		"#! /usr/bin/node\n":                             {},
		"#!/usr/bin/env bun\n":                           nil,
		"#!/bin/sh\n":                                    nil,
		"#!/usr/bin/env -S FOO=1 node\n":                 nil,
		"#!/usr/bin/env node /etc/other.js\n":            nil,
		"#!\n":                                           nil,
	} {
		got, ok := nodeFlags(line)
		if ok != (want != nil) || ok && !cmp.Equal(got, want) {
			t.Errorf("%q: %q %v", line, got, ok)
		}
	}
}

func FuzzParseRef(f *testing.F) {
	for _, s := range []string{"npm:@s/p@1.2.3#x", "npm:a@^1", "wasm:x", "npm:a@b@c", "::"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRef(s)
		if err != nil {
			return
		}
		if again, err := ParseRef(r.String()); err != nil || again != r {
			t.Fatalf("%q -> %+v -> %+v, %v", s, r, again, err)
		}
		if r.Kind == KindNPM && (strings.Contains(r.Name, "..") && strings.Contains(r.Name, "/../") || strings.HasPrefix(r.Name, "-") || strings.ContainsAny(r.String(), " \n\x00\\")) {
			t.Fatalf("%q gave %+v", s, r)
		}
	})
}

func FuzzFromCommand(f *testing.F) {
	for _, s := range []string{"npx -y p a", "npm exec --package=q -- cmd", "bunx p", "x.wasm"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		words := strings.Split(s, " ")
		r, args, err := FromCommand(words)
		if err == nil && (r.validate() != nil || len(args) >= len(words)) {
			t.Fatalf("%q: %+v %q", words, r, args)
		}
	})
}
