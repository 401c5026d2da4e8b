package netguard

import "strings"

// URL is an absolute URL in parts, read strictly: what follows the authority
// is kept as it came.
type URL struct {
	Scheme string // lower case: http, https, ws or wss
	Target Target
	Rest   string // path, query and fragment
}

// ParseURL reads an absolute http, https, ws or wss URL so that no two parsers
// can disagree about its host: printable ASCII only and no backslash, an
// authority after "//", no userinfo, no percent sign in the host, a port of
// plain digits. Any other scheme is ReasonScheme, which is a denial and not a
// syntax error.
func ParseURL(s string) (URL, Reason) {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c <= ' ' || c >= 0x7f || c == '\\' {
			return URL{}, ReasonURLBytes
		}
	}
	scheme, rest, ok := strings.Cut(s, ":")
	if !ok || !validScheme(scheme) {
		return URL{}, ReasonURLSyntax
	}
	u := URL{Scheme: strings.ToLower(scheme)}
	known := schemeOf(u.Scheme) != 0
	rest, ok = strings.CutPrefix(rest, "//")
	if !ok {
		if known {
			return URL{}, ReasonURLSyntax
		}
		return URL{}, ReasonScheme
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	authority := rest[:end]
	u.Rest = rest[end:]
	if !known && authority == "" {
		return URL{}, ReasonScheme
	}
	var reason Reason
	if u.Target, reason = parseAuthority(authority, defaultPort(u.Scheme)); reason != "" {
		return URL{}, reason
	}
	if !known {
		return URL{}, ReasonScheme
	}
	return u, ""
}

// parseAuthority reads host[:port] as a URL writes it (RFC 3986, 3.2).
func parseAuthority(s, port string) (Target, Reason) {
	if strings.IndexByte(s, '@') >= 0 {
		return Target{}, ReasonURLUserinfo
	}
	host := s
	if strings.HasPrefix(s, "[") {
		i := strings.IndexByte(s, ']')
		if i < 0 {
			return Target{}, ReasonURLSyntax
		}
		host = s[:i+1]
	} else if i := strings.IndexByte(s, ':'); i >= 0 {
		host = s[:i]
	}
	switch tail := s[len(host):]; {
	case tail == "" || tail == ":":
	case tail[0] == ':':
		port = tail[1:]
	default:
		return Target{}, ReasonURLSyntax
	}
	if host == "" || strings.IndexByte(host, '%') >= 0 {
		return Target{}, ReasonURLSyntax
	}
	t, reason := parseTarget(host, port)
	if reason == ReasonIPSyntax {
		reason = ReasonURLSyntax
	}
	return t, reason
}

// validScheme is RFC 3986, 3.1.
func validScheme(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i] | 0x20
		if 'a' <= c && c <= 'z' {
			continue
		}
		digit := '0' <= s[i] && s[i] <= '9'
		if i == 0 || !digit && s[i] != '+' && s[i] != '-' && s[i] != '.' {
			return false
		}
	}
	return s != ""
}

func defaultPort(scheme string) string {
	switch scheme {
	case "http", "ws":
		return "80"
	default:
		return "443"
	}
}

// wire is what a scheme speaks below HTTP.
func (u URL) wire() Protocol {
	if u.Scheme == "https" || u.Scheme == "wss" {
		return ProtocolTLS
	}
	return ProtocolHTTP
}

// sameOrigin compares scheme, host and port (RFC 6454, 5).
func (u URL) sameOrigin(v URL) bool { return u.Scheme == v.Scheme && u.Target == v.Target }

// judgeURL is judge for a URL: its scheme, and what it would speak on the wire.
func (g *Guard) judgeURL(p *Policy, registry string, u URL) match {
	if p == nil || p.mode == "" {
		return deny(ReasonNoPolicy, nil)
	}
	if p.schemes&schemeOf(u.Scheme) == 0 {
		return deny(ReasonScheme, nil)
	}
	m := g.judge(p, registry, u.Target)
	if m.Allow && !m.permits(u.wire(), u.Target) {
		return deny(ReasonProtocol, m.rule)
	}
	return m
}
