package prove

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"
)

// ReachedStatus is a guest's exit status when it got through to something.
const ReachedStatus = 7

// patience is how long one attempt may take before it counts as neither
// reached nor refused.
const patience = 3 * time.Second

// ErrReached says that a guest got through.
var ErrReached = errors.New("a sandbox without policy reached something")

// Try is the container's guest: it tries every target over TCP and UDP, and a
// name over DNS, and writes one line for whatever answered.
func Try(ctx context.Context, w io.Writer, targets []string) error {
	reached := false
	for _, t := range targets {
		if _, err := netip.ParseAddrPort(t); err != nil {
			return fmt.Errorf("target: %w", err)
		}
		for _, network := range []string{"tcp", "udp"} {
			if answers(ctx, network, t) {
				reached = true
				_, _ = fmt.Fprintf(w, "reached %s %s\n", network, t)
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if addrs, err := net.DefaultResolver.LookupHost(ctx, "sandboxd-proof.example.com"); err == nil {
		reached = true
		_, _ = fmt.Fprintf(w, "resolved a name to %d addresses\n", len(addrs))
	}
	if reached {
		return ErrReached
	}
	return nil
}

// answers reports whether anything accepts. A datagram has no such proof: the
// bait counts what arrives.
func answers(ctx context.Context, network, target string) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, network, target)
	if err != nil {
		return false
	}
	defer c.Close() //nolint:errcheck // nothing was promised
	if network == "udp" {
		_, _ = c.Write([]byte("x"))
		return false
	}
	return true
}

//go:embed reach.wasm
var reachModule []byte

// Module is the WASM guest that tries one IPv4 target.
func Module(target netip.AddrPort) ([]byte, error) {
	if !target.Addr().Is4() {
		return nil, fmt.Errorf("the WASM guest tries IPv4 targets, not %s", target)
	}
	var word [8]byte
	a := target.Addr().As4()
	copy(word[:4], a[:])
	binary.LittleEndian.PutUint32(word[4:], uint32(target.Port()))
	if bytes.Count(reachModule, []byte("ADDRPORT")) != 1 {
		return nil, errors.New("the WASM guest has no place for its target")
	}
	return bytes.Replace(reachModule, []byte("ADDRPORT"), word[:], 1), nil
}
