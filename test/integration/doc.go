// Package integration runs the real thing: the built program, a supervised
// containerd, runc and gVisor, real MCP servers from the registry and real
// clients, as an ordinary user, on hosts that exist in namespaces of the
// test's own.
package integration
