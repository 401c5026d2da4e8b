// Package catalog reads, checks and searches indexes of MCP servers: files in
// the form of the official registry's list, in which each entry adds what a
// sandbox wants to know (the package's integrity hash, the hash of its tools, a
// policy, the secrets that it needs).
//
// An index from outside is taken only with a signature by a trusted key, before
// its end, and never an older one after a newer one. The package does no I/O
// but to read and write the files that it is given, builds and starts nothing,
// and may never trust a key that the operator did not name.
package catalog
