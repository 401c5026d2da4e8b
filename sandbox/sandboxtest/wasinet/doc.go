// Package wasinet gives the tests' guests, which are compiled by Go as it is, a
// network: its standard library has none for WASI preview 1. Servers need
// nothing of this; sandboxd build gives them a network.
//
// It speaks the WasmEdge socket functions and their look-up, which sandboxd's
// WASM tiers offer. Names are not resolved in the guest: the look-up returns
// an address that stands for the name, and the host resolves, checks and dials
// when a connection to it is made. Connections are ordinary *net.TCPConn
// underneath, so deadlines, half close and the runtime's poller work.
//
// The package is for guests alone and empty on every other system. It may never
// listen, and never send a DNS query.
package wasinet
