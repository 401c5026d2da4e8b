// Package registries finds out where this user's own clients (npm, pip, uv, Go)
// look for packages, by asking them: a registry's host is never a constant
// here. Each is asked once a process, within a bound, from the root folder, so
// that no project's own configuration has a say in what a policy opens.
//
// It may never open a connection, keep or show credentials, or take the answer
// of a client for more than scheme, host and port.
package registries
