package sandbox

import "fmt"

// Isolation names a tier. Tiers are ordered; a policy's isolation is a
// minimum that is never silently lowered. The zero value is no tier at all
// and satisfies nothing.
type Isolation int

// The tiers, in rising order of what separates the guest from the host.
const (
	// WASMInProcess runs the guest inside the caller's own process.
	WASMInProcess Isolation = iota + 1
	// WASM runs the guest in a locked-down worker process.
	WASM
	// Container runs it under runc: namespaces, seccomp and cgroups.
	Container
	// GVisor runs it on gVisor's user-space kernel.
	GVisor
	// Kata runs it in a virtual machine of its own.
	Kata
)

var isolationNames = map[Isolation]string{
	WASMInProcess: "wasm-inprocess", WASM: "wasm", Container: "container", GVisor: "gvisor", Kata: "kata",
}

// ParseIsolation reads a tier's name. An unknown name is an error that lists
// the known ones.
func ParseIsolation(s string) (Isolation, error) {
	for i, n := range isolationNames {
		if n == s {
			return i, nil
		}
	}
	return 0, fmt.Errorf("unknown isolation %q: use wasm-inprocess, wasm, container, gvisor or kata", s)
}

// String returns the tier's name as policies spell it.
func (i Isolation) String() string {
	if n, ok := isolationNames[i]; ok {
		return n
	}
	return "none"
}

// IsWASM reports whether the tier runs WebAssembly modules rather than images.
func (i Isolation) IsWASM() bool { return i == WASMInProcess || i == WASM }

// Satisfies reports whether running at tier i meets the minimum. A WASM tier
// meets a minimum of Container or above only where the policy said so, which
// the caller passes as wasmCounts; even then it never meets GVisor or Kata.
func (i Isolation) Satisfies(minimum Isolation, wasmCounts bool) bool {
	if isolationNames[i] == "" {
		return false
	}
	if i >= minimum {
		return true
	}
	return wasmCounts && i == WASM && minimum == Container
}
