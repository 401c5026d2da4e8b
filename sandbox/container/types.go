package container

import (
	"context"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

// Request is what a caller of the engine may ask for: no host path, no
// runtime option, no name of another's object.
type Request struct {
	// Owner, Group and Groups are the caller's uid, its group and its further
	// groups, from the socket's peer credentials. Of what is mounted, the
	// caller's files are the guest's; the further groups make theirs known to
	// the guest without making it a member.
	Owner, Group uint32
	Groups       []uint32
	// Spec is what to run. Spec.Image.Path is ignored here: the image must
	// have been imported. Spec.Mounts carry the caller's descriptors.
	Spec sandbox.Spec
	// Gateway says whether the sandbox gets a gateway at all; without it, its
	// namespace has nothing but a loopback of its own.
	Gateway bool
	// Open is what policy opens without a look-up, from the first packet on.
	Open []Opening
}

// Opening lets TCP connections through to the gateway's listeners. A timed one
// must be a single address; opening it again extends its time. An untimed one
// of IPv4's loopback with ports has an unchanged client's 127.0.0.1:port lead
// to the gateway, in the container tier (gVisor's loopback is its own).
type Opening struct {
	Prefix netip.Prefix
	Ports  []uint16      // nil means every port
	TTL    time.Duration // 0 means as long as the sandbox lives
}

// Files are the descriptors that a started box hands to its caller, who owns
// and closes them. The gateway's are nil where Request.Gateway was false.
type Files struct {
	Stdin, Stdout, Stderr *os.File
	// TCP4 and TCP6 are listening sockets in the gateway's namespace to which
	// allowed connections are redirected; SO_ORIGINAL_DST names their target.
	// Those to port 53 are DNS over TCP, and are always let through.
	TCP4, TCP6 *os.File
	// UDP4 and UDP6 receive DNS queries for any resolver address.
	UDP4, UDP6 *os.File
	// Refused is a netlink socket bound to the log group on which the gateway
	// reports each packet that it refused.
	Refused *os.File
}

// Host starts boxes. The engine's server is its one consumer.
type Host interface {
	// HasImage reports whether the sealed image is there to run.
	HasImage(ctx context.Context, digest string) (bool, error)
	// Missing returns those of the blobs that an archive for Import has to hold,
	// since they are not here, in the order given.
	Missing(ctx context.Context, blobs []string) ([]string, error)
	// Import reads an OCI image archive (tar) and checks that its manifest has
	// the digest, and every blob its own. Blobs that the archive lacks must be
	// here already. It keeps nothing of a wrong one.
	Import(ctx context.Context, digest string, archive io.Reader) error
	// Start returns a running box, or an error and nothing left behind.
	Start(ctx context.Context, req Request) (Box, Files, error)
	// Collect removes what the ownership label proves to be left over from an
	// engine that died, and nothing else.
	Collect(ctx context.Context) error
	// Close ends all boxes.
	Close(ctx context.Context) error
}

// Box is one running container.
type Box interface {
	ID() string
	// Open lets more endpoints through, as look-ups are answered.
	Open(openings []Opening) error
	// Wait is sandbox.Sandbox.Wait.
	Wait(ctx context.Context) (sandbox.Exit, error)
	// Stop runs the ladder from TERM on (the caller closed stdin), removes
	// every trace and is idempotent.
	Stop(ctx context.Context) error
}
