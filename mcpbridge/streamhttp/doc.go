// Package streamhttp is the server's side of MCP's Streamable HTTP transport
// (revisions 2025-03-26 to 2026-07-28) for messages that stay raw bytes.
//
// It knows sessions, streams and which response goes to which request, and
// nothing of what a message means. It may never decode a message's values,
// rebuild a message, or decide who may connect.
package streamhttp
