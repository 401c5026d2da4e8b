package casefile

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"sync"

	"github.com/sandboxd/sandboxd/netguard"
)

// bench is one case's own guard and egress, with everything noted that they
// decide and dial.
type bench struct {
	zone   *zone
	guard  *netguard.Guard
	egress *netguard.Egress
	// answer, where set, plays the far end of a connection.
	answer func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)

	mu      sync.Mutex
	records []netguard.Record
	dialled []string
}

// errNotDialled ends each dial of a dry run after the guard's own checks.
var errNotDialled = errors.New("a cases file opens no connection")

func newBench(c Case) (*bench, got, error) {
	z, err := newZone(c.Resolver)
	if err != nil {
		return nil, got{}, err
	}
	return newBenchOn(c, z, z)
}

// newBenchOn asks another resolver than the case's zone itself.
func newBenchOn(c Case, z *zone, resolver netguard.Resolver) (*bench, got, error) {
	b := &bench{zone: z}
	var err error
	b.guard, err = netguard.New(netguard.Options{
		Resolver: resolver,
		Record: func(r netguard.Record) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.records = append(b.records, r)
		},
		Dial: b.dial,
	})
	if err != nil {
		return nil, got{}, err
	}
	policy, refused := loadPolicy(c.Policy)
	b.egress = b.guard.For(netguard.Subject{Sandbox: c.ID}, policy)
	return b, refused, nil
}

// loadPolicy compiles the case's policy; the second result says why it is
// invalid.
func loadPolicy(raw json.RawMessage) (*netguard.Policy, got) {
	cfg, err := netguard.DecodeConfig(raw)
	var p *netguard.Policy
	if err == nil {
		p, err = netguard.Compile(cfg)
	}
	if err != nil {
		return nil, got{Outcome: Invalid, Reason: string(netguard.ReasonPolicy), Note: err.Error()}
	}
	return p, got{Outcome: Allow}
}

// dial lets the guard check the socket's address as the kernel would have it,
// notes the address and opens nothing.
func (b *bench) dial(ctx context.Context, network string, addr netip.AddrPort, control netguard.Control) (net.Conn, error) {
	if err := control(ctx, network, addr.String(), nil); err != nil {
		return nil, err
	}
	b.mu.Lock()
	b.dialled = append(b.dialled, addr.String())
	b.mu.Unlock()
	if b.answer != nil {
		return b.answer(ctx, addr)
	}
	return nil, errNotDialled
}

// decision is the newest decision record, as an outcome.
func (b *bench) decision() got {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := len(b.records) - 1; i >= 0; i-- {
		if r := b.records[i]; r.Event == netguard.EventDecision {
			return outcome(r.Allow, r.Reason, r.Class, r.Rule)
		}
	}
	return got{Outcome: Deny, Note: "no decision was recorded"}
}

// got is what a case came to.
type got struct {
	Outcome Outcome `json:"outcome"`
	Reason  string  `json:"reason,omitempty"` // a netguard.Reason
	Class   string  `json:"class,omitempty"`  // the deciding address's
	Rule    string  `json:"rule,omitempty"`
	Note    string  `json:"note,omitempty"`
	detail  Detail
}

func outcome(allowed bool, reason netguard.Reason, class, rule string) got {
	g := got{Outcome: Deny, Reason: string(reason), Class: class, Rule: rule}
	switch {
	case allowed:
		g.Outcome = Allow
	case reason.Malformed():
		g.Outcome = Invalid
	}
	return g
}

// code is what a case's code is compared with: the class of a literal that
// was judged, else the reason.
func (g got) code() []string {
	codes := []string{g.Reason, g.Class}
	if g.Reason == string(netguard.ReasonPortSyntax) {
		codes = append(codes, string(netguard.ReasonPortRange))
	}
	return codes
}
