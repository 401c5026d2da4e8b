package netguard

import (
	"net/netip"
	"sync"
	"time"
)

// gateKind separates what may be refused often, so that a flood of one kind
// never hides a single record of another.
type gateKind int

const (
	gateConn   gateKind = iota // connections taken at the gateway
	gateLookup                 // look-ups
	gatePacket                 // packets refused before they were accepted
	gateCount
)

// maxRefusals is how many refusals of one kind a sandbox gets recorded in one
// second. The next record says how many were left out before it.
const maxRefusals = 100

// maxLookups is how many look-ups of one sandbox may be under way at once.
const maxLookups = 128

// floodGate lets a bounded number of records through in each second.
type floodGate struct {
	mu         sync.Mutex
	second     int64
	n          int
	suppressed int64
}

// pass reports whether a record may be written now, and how many were left
// out since the last one.
func (g *floodGate) pass(now time.Time) (ok bool, suppressed int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s := now.Unix(); s != g.second {
		g.second, g.n = s, 0
	}
	if g.n >= maxRefusals {
		g.suppressed++
		return false, 0
	}
	g.n++
	suppressed, g.suppressed = g.suppressed, 0
	return true, suppressed
}

// refuse records a refusal, unless too many were recorded just now, and
// returns it as an error.
func (e *Egress) refuse(kind gateKind, a *attempt, m match) error {
	ok, suppressed := e.gw.gates[kind].pass(time.Now())
	if ok {
		a.suppressed = suppressed
		return a.deny(m)
	}
	return &DeniedError{Request: a.host, Reason: m.Reason, Rule: m.Rule}
}

// Refused records a packet that the gateway refused before it was accepted.
// network is tcp, udp, icmp or ip; the port of dst may be 0. Floods are
// counted, not written one by one.
func (e *Egress) Refused(network string, dst netip.AddrPort) {
	dst = unmapDst(dst)
	a := e.begin(ViaGateway, network, dst.Addr().String())
	a.target = Target{Addr: dst.Addr(), Port: dst.Port()}
	// Whoever reads the record knows the host by the name that was looked up.
	if names := e.gw.pins.namesOf(dst.Addr()); len(names) > 0 {
		a.target = Target{Name: names[0], Port: dst.Port()}
	}
	m := deny(ReasonNetwork, nil)
	if network == "tcp" {
		if d := e.door(e.Policy(), dst); !d.Allow {
			m = d.match
		} else {
			// Open now, and yet the packet met a closed gateway: its pin had
			// not arrived there, or had just gone.
			m = deny(ReasonPin, nil)
		}
	}
	_ = e.refuse(gatePacket, a, m)
}

// flushRefusals writes one last record for each kind with refusals that no
// record has counted yet.
func (e *Egress) flushRefusals() {
	for k := range e.gw.gates {
		g := &e.gw.gates[k]
		g.mu.Lock()
		n := g.suppressed
		g.suppressed = 0
		g.mu.Unlock()
		if n > 0 {
			a := e.begin(ViaGateway, "ip", "")
			a.suppressed = n
			_ = a.deny(deny(ReasonClosed, nil))
		}
	}
}
