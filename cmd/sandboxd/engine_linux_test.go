package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestEnginePartsOfOthersAreRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	part := func(name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	p := engineParts{dir: dir, shim: part("shim", 0o755), runc: part("runc", 0o755)}
	if err := p.trusted(); err != nil {
		t.Errorf("parts of this user's own: %v", err)
	}
	p.runsc = part("runsc", 0o775)
	if err := p.trusted(); err == nil || !strings.Contains(err.Error(), "runsc could be changed by another user") {
		t.Errorf("a part that a group may write: %v", err)
	}
}

// TestEngineBounds: sizes are written as in policies, and what is no bound is
// refused before anything starts.
func TestEngineBounds(t *testing.T) {
	var b engineBounds
	fl := pflag.NewFlagSet("engine", pflag.ContinueOnError)
	b.flags(fl)
	if err := fl.Parse([]string{"--max-memory", "12GiB", "--sandbox-memory=512MiB", "--max-user-sandboxes", "3", "--sandbox-tmp", "0", "--id-base", "1900000000"}); err != nil {
		t.Fatal(err)
	}
	if b.quota.MemoryBytes != 12<<30 || b.ceiling.MemoryBytes != 512<<20 || b.quota.UserSandboxes != 3 || b.ceiling.TmpBytes != 0 || b.keep != keepImages || b.idBase != 1900000000 {
		t.Errorf("%+v", b)
	}
	for _, bad := range []string{"12 gib", "-1", "1e9", "", "9999999999GiB"} {
		if err := fl.Parse([]string{"--max-memory", bad}); err == nil {
			t.Errorf("%q is taken as a size", bad)
		}
	}
}
