package netguard

import (
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

// Target is one endpoint in canonical form: a name or a literal, and a port.
// Exactly one of Name and Addr is set.
type Target struct {
	Name string     // lower case, A-labels, no trailing dot
	Addr netip.Addr // as written; never unmapped
	Port uint16
}

// Host is the name or the literal's text.
func (t Target) Host() string {
	if t.Name != "" {
		return t.Name
	}
	return t.Addr.String()
}

// String is host:port, with brackets around an IPv6 literal.
func (t Target) String() string {
	port := strconv.Itoa(int(t.Port))
	if t.Name == "" && t.Addr.Is6() {
		return "[" + t.Addr.String() + "]:" + port
	}
	return t.Host() + ":" + port
}

const (
	maxName  = 253 // octets in presentation form (RFC 1035, 3.1)
	maxLabel = 63
)

// ParseHost reads a host as a policy, a URL or a socket call gives it: a name
// of A-labels, with one trailing dot tolerated, or an address in the one text
// form that every parser agrees on. Only one of the first two results is set.
func ParseHost(s string) (string, netip.Addr, Reason) {
	if strings.IndexByte(s, ':') >= 0 {
		a, reason := ParseIP(s)
		if reason != "" {
			reason = ReasonHostSyntax
		}
		return "", a, reason
	}
	name := strings.TrimSuffix(s, ".")
	if reason := checkName(name); reason != "" {
		return "", netip.Addr{}, reason
	}
	name = strings.ToLower(name) // returns its argument where nothing changes
	if numericLast(name) {
		a, err := netip.ParseAddr(name)
		if err != nil || len(name) != len(s) {
			return "", netip.Addr{}, ReasonHostNumeric
		}
		return "", a, ""
	}
	if strings.Contains(name, "xn--") && !validALabels(name) {
		return "", netip.Addr{}, ReasonHostIDNA
	}
	return name, netip.Addr{}, ""
}

// ParseIP reads an address without brackets, zone, port or prefix length: a
// dotted quad without leading zeros, or RFC 4291 text (2.2).
func ParseIP(s string) (netip.Addr, Reason) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" || strings.IndexByte(s, '%') >= 0 {
		return netip.Addr{}, ReasonIPSyntax
	}
	return a, ""
}

// checkName checks length, labels and characters. An underscore is accepted:
// it is common in host names and harmless in a comparison of bytes.
func checkName(s string) Reason {
	if s == "" || len(s) > maxName {
		return ReasonHostSyntax
	}
	start := 0
	for i := 0; i <= len(s); i++ {
		if i == len(s) || s[i] == '.' {
			n := i - start
			if n == 0 || n > maxLabel || s[start] == '-' || s[i-1] == '-' {
				if n == len("xn--") && strings.EqualFold(s[start:i], "xn--") {
					return ReasonHostIDNA
				}
				return ReasonHostSyntax
			}
			start = i + 1
			continue
		}
		c := s[i]
		if !isAlnum(c) && c != '-' && c != '_' {
			return ReasonHostSyntax
		}
	}
	return ""
}

// numericLast reports whether the last label is a number as WHATWG URL reads
// one: digits, or 0x and hex digits. Some parser takes such a host for an
// IPv4 address, so it must be one in canonical form.
func numericLast(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	if len(last) >= 2 && last[0] == '0' && last[1] == 'x' {
		for i := 2; i < len(last); i++ {
			if c := last[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false
			}
		}
		return true
	}
	for i := 0; i < len(last); i++ {
		if last[i] < '0' || last[i] > '9' {
			return false
		}
	}
	return true
}

// validALabels reports whether each xn-- label decodes to a U-label (RFC
// 5891) and encodes to the same bytes again.
func validALabels(name string) bool {
	for label := range strings.SplitSeq(name, ".") {
		if !strings.HasPrefix(label, "xn--") {
			continue
		}
		p := idna.New(idna.ValidateLabels(true), idna.CheckHyphens(true), idna.CheckJoiners(true),
			idna.BidiRule(), idna.StrictDomainName(true))
		u, err := p.ToUnicode(label)
		if err != nil || u == label || u == "" {
			return false
		}
		back, err := p.ToASCII(u)
		if err != nil || back != label {
			return false
		}
	}
	return true
}

// ParsePort reads a port without sign, name or leading zeros. Zero parses: it
// is well formed, and refused by every policy.
func ParsePort(s string) (uint16, Reason) {
	if s == "" || len(s) > 5 || len(s) > 1 && s[0] == '0' {
		return 0, ReasonPortSyntax
	}
	n := 0
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return 0, ReasonPortSyntax
		}
		n = n*10 + int(s[i]-'0')
	}
	if n > 65535 {
		return 0, ReasonPortSyntax
	}
	return uint16(n), ""
}

// ParseTarget reads host:port, with brackets around an IPv6 literal.
func ParseTarget(s string) (Target, Reason) {
	host, port, reason := splitPort(s)
	if reason != "" {
		return Target{}, reason
	}
	return parseTarget(host, port)
}

func parseTarget(host, port string) (Target, Reason) {
	t := Target{}
	var reason Reason
	if strings.HasPrefix(host, "[") {
		t.Addr, reason = ParseIP(strings.TrimSuffix(host[1:], "]"))
		if reason == "" && t.Addr.Is4() {
			reason = ReasonIPSyntax
		}
	} else if strings.IndexByte(host, ':') >= 0 {
		reason = ReasonHostSyntax // an IPv6 literal needs its brackets here
	} else {
		t.Name, t.Addr, reason = ParseHost(host)
	}
	if reason != "" {
		return Target{}, reason
	}
	t.Port, reason = ParsePort(port)
	return t, reason
}

// splitPort cuts at the colon that follows the host; the brackets stay.
func splitPort(s string) (host, port string, _ Reason) {
	if strings.HasPrefix(s, "[") {
		i := strings.IndexByte(s, ']')
		if i < 0 {
			return "", "", ReasonHostSyntax
		}
		host, port = s[:i+1], s[i+1:]
	} else if i := strings.IndexByte(s, ':'); i >= 0 {
		host, port = s[:i], s[i:]
	} else {
		host = s
	}
	if !strings.HasPrefix(port, ":") {
		return "", "", ReasonPortSyntax
	}
	return host, port[1:], ""
}
