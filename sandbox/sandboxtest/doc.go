// Package sandboxtest is the conformance suite of sandbox.Runtime: what every
// tier must do alike is said once, here, and each tier's own tests run it.
// What a tier cannot do it lists with its reason, and the suite skips that by
// name, so that no difference between tiers is silent.
//
// It is for tests. It imports package sandbox and the standard library, and
// may never import a tier.
package sandboxtest
