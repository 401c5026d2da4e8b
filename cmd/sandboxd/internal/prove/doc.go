// Package prove shows that a sandbox without a policy reaches nothing: it
// offers listeners that a leak would reach, and holds the two guests that try
// (a function of this program for containers, a tiny module for WASM).
//
// It never starts a sandbox, and no guest of it may try an address beyond this
// host, but for the documentation ranges that no network routes (RFC 5737,
// RFC 3849).
package prove
