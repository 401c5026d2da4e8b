package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
