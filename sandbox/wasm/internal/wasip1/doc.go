// Package wasip1 offers a WebAssembly guest the host functions of WASI preview
// 1, the WasmEdge socket functions and a look-up, over one poller that truly
// waits for pipes, timers and sockets together.
//
// wazero's own preview 1 module is not used: there, a guest that waits for
// input cannot be cancelled, poll_oneoff reports every descriptor but stdin as
// ready, and writes to non-blocking descriptors fail. Here every call that
// could wait is non-blocking underneath and waits in one place
// (System.wait), which also watches the guest's end.
//
// The package may never dial or resolve a name by itself (Config.Dial is the
// only way out), never open a path that is not below a mount, never show the
// guest an environment, argument or descriptor that Config does not name, and
// never trust a pointer, length or flag that the guest passes.
package wasip1
