//go:build linux

package container

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

const (
	// refusedGroup is the log group on which refused packets are reported.
	refusedGroup = 1
	// refusedPerSecond bounds the reports of one box, so that a guest that
	// scans costs its guard little. Refusals beyond it still refuse.
	refusedPerSecond, refusedBurst = 200, 400
	refusedSnap                    = 128
	// maxPins bounds the endpoints open at a time, and so the kernel memory
	// that look-ups can claim.
	maxPins = 16384
	dnsPort = 53
)

// ruleset is the gateway's nftables rules. In order: what a guest may reach
// passes, is redirected to the guard's listeners and accepted; everything
// else is reported and refused before it gets anywhere.
type ruleset struct {
	mu       sync.Mutex
	conn     *nftables.Conn
	table    *nftables.Table
	literals *nftables.Chain
	// Timed endpoints: an address with a port, and an address with any.
	pins4, pins6, hosts4, hosts6 *nftables.Set
}

// newRuleset installs the rules in the gateway's namespace, in one batch:
// there is no moment at which only some of them hold.
func newRuleset(ns *os.File) (*ruleset, error) {
	conn, err := nftables.New(nftables.WithNetNSFd(int(ns.Fd())), nftables.AsLasting(), nftables.WithSockOptions(roomForBatch))
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	r := &ruleset{conn: conn, table: conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "gateway"})}
	if err := r.addSets(); err != nil {
		return nil, errors.Join(err, conn.CloseLasting())
	}
	r.literals = conn.AddChain(&nftables.Chain{Name: "literals", Table: r.table})
	r.addGuard()
	r.addRedirect()
	r.addInput()
	drop := nftables.ChainPolicyDrop
	conn.AddChain(&nftables.Chain{
		Name: "forward", Table: r.table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &drop,
	})
	if err := conn.Flush(); err != nil {
		return nil, errors.Join(fmt.Errorf("nftables: install rules: %w", err), conn.CloseLasting())
	}
	return r, nil
}

func (r *ruleset) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conn == nil {
		return nil
	}
	err := r.conn.CloseLasting()
	r.conn = nil
	return err
}

func (r *ruleset) addSets() error {
	var id uint32
	set := func(name string, types ...nftables.SetDatatype) (*nftables.Set, error) {
		// Numbered here, since the library counts in a variable of its package
		// that nothing guards.
		id++
		s := &nftables.Set{Table: r.table, ID: id, Name: name, KeyType: types[0], HasTimeout: true, Size: maxPins}
		if len(types) > 1 {
			key, err := nftables.ConcatSetType(types...)
			if err != nil {
				return nil, fmt.Errorf("nftables: set %s: %w", name, err)
			}
			s.KeyType, s.Concatenation = key, true
		}
		if err := r.conn.AddSet(s, nil); err != nil {
			return nil, fmt.Errorf("nftables: set %s: %w", name, err)
		}
		return s, nil
	}
	var err4, err6, errh4, errh6 error
	r.pins4, err4 = set("pins4", nftables.TypeIPAddr, nftables.TypeInetService)
	r.pins6, err6 = set("pins6", nftables.TypeIP6Addr, nftables.TypeInetService)
	r.hosts4, errh4 = set("hosts4", nftables.TypeIPAddr)
	r.hosts6, errh6 = set("hosts6", nftables.TypeIP6Addr)
	return errors.Join(err4, err6, errh4, errh6)
}

// addGuard decides, before any redirection, what passes.
func (r *ruleset) addGuard() {
	c := r.conn.AddChain(&nftables.Chain{
		Name: "guard", Table: r.table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityMangle,
	})
	add := func(parts ...[]expr.Any) { r.rule(c, parts...) }

	add(link(expr.CmpOpNeq), accept())
	add(neighbourDiscovery(), accept())
	// Only the guest's own addresses: nothing can be asked in another's name.
	add(family(unix.NFPROTO_IPV4), source(expr.CmpOpNeq, guestV4.Addr()), drop())
	add(family(unix.NFPROTO_IPV6), source(expr.CmpOpNeq, guestV6.Addr()), drop())
	add(conntrack(expr.CtStateBitINVALID), drop())
	add(conntrack(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), accept())
	add(transport(unix.IPPROTO_UDP), port(dnsPort, dnsPort), accept())
	add(transport(unix.IPPROTO_TCP), port(dnsPort, dnsPort), accept())
	for _, s := range []struct {
		fam   byte
		pins  *nftables.Set
		hosts *nftables.Set
	}{{unix.NFPROTO_IPV4, r.pins4, r.hosts4}, {unix.NFPROTO_IPV6, r.pins6, r.hosts6}} {
		add(family(s.fam), transport(unix.IPPROTO_TCP), inPins(s.fam, s.pins), accept())
		add(family(s.fam), transport(unix.IPPROTO_TCP), inHosts(s.fam, s.hosts), accept())
	}
	add(transport(unix.IPPROTO_TCP), []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: r.literals.Name}})
	add([]expr.Any{
		&expr.Limit{Type: expr.LimitTypePkts, Rate: refusedPerSecond, Unit: expr.LimitTimeSecond, Burst: refusedBurst},
		&expr.Log{
			Key:   1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_SNAPLEN | 1<<unix.NFTA_LOG_QTHRESHOLD,
			Group: refusedGroup, Snaplen: refusedSnap, QThreshold: 1,
		},
	})
	add(transport(unix.IPPROTO_TCP), []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}})
	add([]expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}})
}

// addRedirect leads what passed to the listeners, whatever its destination.
func (r *ruleset) addRedirect() {
	c := r.conn.AddChain(&nftables.Chain{
		Name: "redirect", Table: r.table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
	})
	to := func(port uint16) []expr.Any {
		return []expr.Any{
			&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
			&expr.Redir{RegisterProtoMin: 1, Flags: unix.NF_NAT_RANGE_PROTO_SPECIFIED},
		}
	}
	r.rule(c, link(expr.CmpOpEq), transport(unix.IPPROTO_UDP), to(listenPort))
	r.rule(c, link(expr.CmpOpEq), transport(unix.IPPROTO_TCP), to(listenPort))
}

// addInput lets nothing into the gateway itself that was not redirected.
func (r *ruleset) addInput() {
	policy := nftables.ChainPolicyDrop
	c := r.conn.AddChain(&nftables.Chain{
		Name: "input", Table: r.table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter, Policy: &policy,
	})
	r.rule(c, link(expr.CmpOpNeq), accept())
	r.rule(c, neighbourDiscovery(), accept())
	r.rule(c, conntrackStatus(statusDNAT), accept())
}

func (r *ruleset) rule(c *nftables.Chain, parts ...[]expr.Any) {
	var es []expr.Any
	for _, p := range parts {
		es = append(es, p...)
	}
	r.conn.AddRule(&nftables.Rule{Table: r.table, Chain: c, Exprs: es})
}
