// Package engine is the small protocol between `sandboxd engine`, which runs
// as root, and its unprivileged callers: a Server that starts containers for
// whoever the socket's permissions let in, and a Client that is a
// sandbox.Runtime and serves each container's gateway with the caller's
// Egress.
//
// Messages travel over a Unix SOCK_SEQPACKET socket: one message, with its
// descriptors (SCM_RIGHTS), per packet. A request carries an id that its
// caller chose; each request gets at most one interim reply and exactly one
// final reply under that id, and a sandbox is named by the id of the request
// that started it. So an id means nothing on another connection, and a caller
// has no words for another's sandbox.
//
// The server parses nothing but these messages: no path, no runtime option,
// no byte that a guest wrote. Mounts come as O_PATH descriptors, each checked
// for its kind and file system and for the caller's own access to it. What a
// connection started ends with the connection, however it ended.
//
// The package may never import netguard, mcpbridge or wazero, and the server
// may never open a path that a caller named.
package engine
