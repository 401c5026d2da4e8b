package netguard

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/sandboxd/sandboxd/netguard/iana"
)

// CheckTrusted reports why a range cannot be one on which an operator trusts a
// named host: it must be a canonical prefix that lies wholly in private,
// shared (CGNAT), ULA, benchmarking, documentation or reserved space. Loopback
// and link-local never qualify: whoever answers for the host's name would then
// choose among the services of this very machine, its cloud's metadata among
// them. An exact local endpoint is what opens one of those.
func CheckTrusted(p netip.Prefix) error {
	if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() {
		return fmt.Errorf("%q is not a canonical prefix", p)
	}
	whole := carve(p, slices.Collect(iana.Blocks()),
		func(a netip.Addr) bool { return !trustable(a) },
		func(netip.Prefix) bool { return false })
	if !whole {
		return fmt.Errorf("%s is not wholly private, shared, benchmarking, documentation or reserved space: nothing else can be trusted", p)
	}
	return nil
}

// trustable reports whether an address is of a kind that an operator's word
// can open for a named host.
func trustable(a netip.Addr) bool {
	switch iana.Lookup(a) {
	case iana.V4Private, iana.V4Cgnat, iana.V4Benchmark, iana.V4Doc,
		iana.V6Ula, iana.V6Benchmark, iana.V6Doc:
		return true
	case iana.V4Reserved:
		return a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
	default:
		return false
	}
}

// trustedHosts checks and compiles Options.TrustedHosts.
func trustedHosts(in map[string][]netip.Prefix) (map[string]*prefixTable, error) {
	out := make(map[string]*prefixTable, len(in))
	for host, prefixes := range in {
		name, _, reason := ParseHost(host)
		if reason != "" || name == "" {
			return nil, fmt.Errorf("trusted ranges of %q: not a host's name", cut(host))
		}
		for _, p := range prefixes {
			if err := CheckTrusted(p); err != nil {
				return nil, fmt.Errorf("trusted ranges of %s: %w", name, err)
			}
		}
		t, err := operatorTable(prefixes)
		if err != nil {
			return nil, fmt.Errorf("trusted ranges of %s: %w", name, err)
		}
		if out[name] != nil {
			return nil, fmt.Errorf("trusted ranges of %s: given twice", name)
		}
		out[name] = &t
	}
	return out, nil
}

// trustsHost reports whether an answer outside the public space is one that
// the operator expects of this very name. What is refused for everyone stays
// refused.
func (g *Guard) trustsHost(name string, a netip.Addr) bool {
	t := g.trustedHosts[name]
	return t != nil && t.find(a) != nil && trustable(a) && !iana.Metadata(a) && g.refused.find(a) == nil
}
