// Package outbound is the way back: it publishes an engine's workflows as MCP
// tools, over stdio, Streamable HTTP and WebSocket. A call runs one workflow
// and blocks until the run ends; what the run reports becomes progress, and
// what it asks a person becomes an elicitation of the client's user.
//
// Nothing is published that was not named. Inputs are checked against the
// declared schema before a run starts, outputs before a client sees them.
//
// The package may never start a program, dial, or decide who may connect:
// its HTTP handler belongs behind checks of Host, Origin and token, such as
// those of mcpbridge.Registry (Config.Handlers).
package outbound
