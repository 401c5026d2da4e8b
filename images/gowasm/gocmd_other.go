//go:build !unix

package gowasm

import "os/exec"

// ownGroup leaves the program to exec's own cancelling.
func ownGroup(*exec.Cmd) {}
