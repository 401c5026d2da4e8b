package netguard_test

import (
	"github.com/sandboxd/sandboxd/netguard"
	"github.com/sandboxd/sandboxd/sandbox"
)

// Neither package imports the other, so only a test can hold that an Egress
// is what a sandbox's runtime asks for.
var _ sandbox.Egress = (*netguard.Egress)(nil)

// What a WASM runtime asks for beyond that contract.
var _ interface{ CheckName(host string) error } = (*netguard.Egress)(nil)
