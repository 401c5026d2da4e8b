// Package policies owns the file format of sandboxd's policies: it turns a
// YAML document, strictly, into the plain configurations of the packages that
// enforce it (netguard.Config, sandbox.Limits, the filter of tools), and ships
// three presets.
//
// Every fault of a document is reported with its line and column, unknown and
// repeated keys among them: a mistyped key must never leave a door open. What
// a document does not say is denied or takes the enforcing package's default.
//
// It enforces nothing, and it may never do I/O beyond reading the file that it
// was told to read.
package policies
