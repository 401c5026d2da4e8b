// Package remote makes an MCP server on the network look like a sandbox: its
// streams carry the same lines as those of a stdio server, so that everything
// the bridge does with servers (admission, bounds, pins, the endpoints) holds
// for it too. It speaks Streamable HTTP (revisions 2025-03-26 to 2026-07-28),
// the older HTTP+SSE (2024-11-05) and WebSocket (subprotocol mcp, one message a
// text frame; MCP itself defines none).
//
// It may never dial by itself or follow a redirect: the HTTP client that is
// handed in does both, under a policy. It believes nothing that a server
// says: sizes, open requests and waits are bounded, an endpoint that a server
// names must be of its own origin, and neither URLs nor headers get into an
// error.
package remote
