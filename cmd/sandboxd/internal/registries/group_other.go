//go:build !unix

package registries

import "os/exec"

// wholeGroup leaves it at the client itself where there are no groups.
func wholeGroup(*exec.Cmd) {}
