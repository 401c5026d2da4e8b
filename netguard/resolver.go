package netguard

import (
	"context"
	"net/netip"
	"time"
)

// Bounds of one resolution.
const (
	MaxAnswers = 32 // addresses in one set
	MaxChain   = 8  // CNAMEs on the way to them
)

// Resolver looks a name up once, afresh, and reports all it was told. It
// judges nothing: the guard vets every address of the Answer. name is
// canonical, without a trailing dot.
type Resolver interface {
	Lookup(ctx context.Context, name string) (Answer, error)
}

// Answer is the outcome of one resolution over both address families.
type Answer struct {
	Addrs []netip.Addr  // in the order to try; may still be 4-in-6
	Chain int           // CNAMEs followed
	TTL   time.Duration // the shortest of the set
}
