package policies

import (
	"slices"

	"github.com/sandboxd/sandboxd/netguard"
	"github.com/sandboxd/sandboxd/policies/strict"
	"github.com/sandboxd/sandboxd/sandbox"
)

// Version is the one version of the format that is known.
const Version = 1

// Policy is what one document says. The zero value gives no network, no
// minimum of isolation and the default limits.
type Policy struct {
	// Name is the preset's name or the file's, for records and messages.
	Name string
	// Egress is nil where the document has no egress section: then the sandbox
	// gets no network at all. It has compiled without an error.
	Egress *netguard.Config
	// Isolation is the minimum; 0 is none. It is never lowered silently.
	Isolation sandbox.Isolation
	// WASMCountsAsContainer lets the wasm tier meet a minimum of container.
	WASMCountsAsContainer bool
	// Limits has zero fields for what the document leaves to the defaults.
	Limits sandbox.Limits
	// Tools narrows what the server's tools may be used.
	Tools Tools
	// Env lists the names of the variables that the server may be given; nil
	// leaves that to whoever starts it, an empty list allows none.
	Env []string
	// Warnings are remarks on a document that is usable all the same.
	Warnings []strict.Fault
}

// Tools filters tools by their exact names. In both lists nil means every
// tool and an empty list means none; a tool must pass both.
type Tools struct {
	// Allow is a matter of security: what is not in it is never admitted.
	Allow []string
	// Include is a matter of taste: what is not in it is not shown.
	Include []string
}

// PermitsEnv reports whether the server may be given the variable.
func (p *Policy) PermitsEnv(name string) bool {
	return p.Env == nil || slices.Contains(p.Env, name)
}

// Satisfied reports whether running at the tier meets the policy's minimum.
func (p *Policy) Satisfied(tier sandbox.Isolation) bool {
	return tier.Satisfies(p.Isolation, p.WASMCountsAsContainer)
}
