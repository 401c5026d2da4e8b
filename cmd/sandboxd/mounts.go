package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox"
)

// mountSpec is one --mount SRC:DST[:rw], or a mount of a config file.
type mountSpec struct {
	source, target string
	readWrite      bool
}

// parseMount reads SRC:DST[:ro|:rw]. SRC is made absolute; DST must be.
func parseMount(s string) (mountSpec, error) {
	const form = "write SRC:DST or SRC:DST:rw with an absolute DST"
	parts := strings.Split(s, ":")
	m := mountSpec{}
	switch {
	case len(parts) == 3 && parts[2] == "rw":
		m.readWrite = true
	case len(parts) == 3 && parts[2] == "ro":
	case len(parts) != 2:
		return m, usagef("--mount %q: %s", s, form)
	}
	if parts[0] == "" || !path.IsAbs(parts[1]) || path.Clean(parts[1]) == "/" {
		return m, usagef("--mount %q: %s", s, form)
	}
	source, err := filepath.Abs(parts[0])
	if err != nil {
		return m, usagef("--mount %q: %w", s, err)
	}
	m.source, m.target = source, path.Clean(parts[1])
	return m, nil
}

// openMounts opens every source with the caller's own rights, so that nothing
// further down needs more. The caller closes what it gets.
func openMounts(specs []mountSpec) (mounts []sandbox.Mount, closeAll func(), err error) {
	closeAll = func() {
		for _, m := range mounts {
			_ = m.Source.Close()
		}
	}
	for _, s := range specs {
		f, err := openMountSource(s.source, s.readWrite)
		if err != nil {
			closeAll()
			return nil, nil, usageError{fmt.Errorf("mount %s: %w", s.source, err)}
		}
		mounts = append(mounts, sandbox.Mount{Source: f, Target: s.target, ReadWrite: s.readWrite})
	}
	return mounts, closeAll, nil
}

// envList turns --env K=V and --env K (the value from our own environment)
// into a list; later ones win.
func envList(flags []string) ([]string, error) {
	var out []string
	for _, f := range flags {
		k, _, ok := strings.Cut(f, "=")
		if k == "" {
			return nil, usagef("--env: write NAME=VALUE, or NAME to pass a variable on")
		}
		if !ok {
			v, set := os.LookupEnv(k)
			if !set {
				return nil, usagef("--env %s: the variable is not set here", k)
			}
			f = k + "=" + v
		}
		out = append(out, f)
	}
	return out, nil
}

// mergeEnv lays later lists over earlier ones, keeping the order in which
// names first appear.
func mergeEnv(lists ...[]string) []string {
	index := map[string]int{}
	var out []string
	for _, list := range lists {
		for _, kv := range list {
			k, _, _ := strings.Cut(kv, "=")
			if i, ok := index[k]; ok {
				out[i] = kv
				continue
			}
			index[k] = len(out)
			out = append(out, kv)
		}
	}
	return out
}
