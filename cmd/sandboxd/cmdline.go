package main

import (
	"bytes"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/images"
	"github.com/sandboxd/sandboxd/policies"
)

// with adds what a command line itself asks for: variables, files of them and
// mounts. What the server was given beside its command line comes after it.
func (s server) with(c images.Command) (server, error) {
	var vars []string
	for _, f := range c.EnvFiles {
		more, err := readEnvFile(s.resolve(f), s.lookup)
		if err != nil {
			return s, err
		}
		vars = append(vars, more...)
	}
	for _, v := range c.Env {
		value := v.Value
		if v.Pass {
			found, ok := s.lookup(v.Name)
			if !ok {
				return s, usagef("server %s: its command passes the variable %s on, which is not set: give it under env", s.name, v.Name)
			}
			value = found
		}
		vars = append(vars, v.Name+"="+value)
	}
	s.env = mergeEnv(vars, s.env)
	s.mounts = slices.Clone(s.mounts)
	for _, m := range c.Mounts {
		if slices.ContainsFunc(s.mounts, func(o mountSpec) bool { return o.target == m.Target }) {
			return s, usagef("server %s: its command mounts %s, which is mounted already: leave one of them out", s.name, m.Target)
		}
		abs, err := filepath.Abs(s.resolve(m.Source))
		if err != nil {
			return s, usageError{err}
		}
		s.mounts = append(s.mounts, mountSpec{source: abs, target: m.Target, readWrite: m.ReadWrite})
	}
	return s, nil
}

// lookup finds a variable that a command line passes on: among those that the
// server was given, else where its starter says.
func (s server) lookup(name string) (string, bool) {
	for _, kv := range slices.Backward(s.env) {
		if k, v, _ := strings.Cut(kv, "="); k == name {
			return v, true
		}
	}
	if s.passed == nil {
		return "", false
	}
	return s.passed(name)
}

// resolve makes a path of the command line start where the server was written.
func (s server) resolve(path string) string {
	if s.dir == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(s.dir, path)
}

var envFileName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,255}$`)

// readEnvFile reads NAME=VALUE lines as container engines do: a NAME alone is
// passed on where it is set, # begins a comment, and quotes are part of a value.
// Errors show no value.
func readEnvFile(path string, lookup func(string) (string, bool)) ([]string, error) {
	data, err := policies.ReadFile(path)
	if err != nil {
		return nil, usagef("--env-file: %w", err)
	}
	var out []string
	n := 0
	for l := range bytes.Lines(data) {
		n++
		text := strings.TrimRight(string(l), "\r\n")
		if trimmed := strings.TrimSpace(text); trimmed == "" || trimmed[0] == '#' {
			continue
		}
		k, v, has := strings.Cut(strings.TrimLeft(text, " \t"), "=")
		if !envFileName.MatchString(k) || strings.ContainsRune(v, 0) {
			return nil, usagef("--env-file %s: line %d is no NAME=VALUE", path, n)
		}
		if !has {
			if v, has = lookup(k); !has {
				continue
			}
		}
		out = append(out, k+"="+v)
	}
	return out, nil
}
