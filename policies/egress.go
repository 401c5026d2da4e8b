package policies

import (
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/sandboxd/sandboxd/netguard"
	"github.com/sandboxd/sandboxd/policies/strict"
)

// egress takes a netguard.Config out of a mapping and compiles it once, so
// that what the compiler finds is reported at the place that it is about.
func (d *decoder) egress(n *strict.Node, path string) *netguard.Config {
	r := d.r
	m := r.Map(n, path, "mode", "allow", "deny", "allow_local_endpoint", "schemes", "max_redirects",
		"nat64", "cross_origin_body", "limits", "pin_ttl")
	if m.Node() == nil {
		return nil
	}
	c := &netguard.Config{
		Mode:               netguard.Mode(m.String("mode")),
		AllowLocalEndpoint: m.Strings("allow_local_endpoint"),
		Schemes:            m.Strings("schemes"),
		NAT64:              m.Bool("nat64"),
		CrossOriginBody:    m.String("cross_origin_body"),
		Limits:             egressLimits(r, m.Get("limits"), m.Path("limits")),
		PinTTL:             m.Duration("pin_ttl"),
	}
	var items []item
	for i, node := range m.List("allow") {
		items = append(items, allowRule(r, node, strict.Index(m.Path("allow"), i)))
	}
	var from []int
	c.Allow, from = d.expand(items)
	for i, node := range m.List("deny") {
		rule := r.Map(node, strict.Index(m.Path("deny"), i), "host", "cidr")
		c.Deny = append(c.Deny, netguard.Rule{Host: rule.String("host"), CIDR: rule.String("cidr")})
	}
	if m.Get("max_redirects") != nil {
		hops := int(m.Int("max_redirects", 0, math.MaxInt32))
		c.MaxRedirects = &hops
	}
	d.compile(n, path, c, from)
	return c
}

func allowRule(r *strict.Reporter, n *strict.Node, path string) item {
	m := r.Map(n, path, "host", "cidr", "ports", "resolve_within", "shared_suffix", "protocol", "ech")
	rule := netguard.Rule{
		Host:          m.String("host"),
		CIDR:          m.String("cidr"),
		Ports:         ports(r, m),
		ResolveWithin: m.Strings("resolve_within"),
		SharedSuffix:  m.Bool("shared_suffix"),
		Protocol:      netguard.Protocol(m.String("protocol")),
		ECH:           m.String("ech"),
	}
	return item{rule: rule, node: n, path: path, registry: registryOf(r, m, rule.Host)}
}

// ports keeps numbers and ranges as they were written; the compiler reads
// them, and refuses a list without any.
func ports(r *strict.Reporter, m strict.Map) []netguard.Port {
	n := m.Get("ports")
	if n == nil {
		if m.Has("ports") {
			m.Errorf("ports", "is empty: leave the key out for 443, or list the ports")
		}
		return nil
	}
	out := []netguard.Port{} // not nil, which means 443
	for i, item := range m.List("ports") {
		if item.Kind != strict.Int && item.Kind != strict.String {
			r.Errorf(item, strict.Index(m.Path("ports"), i), `want a port such as 443 or a range such as "8000-8100"`)
		}
		out = append(out, netguard.Port(item.Text))
	}
	return out
}

func egressLimits(r *strict.Reporter, n *strict.Node, path string) netguard.Limits {
	m := r.Map(n, path, "connections", "per_second", "bytes_up", "bytes_down", "names_per_wildcard")
	return netguard.Limits{
		Connections:      int(m.Int("connections", 1, math.MaxInt32)),
		PerSecond:        int(m.Int("per_second", 1, math.MaxInt32)),
		BytesUp:          m.Bytes("bytes_up"),
		BytesDown:        m.Bytes("bytes_down"),
		NamesPerWildcard: int(m.Int("names_per_wildcard", 1, math.MaxInt32)),
	}
}

// compile reports the compiler's faults and warnings at their places, also
// where the syntax had faults: one round must show all. A value that was
// refused already is not reported for being missing. from leads from a
// compiled rule back to the document's.
func (d *decoder) compile(n *strict.Node, path string, c *netguard.Config, from []int) {
	p, err := netguard.Compile(*c)
	for _, w := range p.Warnings() {
		if at := written(w.Path, from); !d.reviewed {
			d.r.Warnf(n.At(at), join(path, at), "%s", w.Msg)
		}
	}
	var faults *netguard.ConfigError
	switch {
	case err == nil:
	case errors.As(err, &faults):
		for _, f := range faults.Fields {
			if at := written(f.Path, from); !d.r.Faulty(join(path, at)) {
				d.r.Errorf(n.At(at), join(path, at), "%s", f.Msg)
			}
		}
	default:
		d.r.Errorf(n, path, "%v", err)
	}
}

// written is a path's place in the document, in which one allow rule can stand
// for several or for none.
func written(path string, from []int) string {
	rest, ok := strings.CutPrefix(path, "allow[")
	num, rest, closed := strings.Cut(rest, "]")
	i, err := strconv.Atoi(num)
	if !ok || !closed || err != nil || i < 0 || i >= len(from) {
		return path
	}
	return strict.Index("allow", from[i]) + rest
}

func join(path, sub string) string {
	switch {
	case sub == "" || path == "":
		return path + sub
	case sub[0] == '[':
		return path + sub
	}
	return path + "." + sub
}
