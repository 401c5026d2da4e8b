package netguard

import (
	"net/http"
	"net/url"
	"strings"
)

// maxLocation bounds a Location field, in bytes.
const maxLocation = 8 << 10

// redirectStatus reports whether a status asks for a redirect that is
// followed where a Location says whither. 300 needs a choice, 304 is about caching, 305 and 306 are dead.
func redirectStatus(code int) bool {
	switch code {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther,
		http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return false
}

// hop is one request of a chain, reduced to what the redirect rules need.
type hop struct {
	url    URL
	method string
	body   bool // a body is sent
}

// nextHop applies the redirect rules to one response: where to go, with which
// method, with or without the body. text is the absolute URL of the next hop.
// The target itself is not judged yet. keepMethod refuses to turn a POST into
// a GET.
func nextHop(p *Policy, from hop, code int, location []string, keepMethod bool) (to hop, text string, reason Reason) {
	text, to.url, reason = resolveLocation(from.url, location)
	if reason != "" {
		return hop{}, "", reason
	}
	if to.url.Scheme != "http" && to.url.Scheme != "https" {
		return hop{}, "", ReasonScheme
	}
	if from.url.Scheme == "https" && to.url.Scheme == "http" {
		return hop{}, "", ReasonDowngrade
	}
	same := to.url.sameOrigin(from.url)
	to.method, to.body = from.method, from.body
	switch {
	case code == http.StatusSeeOther && from.method != http.MethodGet && from.method != http.MethodHead,
		(code == http.StatusMovedPermanently || code == http.StatusFound) && from.method == http.MethodPost:
		if keepMethod {
			return hop{}, "", ReasonRedirMethod
		}
		to.method, to.body = http.MethodGet, false
	}
	if to.body && !same && !p.crossOriginBody {
		return hop{}, "", ReasonRedirBody
	}
	return to, text, ""
}

// resolveLocation reads the one Location field against the URL that answered
// it (RFC 9110, 10.2.2). What two parsers could read differently is refused.
func resolveLocation(base URL, fields []string) (string, URL, Reason) {
	if len(fields) != 1 || fields[0] == "" || len(fields[0]) > maxLocation {
		return "", URL{}, ReasonLocation
	}
	loc := fields[0]
	for i := 0; i < len(loc); i++ {
		if c := loc[i]; c <= ' ' || c >= 0x7f || c == '\\' {
			return "", URL{}, ReasonLocation
		}
	}
	text := loc
	switch {
	case hasScheme(loc):
	case strings.HasPrefix(loc, "//"):
		text = base.Scheme + ":" + loc
	default:
		ref, err := url.Parse(loc)
		if err != nil || ref.Scheme != "" || ref.Host != "" || ref.User != nil || ref.Opaque != "" {
			return "", URL{}, ReasonLocation
		}
		b, err := url.Parse(base.Scheme + "://" + base.Target.String() + base.Rest)
		if err != nil {
			return "", URL{}, ReasonLocation
		}
		// Only the path is taken from net/url; scheme and authority stay.
		merged := b.ResolveReference(ref)
		merged.Scheme, merged.Host = "", ""
		text = base.Scheme + "://" + base.authority() + rooted(merged.String())
	}
	u, reason := ParseURL(text)
	return text, u, reason
}

// authority writes host and port as the URL had them in canonical form: the
// scheme's own port is left out.
func (u URL) authority() string {
	s := u.Target.String()
	return strings.TrimSuffix(s, ":"+defaultPort(u.Scheme))
}

func rooted(path string) string {
	if !strings.HasPrefix(path, "/") {
		return "/" + path
	}
	return path
}

// hasScheme reports whether a reference starts with a scheme (RFC 3986, 4.2).
func hasScheme(s string) bool {
	i := strings.IndexAny(s, ":/?#")
	return i >= 0 && s[i] == ':' && validScheme(s[:i])
}

// originFree lists the request fields that may follow a redirect to another
// origin: they describe the client, not the caller.
func originFree(name string, body bool) bool {
	switch http.CanonicalHeaderKey(name) {
	case "Accept", "Accept-Language", "User-Agent", "Mcp-Protocol-Version":
		return true
	}
	return body && strings.HasPrefix(http.CanonicalHeaderKey(name), "Content-")
}

// hopHeader is the header of the next request. What was stripped once never
// comes back, since each hop starts from the one before.
func hopHeader(prev http.Header, from, to hop) http.Header {
	cross := !to.url.sameOrigin(from.url)
	out := make(http.Header, len(prev))
	for k, v := range prev {
		switch {
		case cross && !originFree(k, to.body):
		case from.body && !to.body && strings.HasPrefix(http.CanonicalHeaderKey(k), "Content-"):
		default:
			out[k] = v
		}
	}
	return out
}

// stripProxyFields removes what must never reach an origin.
func stripProxyFields(h http.Header) {
	for k := range h {
		if strings.HasPrefix(http.CanonicalHeaderKey(k), "Proxy-") {
			delete(h, k)
		}
	}
}
