// Package container is the engine's side of the container tiers: it turns a
// Request into an OCI container with a network namespace whose only way out
// is a gateway, and hands back descriptors.
//
// It runs as root and parses nothing that a stranger wrote: no TLS, HTTP, DNS
// or JSON-RPC. It may import sandbox, containerd, runtime-spec, x/sys, netlink
// and nftables; never netguard or wazero.
package container
