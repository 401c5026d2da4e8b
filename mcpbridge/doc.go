// Package mcpbridge turns the tools of sandboxed MCP servers into connectors
// for an engine (a Go API and an HTTP API), into one aggregated MCP endpoint,
// and into one raw MCP endpoint for each server.
//
// A server is started by a function that is handed in; what it says is
// hostile until checked. Its tools are taken in by admission alone (schemas
// compiled under bounds, names checked, collisions left out and reported);
// arguments are validated before they are sent and results after they came.
//
// The package may never execute a program, dial a network, choose a runtime
// or read a policy.
package mcpbridge
