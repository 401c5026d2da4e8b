package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/images"
)

func TestServerWithItsCommandLine(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "vars")
	if err := os.WriteFile(file, []byte("# a comment\n\nA=file\r\nB=\"quoted\"\nGIVEN\nUNSET\n  C=x=y\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := server{name: "x", dir: dir, env: []string{"A=given", "GIVEN=1"}, passed: func(n string) (string, bool) { return "outer", n == "OUTER" }}
	got, err := s.with(images.Command{
		EnvFiles: []string{"vars"},
		Env:      []images.CommandVar{{Name: "A", Value: "line"}, {Name: "D", Value: "line"}, {Name: "GIVEN", Pass: true}, {Name: "OUTER", Pass: true}},
		Mounts:   []images.CommandMount{{Source: "data", Target: "/data", ReadWrite: true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"A=given", `B="quoted"`, "GIVEN=1", "C=x=y", "D=line", "OUTER=outer"}
	if diff := cmp.Diff(want, got.env); diff != "" {
		t.Error(diff)
	}
	if len(got.mounts) != 1 || got.mounts[0] != (mountSpec{source: filepath.Join(dir, "data"), target: "/data", readWrite: true}) {
		t.Errorf("mounts: %+v", got.mounts)
	}
	if len(s.env) != 2 || len(s.mounts) != 0 {
		t.Errorf("the server itself was changed: %+v", s)
	}
	for name, c := range map[string]images.Command{
		"is not set":      {Env: []images.CommandVar{{Name: "MISSING", Pass: true}}},
		"mounted already": {Mounts: []images.CommandMount{{Source: "/a", Target: "/m"}, {Source: "/b", Target: "/m"}}},
		"does not exist":  {EnvFiles: []string{"gone"}},
	} {
		if _, err := s.with(c); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v; want an error that says %q", err, name)
		}
	}
	if err := os.WriteFile(file, []byte("A=ok\nnot a variable s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.with(images.Command{EnvFiles: []string{"vars"}}); err == nil || strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("a bad line: %v", err)
	}
}
