// Package wasm runs stdio servers that were compiled for WASI preview 1, on
// wazero.
//
// Tier wasm-inprocess runs the guest inside this process. Tier wasm runs it in
// a worker: a re-exec of this binary that Landlock and seccomp lock down before
// any guest code is loaded, which owns no network and no files but what the
// host hands it one descriptor at a time. A module is compiled once, by the
// host; workers read the result.
//
// The package may never dial, resolve or listen by itself (sandbox.Egress is
// the only way out), never run a module whose bytes do not match the digest it
// was asked for, never open what Spec.Mounts does not name, and never report
// one tier while running another. It imports neither containerd nor netguard.
package wasm
