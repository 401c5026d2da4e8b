// Package netguard decides and opens every connection that leaves a sandbox,
// and every one that the bridge makes for itself.
//
// A Config is compiled once into an immutable Policy. A Guard holds what the
// operator decides (resolver, trusted ranges, where records go) and hands out
// one Egress for each sandbox. An Egress canonicalises the name, asks the
// policy, resolves once, vets every answer, dials only what it vetted and
// repeats the check on the socket just before the kernel connects it.
//
// What this package may never do: import any other folder of this module,
// dial a name instead of an address, read a proxy from the environment, ask
// the resolver about a name that policy refuses, put an address into an error
// that a sandbox can see, or allow something because a value was left at zero.
package netguard
