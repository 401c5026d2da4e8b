// Package clients reads the configuration files of MCP clients and turns them
// into sandboxd's own, and writes sandboxd's servers into such files. It keeps
// what it does not understand: the one way it reports it, the other way it
// leaves it byte for byte in its place.
//
// It starts and dials nothing, and it may never put a secret into a document, a
// report or an error: a value that is or may be one goes to a file of its own,
// or nowhere.
package clients
