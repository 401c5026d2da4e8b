package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/clients"
	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/config"
)

// checkConfig loads a text as if it were the file, with every secret given, and
// returns the tenant. What does not load is not written.
func checkConfig(path string, text []byte) (tenant string, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".sandboxd-*.yaml")
	if err != nil {
		return "", usageError{err}
	}
	defer os.Remove(f.Name()) //nolint:errcheck // it is gone, or the folder is
	_, err = f.Write(withoutFolder(text, filepath.Dir(path)))
	if err = errors.Join(err, f.Close()); err != nil {
		return "", err
	}
	given := func(name string) (string, bool) {
		if v, ok := os.LookupEnv(name); ok {
			return v, true
		}
		return "given", strings.HasPrefix(name, config.EnvPrefix)
	}
	cfg, err := config.Load(config.Options{LookupEnv: given}, f.Name())
	if err != nil {
		return "", usagef("%s", strings.ReplaceAll(err.Error(), f.Name(), path))
	}
	return cfg.Tenant, nil
}

// withoutFolder takes the secrets' folder out where it has yet to be made.
func withoutFolder(text []byte, dir string) []byte {
	if _, err := os.Stat(filepath.Join(dir, "secrets")); err == nil {
		return text
	}
	return []byte(strings.Replace(string(text), "secrets_dir: secrets\n", "", 1))
}

func writeConfig(path string, text []byte) error { return clients.WriteFile(path, text, 0o600) }
