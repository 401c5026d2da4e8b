// Package gowasm compiles Go MCP servers, as their authors wrote them, to
// WebAssembly modules for the WASM tiers.
//
// Go's own net package has no network on wasip1, and its os/signal spins
// there. Both are mended by an overlay of the standard library that is made
// from the user's own Go by small edits; what they hook into is the host's
// socket functions, so a module can do no more than sandbox.Egress lets it.
//
// The go command does the work, with the caller's rights, on source that is
// not trusted: no code of a module runs in a build. So the package may never
// enable cgo, run go generate, tests or a version control system, pass on a
// -toolexec or an overlay of somebody else's, or let a module choose another
// toolchain. It opens no connection itself, and knows no runtime.
package gowasm
