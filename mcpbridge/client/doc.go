// Package client is the bridge's own MCP client session over one sandboxed
// stdio server.
//
// It is thin on purpose: requests and results are raw JSON, so that whatever
// a server says (unknown members, big integers, key order, new content types)
// reaches the connector and the aggregate endpoint as it was. It speaks the
// session-based revisions 2024-11-05 to 2025-11-25, and 2026-07-28 with servers
// that know nothing else, which its callers need not notice.
//
// It may never start a process, open a connection, or trust an answer: ids,
// sizes, depths and page counts are all bounded here.
package client
