//go:build linux

package container

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

const (
	// maxLiteralRules bounds the rules that one call of open may add, each for
	// one run of ports of one network: a new connection meets them in turn.
	maxLiteralRules = 4096
	// batchBuffer holds a batch of so many rules on its way to the kernel, and
	// the kernel's acknowledgement of each on its way back, in bytes. With the
	// host's default some 150 rules fit.
	batchBuffer = 8 << 20
	// maxSetMessage is how many elements one message to a set takes: a netlink
	// attribute ends at 64 KiB.
	maxSetMessage = 512
)

// roomForBatch makes a netlink socket large enough for a batch.
func roomForBatch(c *netlink.Conn) error {
	return errors.Join(c.SetWriteBuffer(batchBuffer), c.SetReadBuffer(batchBuffer))
}

// open lets endpoints through. Timed ones must be single addresses; opening
// one again extends its time. Untimed ones stay as long as the box. All take
// effect together or, with an error, none.
func (r *ruleset) open(openings []Opening) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conn == nil {
		return errors.New("container: the gateway is closed")
	}
	rules := 0
	for _, o := range openings {
		if err := checkOpening(o); err != nil {
			return err
		}
		if o.TTL == 0 {
			rules += len(portRuns(o.Ports))
		}
	}
	if rules > maxLiteralRules {
		return fmt.Errorf("%w: %d networks and port ranges are open without a look-up, over %d", sandbox.ErrInvalid, rules, maxLiteralRules)
	}
	pins := map[*nftables.Set]map[string]time.Duration{}
	for _, o := range openings {
		if o.TTL == 0 {
			r.openLiteral(o)
		} else {
			r.gather(pins, o)
		}
	}
	for set, keys := range pins {
		if err := r.openTimed(set, keys); err != nil {
			return err
		}
	}
	if err := r.conn.Flush(); err != nil {
		return fmt.Errorf("container: open endpoints: %w", err)
	}
	return nil
}

func checkOpening(o Opening) error {
	switch {
	case !o.Prefix.IsValid() || o.Prefix.Addr().Is4In6() || o.Prefix != o.Prefix.Masked():
		return fmt.Errorf("container: opening %s is not a network", o.Prefix)
	case o.TTL < 0 || o.TTL > 0 && o.TTL < time.Millisecond:
		return fmt.Errorf("container: opening %s for %s", o.Prefix, o.TTL)
	case o.TTL > 0 && !o.Prefix.IsSingleIP():
		return fmt.Errorf("container: a timed opening must be one address, not %s", o.Prefix)
	case o.Ports != nil && len(o.Ports) == 0:
		return fmt.Errorf("container: opening %s has an empty list of ports", o.Prefix)
	}
	return nil
}

// portRun is a range of ports, both ends included.
type portRun struct{ first, last uint16 }

// portRuns joins neighbouring ports, so that a range takes one rule. No list
// means every port.
func portRuns(ports []uint16) []portRun {
	if ports == nil {
		return []portRun{{0, 65535}}
	}
	var runs []portRun
	for _, p := range slices.Sorted(slices.Values(ports)) {
		if k := len(runs) - 1; k >= 0 && int(p) <= int(runs[k].last)+1 {
			runs[k].last = p
			continue
		}
		runs = append(runs, portRun{p, p})
	}
	return runs
}

func (r *ruleset) openLiteral(o Opening) {
	fam := byte(unix.NFPROTO_IPV4)
	if o.Prefix.Addr().Is6() {
		fam = unix.NFPROTO_IPV6
	}
	for _, p := range portRuns(o.Ports) {
		r.rule(r.literals, family(fam), transport(unix.IPPROTO_TCP), destination(o.Prefix), port(p.first, p.last), accept())
	}
}

// gather notes a timed opening's elements, each once: a batch that removes one
// twice fails as a whole.
func (r *ruleset) gather(pins map[*nftables.Set]map[string]time.Duration, o Opening) {
	addr := o.Prefix.Addr().AsSlice()
	set, hosts := r.pins4, r.hosts4
	if o.Prefix.Addr().Is6() {
		set, hosts = r.pins6, r.hosts6
	}
	if o.Ports == nil {
		set = hosts
	}
	if pins[set] == nil {
		pins[set] = map[string]time.Duration{}
	}
	if o.Ports == nil {
		pins[set][string(addr)] = o.TTL
	}
	for _, p := range o.Ports {
		// A concatenation pads each part to four bytes.
		key := append(binary.BigEndian.AppendUint16(slices.Clone(addr), p), 0, 0)
		pins[set][string(key)] = o.TTL
	}
}

func (r *ruleset) openTimed(set *nftables.Set, keys map[string]time.Duration) error {
	els := make([]nftables.SetElement, 0, len(keys))
	for k, ttl := range keys {
		els = append(els, nftables.SetElement{Key: []byte(k), Timeout: ttl})
	}
	for part := range slices.Chunk(els, maxSetMessage) {
		// Adding does not extend what is there already, on most kernels. Within
		// one batch an element can be made sure of, removed and added anew.
		err := errors.Join(r.conn.SetAddElements(set, part), r.conn.SetDeleteElements(set, part), r.conn.SetAddElements(set, part))
		if err != nil {
			return fmt.Errorf("container: open endpoints: %w", err)
		}
	}
	return nil
}

// hostPrefix is the prefix of one address.
func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
