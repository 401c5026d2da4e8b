package netguard

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/sandboxd/sandboxd/netguard/iana"
	"github.com/sandboxd/sandboxd/netguard/shared"
)

func (c *compiler) allowRules(rules []Rule) {
	t := hostTable{exact: map[string][]*rule{}, suffix: map[string][]*rule{}}
	var nets []prefixEntry
	for i, in := range rules {
		path := fmt.Sprintf("allow[%d]", i)
		r := &rule{protocol: in.Protocol, ech: in.ECH == "allow"}
		c.ruleOptions(path, in)
		r.ports = c.ports(path+".ports", in.Ports)
		switch {
		case in.Host != "" && in.CIDR != "":
			c.fail(path, "has both host and cidr: use resolve_within to bound a host's addresses")
		case in.Host != "":
			name, ok := c.allowHost(path, in, r)
			if !ok {
				continue
			}
			r.within = c.within(path+".resolve_within", in.ResolveWithin)
			r.id = path + " host " + in.Host
			if r.wildcard {
				t.suffix[name] = append(t.suffix[name], r)
			} else {
				t.exact[name] = append(t.exact[name], r)
			}
		case in.CIDR != "":
			if c.allowCIDR(path, in, r) {
				r.id = path + " cidr " + in.CIDR
				nets = append(nets, prefixEntry{r.prefix, r})
			}
		default:
			c.fail(path, "needs a host or a cidr")
		}
		c.riskyPorts(path+".ports", r)
	}
	c.p.allow = t
	c.p.allowNets = newPrefixTable(nets)
}

func (c *compiler) ruleOptions(path string, in Rule) {
	switch in.Protocol {
	case "", ProtocolTLS, ProtocolHTTP:
	case ProtocolTCP:
		if strings.HasPrefix(in.Host, "*.") {
			c.warn(path+".protocol", "raw bytes under a wildcard: no name is checked on the wire")
		}
	default:
		c.fail(path+".protocol", "%q is none of tls, http and tcp", in.Protocol)
	}
	switch in.ECH {
	case "", "deny":
	case "allow":
		c.warn(path+".ech", "an encrypted server name hides which site of a shared address is meant")
	default:
		c.fail(path+".ech", "%q is neither allow nor deny", in.ECH)
	}
}

// allowHost checks a host pattern and returns the name, or for a wildcard the
// suffix below which it matches.
func (c *compiler) allowHost(path string, in Rule, r *rule) (string, bool) {
	name, wildcard, err := parsePattern(in.Host)
	path += ".host"
	if err != "" {
		c.fail(path, "%s", err)
		return "", false
	}
	if specialName(name) && (wildcard || strings.Contains(name, ".") || name == "localhost") {
		c.fail(path, "%q is a special-use or metadata name: only allow_local_endpoint can open one", name)
		return "", false
	}
	if !wildcard {
		if shared.Itself(name) {
			c.fail(path, "%q is a public suffix, not a host", name)
			return "", false
		}
		if specialName(name) {
			c.fail(path, "%q has a single label: only allow_local_endpoint can open one", name)
			return "", false
		}
		if in.SharedSuffix {
			c.warn(path, "shared_suffix has no effect on an exact host")
		}
		return name, true
	}
	switch shared.Below(name) {
	case shared.Public:
		c.fail(path, "anyone can register a name below %q", name)
		return "", false
	case shared.Shared:
		if !in.SharedSuffix {
			c.fail(path, "strangers can register names below %q: say shared_suffix: true to accept that", name)
			return "", false
		}
		c.warn(path, "strangers can register names below %q", name)
	case shared.Private:
	}
	r.wildcard, r.suffix = true, name
	return name, true
}

// parsePattern reads a host or *.suffix; the third result is the fault.
func parsePattern(s string) (name string, wildcard bool, fault string) {
	if rest, ok := strings.CutPrefix(s, "*."); ok {
		s, wildcard = rest, true
	}
	if strings.Contains(s, "*") {
		return "", false, "a star may only be the whole first label, as in *.example.org"
	}
	name, addr, reason := ParseHost(s)
	switch {
	case reason != "":
		return "", false, fmt.Sprintf("%q is not a host name: %s", cut(s), reason)
	case addr.IsValid():
		return "", false, "is an address: use cidr"
	}
	return name, wildcard, ""
}

