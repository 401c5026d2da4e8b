package sandbox

import (
	"context"
	"iter"
	"net"
	"net/netip"
	"time"
)

// Egress is the only way out that one sandbox gets. netguard provides it (by
// shape: neither package imports the other), a Runtime uses it, and Close
// ends every connection that it opened.
type Egress interface {
	// DialContext opens a checked connection for host calls of a WASM guest:
	// network is tcp, address is host:port with a name or a literal.
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
	// Close ends all connections and makes every later call fail. Idempotent.
	Close() error
	Gateway
}

// Gateway is the part of Egress that serves a transparent gateway, where the
// guest's own kernel or stack made the connection.
type Gateway interface {
	// Literals yields the address ranges that policy opens without a look-up,
	// with their ports (nil means every port).
	Literals() iter.Seq2[netip.Prefix, []uint16]
	// Resolve answers one DNS message. Before it returns an answer that the
	// guest can connect to it calls pin with the endpoints, so that the gateway
	// lets just those through for the given time; if pin fails, the look-up
	// does. An endpoint with port 0 stands for every port of its address. A nil
	// result with an error means: send nothing.
	Resolve(ctx context.Context, query []byte, pin func([]netip.AddrPort, time.Duration) error) ([]byte, error)
	// ServeConn takes over a connection that the guest made to dst and returns
	// when it is done. A refusal resets conn.
	ServeConn(ctx context.Context, conn net.Conn, dst netip.AddrPort)
	// Refused records a packet that the gateway refused before it was
	// accepted. network is tcp, udp, icmp or ip; dst's port may be 0.
	Refused(network string, dst netip.AddrPort)
}
