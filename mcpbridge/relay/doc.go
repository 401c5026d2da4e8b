// Package relay carries newline-delimited JSON-RPC between a client and a
// sandboxed stdio server as lines of bytes.
//
// It reads each line once, in linear time and under a bound, peeks at the
// envelope to know what the line is, and passes the bytes on as they came: no
// member is reordered, no number is read as a float, no character is
// stripped. What a server prints on stdout that is no JSON-RPC goes to its
// log instead of ending the session.
//
// It may never start a process, open a connection, rebuild a message that it
// relays, or write anything but protocol lines to a client.
package relay
