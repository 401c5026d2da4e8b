// Package oauth logs in to remote MCP servers, as the Authorization part of the
// MCP specification has it (2025-06-18 and later): discovery (RFC 9728, RFC
// 8414, OpenID), PKCE with S256, a loopback redirect (RFC 8252), resource
// indicators (RFC 8707), the issuer's check (RFC 9207), dynamic registration
// (RFC 7591), refresh with rotation, and more scopes when a server asks for
// them.
//
// It may never dial by itself, open a browser, or keep a token anywhere but in
// the TokenStore that is handed in. It asks nothing of a host that was not
// named beforehand, follows no redirect, believes no server about which issuer
// to trust, and puts neither tokens, codes nor what a server wrote into an
// error.
package oauth
