package netguard

import (
	"net/netip"
	"strings"
	"time"
)

// Policy is a compiled Config: immutable, shared between sandboxes and safe
// for concurrent use. A nil Policy and the zero one deny everything.
type Policy struct {
	mode            Mode
	allow           hostTable
	deny            hostTable
	allowNets       prefixTable
	denyNets        prefixTable
	local           map[localKey]*rule
	schemes         schemeSet
	maxRedirects    int
	nat64           bool
	crossOriginBody bool
	limits          Limits
	pinTTL          time.Duration
	warnings        []Warning
}

// rule is one compiled entry.
type rule struct {
	id       string // "allow[3] host *.example.org"
	suffix   string // for a wildcard, the name below which it matches
	prefix   netip.Prefix
	ports    []portRange
	within   *prefixTable // nil: anywhere public
	protocol Protocol
	ech      bool
	wildcard bool
}

// portRange is inclusive at both ends.
type portRange struct{ first, last uint16 }

// localKey is one exact local endpoint: a name or an address, and a port.
type localKey struct {
	name string
	addr netip.Addr
	port uint16
}

func (r *rule) hasPort(port uint16) bool {
	for _, p := range r.ports {
		if port >= p.first && port <= p.last {
			return true
		}
	}
	return false
}

// permits reports whether proto may be spoken under the rule on that port.
// With no protocol written a rule opens TLS, and HTTP on port 80; a cidr rule
// names no host that could be checked, so it opens raw bytes too.
func (r *rule) permits(proto Protocol, port uint16) bool {
	switch r.protocol {
	case ProtocolTCP:
		return true
	case "":
		if r.prefix.IsValid() {
			return true
		}
		return proto == ProtocolTLS || proto == ProtocolHTTP && port == 80
	default:
		return proto == r.protocol
	}
}

// hostTable finds rules by canonical name: exact ones by the name itself,
// wildcards by each suffix of it. A look-up costs one map access a label.
type hostTable struct {
	exact  map[string][]*rule
	suffix map[string][]*rule
}

// each yields the rules that match name, exact ones first, then from the
// longest suffix to the shortest, and stops when yield returns false.
func (t *hostTable) each(name string, yield func(*rule) bool) {
	for _, r := range t.exact[name] {
		if !yield(r) {
			return
		}
	}
	if len(t.suffix) == 0 {
		return
	}
	for rest := name; ; {
		i := strings.IndexByte(rest, '.')
		if i < 0 {
			return
		}
		rest = rest[i+1:]
		for _, r := range t.suffix[rest] {
			if !yield(r) {
				return
			}
		}
	}
}

// first is the first rule that matches name, or nil.
func (t *hostTable) first(name string) (found *rule) {
	t.each(name, func(r *rule) bool { found = r; return false })
	return found
}

// Warnings lists the rules that compiled and deserve a second look.
func (p *Policy) Warnings() []Warning {
	if p == nil {
		return nil
	}
	return append([]Warning(nil), p.warnings...)
}

// Limits are the policy's bounds with the defaults filled in.
func (p *Policy) Limits() Limits {
	if p == nil {
		return Limits{}.withDefaults()
	}
	return p.limits.withDefaults()
}

// PinTTL is the longest time for which a look-up's answer opens its addresses.
func (p *Policy) PinTTL() time.Duration {
	if p == nil || p.pinTTL == 0 {
		return DefaultPinTTL
	}
	return p.pinTTL
}

func (l Limits) withDefaults() Limits {
	if l.Connections == 0 {
		l.Connections = DefaultConnections
	}
	if l.PerSecond == 0 {
		l.PerSecond = DefaultPerSecond
	}
	if l.NamesPerWildcard == 0 {
		l.NamesPerWildcard = DefaultNamesPerWildcard
	}
	return l
}

// PermitsScheme reports whether the policy lets a URL of the scheme be asked
// for at all.
func (p *Policy) PermitsScheme(scheme string) bool {
	return p != nil && p.schemes&schemeOf(scheme) != 0
}
