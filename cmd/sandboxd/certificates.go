package main

import (
	"bytes"
	"fmt"
	"os"
)

// hostBundle is where Debian and its kin keep all authorities in one file.
const hostBundle = "/etc/ssl/certs/ca-certificates.crt"

// certificates are the authorities, in PEM, that a client checks its registry
// by: those of the file that its configuration names, or this host's and those
// that a variable adds. Nil means that it was told of none.
func certificates(file, variable string) ([]byte, error) {
	if file != "" {
		return readBundle(file)
	}
	extra := ""
	if variable != "" {
		extra = os.Getenv(variable)
	}
	if extra == "" {
		return nil, nil
	}
	more, err := readBundle(extra)
	if err != nil {
		return nil, err
	}
	own, err := os.ReadFile(hostBundle)
	if err != nil {
		return more, nil //nolint:nilerr // another distribution: the added ones are all there are
	}
	return append(append(bytes.TrimRight(own, "\n"), '\n'), more...), nil
}

func readBundle(file string) ([]byte, error) {
	const most = 16 << 20
	info, err := os.Stat(file) //nolint:gosec // the user's own configuration names it
	if err != nil {
		return nil, fmt.Errorf("the registry client's certificates: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > most {
		return nil, fmt.Errorf("the registry client's certificates: %s is not a file of a sane size", file)
	}
	return os.ReadFile(file) //nolint:gosec // as above
}
