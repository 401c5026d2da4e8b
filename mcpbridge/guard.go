package mcpbridge

import (
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// guard keeps out browsers that were led here by another site: a page whose
// name was rebound to this address still sends its own name as Host, and its
// own site as Origin.
func (r *Registry) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if req.URL.Path == "/healthz" {
			next.ServeHTTP(w, req)
			return
		}
		var scope *Scope
		if !r.hostAllowed(req.Host) {
			writeError(w, errf(CodeForbidden, "this Host is not served here: add it to the allowed hosts"))
			return
		}
		// Some requests of another site's pages carry no Origin; browsers mark
		// them all the same (Fetch Metadata).
		if len(req.Header.Values("Origin")) == 0 && req.Header.Get("Sec-Fetch-Site") == "cross-site" {
			writeError(w, errf(CodeForbidden, "requests of other sites are not served"))
			return
		}
		for _, o := range req.Header.Values("Origin") {
			if !r.originAllowed(o) {
				writeError(w, errf(CodeForbidden, "this Origin is not allowed"))
				return
			}
		}
		if r.cfg.Authorize != nil {
			var err error
			if scope, err = r.cfg.Authorize(req); err != nil {
				r.cfg.Logger.Warn("request refused", "error", err)
				w.Header().Set("WWW-Authenticate", "Bearer")
				writeError(w, errf(CodeUnauthorized, "a valid bearer token is needed"))
				return
			}
		}
		next.ServeHTTP(w, withScope(req, scope))
	})
}

func (r *Registry) hostAllowed(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return slices.Contains(r.cfg.AllowedHosts, "*") || slices.Contains(r.cfg.AllowedHosts, host)
}

// originAllowed takes the origins that are named, and those of loopback names
// while loopback is where this is served.
func (r *Registry) originAllowed(origin string) bool {
	if slices.Contains(r.cfg.AllowedOrigins, origin) {
		return true
	}
	u, err := url.Parse(origin)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.User != nil {
		return false
	}
	host := strings.ToLower(u.Hostname())
	loopback := host == "localhost" || host == "127.0.0.1" || host == "::1"
	return loopback && slices.Contains(r.cfg.AllowedHosts, host)
}
