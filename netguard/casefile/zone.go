package casefile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/sandboxd/sandboxd/netguard"
)

// zone answers look-ups from a case's resolver section. Each name's answer
// sets are given one after the other; the last one repeats.
type zone struct {
	mu      sync.Mutex
	names   map[string]node
	given   map[string]int
	lookups int
}

// node is what one name has: answer sets or an alias.
type node struct {
	sets  [][]netip.Addr
	cname string
}

var errNoName = errors.New("no such name in the case's resolver")

func newZone(in map[string]json.RawMessage) (*zone, error) {
	z := &zone{names: map[string]node{}, given: map[string]int{}}
	for name, raw := range in {
		n, err := parseNode(raw)
		if err != nil {
			return nil, fmt.Errorf("resolver %q: %w", name, err)
		}
		z.names[name] = n
	}
	return z, nil
}

func parseNode(raw json.RawMessage) (node, error) {
	var alias struct {
		CNAME string `json:"cname"`
	}
	if json.Unmarshal(raw, &alias) == nil && alias.CNAME != "" {
		return node{cname: alias.CNAME}, nil
	}
	var sets [][]netip.Addr
	if json.Unmarshal(raw, &sets) == nil {
		return node{sets: sets}, nil
	}
	var set []netip.Addr
	if err := json.Unmarshal(raw, &set); err != nil {
		return node{}, err
	}
	return node{sets: [][]netip.Addr{set}}, nil
}

// Lookup implements netguard.Resolver.
func (z *zone) Lookup(_ context.Context, name string) (netguard.Answer, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.lookups++
	ans := netguard.Answer{}
	for at := name; ; ans.Chain++ {
		n, ok := z.names[at]
		if !ok {
			if n, ok = z.names["*"]; !ok {
				return ans, errNoName
			}
		}
		if n.cname == "" {
			ans.Addrs = append(ans.Addrs, z.next(at, n)...)
			return ans, nil
		}
		if ans.Chain >= netguard.MaxChain {
			return ans, netguard.ErrChain
		}
		at = n.cname
	}
}

func (z *zone) next(name string, n node) []netip.Addr {
	if len(n.sets) == 0 {
		return nil
	}
	i := min(z.given[name], len(n.sets)-1)
	z.given[name]++
	return n.sets[i]
}
