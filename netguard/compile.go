package netguard

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/netguard/iana"
	"github.com/sandboxd/sandboxd/netguard/shared"
)

// schemeSet is a set of URL schemes.
type schemeSet uint8

// The schemes that a policy may list.
const (
	schemeHTTP schemeSet = 1 << iota
	schemeHTTPS
	schemeWS
	schemeWSS
)

func schemeOf(s string) schemeSet {
	switch s {
	case "http":
		return schemeHTTP
	case "https":
		return schemeHTTPS
	case "ws":
		return schemeWS
	case "wss":
		return schemeWSS
	}
	return 0
}

// maxPolicyRedirects bounds max_redirects: a longer chain is a loop.
const maxPolicyRedirects = 50

// Compile checks a Config and makes it a Policy. The error is a *ConfigError
// that lists every fault. Compile copies what it keeps.
func Compile(cfg Config) (*Policy, error) {
	c := compiler{p: &Policy{
		mode:         cfg.Mode,
		maxRedirects: DefaultMaxRedirects,
		nat64:        cfg.NAT64,
		pinTTL:       cfg.PinTTL,
		limits:       cfg.Limits,
		local:        map[localKey]*rule{},
		localNames:   map[string]bool{},
	}}
	switch cfg.Mode {
	case ModeAllowlist:
	case ModePublic:
		c.warn("mode", "opens every public address that no deny rule covers")
	case "":
		c.fail("mode", "is required: allowlist or public")
	default:
		c.fail("mode", "%q is neither allowlist nor public", cfg.Mode)
	}
	c.allowRules(cfg.Allow)
	c.denyRules(cfg.Deny)
	for i, e := range cfg.AllowLocalEndpoint {
		c.localEndpoint(fmt.Sprintf("allow_local_endpoint[%d]", i), e)
	}
	c.http(cfg)
	c.limits(cfg)
	if len(c.faults) > 0 {
		return nil, &ConfigError{Fields: c.faults}
	}
	c.p.warnings = c.warnings
	return c.p, nil
}

type compiler struct {
	p        *Policy
	faults   []FieldError
	warnings []Warning
}

func (c *compiler) fail(path, format string, args ...any) {
	c.faults = append(c.faults, FieldError{path, fmt.Sprintf(format, args...)})
}

func (c *compiler) warn(path, format string, args ...any) {
	c.warnings = append(c.warnings, Warning{path, fmt.Sprintf(format, args...)})
}

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
				c.p.literals = append(c.p.literals, r)
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

func (c *compiler) localEndpoint(path, s string) {
	t, reason := ParseTarget(s)
	switch {
	case reason != "":
		c.fail(path, "%q is not host:port: %s", cut(s), reason)
		return
	case t.Port == 0:
		c.fail(path, "port 0 is no destination")
		return
	case t.Name != "" && metadataName(t.Name), t.Addr.IsValid() && iana.Metadata(t.Addr):
		c.fail(path, "metadata services never open")
		return
	}
	if t.Addr.IsValid() {
		class := iana.Lookup(t.Addr)
		if class.Public() {
			c.fail(path, "is a public address: it belongs in allow")
			return
		}
		if !class.Local() {
			c.fail(path, "is %s: only loopback, RFC 1918, CGNAT and ULA addresses can be opened", class)
			return
		}
	}
	key := localKey{t.Name, t.Addr, t.Port}
	if c.p.local[key] == nil {
		c.p.local[key] = &rule{id: path + " " + t.String(), ports: []portRange{{t.Port, t.Port}}, protocol: ProtocolTCP}
	}
	if t.Name != "" {
		c.p.localNames[t.Name] = true
	}
}

func (c *compiler) http(cfg Config) {
	if cfg.Schemes == nil {
		c.p.schemes = schemeHTTP | schemeHTTPS | schemeWS | schemeWSS
	} else if len(cfg.Schemes) == 0 {
		c.fail("schemes", "is empty: leave it out for all of http, https, ws, wss")
	}
	for i, s := range cfg.Schemes {
		bit := schemeOf(s)
		if bit == 0 {
			c.fail("schemes["+strconv.Itoa(i)+"]", "%q is none of http, https, ws, wss", cut(s))
		}
		c.p.schemes |= bit
	}
	if n := cfg.MaxRedirects; n != nil {
		if *n < 0 || *n > maxPolicyRedirects {
			c.fail("max_redirects", "%d is not in 0..%d", *n, maxPolicyRedirects)
		}
		c.p.maxRedirects = *n
	}
	switch cfg.CrossOriginBody {
	case "", "deny":
	case "allow":
		c.p.crossOriginBody = true
		c.warn("cross_origin_body", "a redirect can carry a request's body, with its secrets, elsewhere")
	default:
		c.fail("cross_origin_body", "%q is neither allow nor deny", cut(cfg.CrossOriginBody))
	}
}

func (c *compiler) limits(cfg Config) {
	for _, l := range []struct {
		name  string
		value int64
	}{
		{"connections", int64(cfg.Limits.Connections)},
		{"per_second", int64(cfg.Limits.PerSecond)},
		{"bytes_up", cfg.Limits.BytesUp},
		{"bytes_down", cfg.Limits.BytesDown},
		{"names_per_wildcard", int64(cfg.Limits.NamesPerWildcard)},
	} {
		if l.value < 0 {
			c.fail("limits."+l.name, "is negative")
		}
	}
	if cfg.PinTTL < 0 || cfg.PinTTL > 24*time.Hour {
		c.fail("pin_ttl", "%s is not in 0..24h", cfg.PinTTL)
	}
	if cfg.NAT64 {
		c.warn("nat64", "a translator outside the guard chooses the final address")
	}
}