func (c *compiler) allowCIDR(path string, in Rule, r *rule) bool {
	if len(in.ResolveWithin) > 0 {
		c.fail(path+".resolve_within", "belongs to a host rule")
	}
	if in.SharedSuffix {
		c.fail(path+".shared_suffix", "belongs to a host rule")
	}
	p, fault := parseCIDR(in.CIDR)
	if fault != "" {
		c.fail(path+".cidr", "%s", fault)
		return false
	}
	if block, ok := iana.Refused(p); ok {
		c.fail(path+".cidr", "overlaps %s, which is never open: allow_local_endpoint opens one local host:port", block)
		return false
	}
	if p.Addr().Is4() && p.Bits() < 16 || p.Addr().Is6() && p.Bits() < 32 {
		c.warn(path+".cidr", "a broad range: many unrelated hosts live in it")
	}
	r.prefix = p
	return true
}

// parseCIDR reads a prefix in canonical form: no zone, no 4-in-6, no leading
// zeros and no bits below the length.
func parseCIDR(s string) (netip.Prefix, string) {
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		return p, fmt.Sprintf("%q is not an address with a prefix length", cut(s))
	case p.Addr().Is4In6():
		return p, "is IPv4-mapped: write the IPv4 prefix"
	case p != p.Masked():
		return p, fmt.Sprintf("has bits below its length: write %s", p.Masked())
	}
	return p, ""
}

func (c *compiler) within(path string, in []string) *prefixTable {
	if in == nil {
		return nil
	}
	if len(in) == 0 {
		c.fail(path, "is empty: leave it out to accept any public address")
	}
	var entries []prefixEntry
	for i, s := range in {
		p, fault := parseCIDR(s)
		if fault != "" {
			c.fail(fmt.Sprintf("%s[%d]", path, i), "%s", fault)
			continue
		}
		entries = append(entries, prefixEntry{prefix: p})
	}
	t := newPrefixTable(entries)
	return &t
}

func (c *compiler) ports(path string, in []Port) []portRange {
	if in == nil {
		return []portRange{{443, 443}}
	}
	if len(in) == 0 {
		c.fail(path, "is empty: leave it out for 443")
	}
	out := make([]portRange, 0, len(in))
	for i, s := range in {
		r, fault := parsePorts(string(s))
		if fault != "" {
			c.fail(fmt.Sprintf("%s[%d]", path, i), "%s", fault)
			continue
		}
		out = append(out, r)
	}
	return out
}

func parsePorts(s string) (portRange, string) {
	a, b, isRange := strings.Cut(s, "-")
	if !isRange {
		b = a
	}
	first, r1 := ParsePort(a)
	last, r2 := ParsePort(b)
	if r1 != "" || r2 != "" || first == 0 {
		return portRange{}, fmt.Sprintf("%q is neither a port in 1..65535 nor a range of them", cut(s))
	}
	if first > last {
		return portRange{}, fmt.Sprintf("%q runs backwards", cut(s))
	}
	return portRange{first, last}, ""
}

func (c *compiler) riskyPorts(path string, r *rule) {
	for _, p := range r.ports {
		if p.first <= 22 && 22 <= p.last {
			c.warn(path, "port 22: SSH can forward anything anywhere")
		}
		if p.first <= 53 && 53 <= p.last || p.first <= 853 && 853 <= p.last {
			c.warn(path, "a DNS port: a foreign resolver carries data out")
		}
		if p.last-p.first >= 1024 {
			c.warn(path, "a wide range of ports: %d-%d", p.first, p.last)
		}
	}
}

func (c *compiler) denyRules(rules []Rule) {
	t := hostTable{exact: map[string][]*rule{}, suffix: map[string][]*rule{}}
	var nets []prefixEntry
	for i, in := range rules {
		path := fmt.Sprintf("deny[%d]", i)
		if in.Ports != nil || in.ResolveWithin != nil || in.SharedSuffix || in.Protocol != "" || in.ECH != "" {
			c.fail(path, "a deny rule has a host or a cidr and nothing else: it covers every port")
		}
		switch {
		case in.Host != "" && in.CIDR != "":
			c.fail(path, "has both host and cidr: write two rules")
		case in.Host != "":
			name, wildcard, fault := parsePattern(in.Host)
			if fault != "" {
				c.fail(path+".host", "%s", fault)
				continue
			}
			r := &rule{id: path + " host " + in.Host, wildcard: wildcard}
			if wildcard {
				t.suffix[name] = append(t.suffix[name], r)
			} else {
				t.exact[name] = append(t.exact[name], r)
			}
		case in.CIDR != "":
			p, fault := parseCIDR(in.CIDR)
			if fault != "" {
				c.fail(path+".cidr", "%s", fault)
				continue
			}
			nets = append(nets, prefixEntry{p, &rule{id: path + " cidr " + in.CIDR, prefix: p}})
		default:
			c.fail(path, "needs a host or a cidr")
		}
	}
	c.p.deny = t
	c.p.denyNets = newPrefixTable(nets)
}
