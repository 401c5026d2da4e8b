//go:build !linux

package doctor

import "os"

// checks has nothing to try elsewhere: containers are Linux only, and the
// in-process WASM tier needs nothing.
func checks(Config) []trial { return nil }

func userID() int { return os.Getuid() }

func kernel() string { return "" }
