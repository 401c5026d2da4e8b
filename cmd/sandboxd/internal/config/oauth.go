package config

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/sandboxd/sandboxd/netguard"
	"github.com/sandboxd/sandboxd/policies/strict"
)

// OAuth says by whom users log in to a network server. Nothing is trusted that
// is not named here.
type OAuth struct {
	// Issuers are the trusted authorization servers' identifiers; Hosts are
	// further HOST or HOST:PORT on which their endpoints may be.
	Issuers, Hosts []string
	// ClientID and ClientSecret are of a client that was registered beforehand;
	// ClientMetadataURL is a client id metadata document's. Without them a
	// client is registered at the login.
	ClientID          string
	ClientSecret      Secret
	ClientMetadataURL string
	// Scopes, where given, are asked for, and no others.
	Scopes []string
	// RedirectPort is the port on 127.0.0.1 of the redirect; 0 is any.
	RedirectPort int
}

var (
	oauthKeys  = []string{"issuers", "hosts", "client_id", "client_secret", "client_metadata_url", "scopes", "redirect_port"}
	scopeToken = regexp.MustCompile(`^[\x21\x23-\x5B\x5D-\x7E]{1,256}$`) // RFC 6749, 3.3
)

// oauth takes how to log in.
func (f *file) oauth(m strict.Map, s *Server) {
	n := m.Get("oauth")
	if n == nil {
		if m.Has("oauth") {
			m.Errorf("oauth", "is empty: want issuers")
		}
		return
	}
	o := f.r.Map(n, m.Path("oauth"), oauthKeys...)
	if o.Node() == nil {
		return
	}
	for _, h := range s.Headers {
		if http.CanonicalHeaderKey(h.Name) == "Authorization" {
			f.r.Errorf(m.Get("headers").Get(h.Name), strict.Child(m.Path("headers"), h.Name), "cannot stand beside oauth, which sets it")
		}
	}
	out := &OAuth{
		ClientID: o.String("client_id"), ClientMetadataURL: o.String("client_metadata_url"),
		Issuers: o.Strings("issuers"), Hosts: o.Strings("hosts"),
		Scopes: o.Names("scopes", scopeToken, "a scope"), RedirectPort: int(o.Int("redirect_port", 1, 65535)),
	}
	if len(out.Issuers) == 0 && !f.r.Faulty(o.Path("issuers")) {
		o.Errorf("issuers", "is missing: want the URLs of the authorization servers that are trusted (sandboxd auth login says which one the server names)")
	}
	for i, iss := range out.Issuers {
		if why := s.loginURL(iss); why != "" {
			f.r.Errorf(o.Get("issuers").Items[i], strict.Index(o.Path("issuers"), i), "%s", why)
		}
	}
	for i, h := range out.Hosts {
		if why := s.loginHost(h); why != "" {
			f.r.Errorf(o.Get("hosts").Items[i], strict.Index(o.Path("hosts"), i), "%s", why)
		}
	}
	if out.ClientMetadataURL != "" {
		u := out.ClientMetadataURL
		if p, err := url.Parse(u); err != nil || p.Scheme != "https" || p.Hostname() == "" || p.Path == "" || p.Path == "/" {
			o.Errorf("client_metadata_url", "want https://HOST/PATH of a client id metadata document")
		}
	}
	for _, key := range []string{"client_id", "client_metadata_url"} {
		f.noSecret(o.Get(key), o.Path(key))
	}
	for _, key := range []string{"issuers", "hosts"} {
		for i, n := range itemsOf(o.Get(key)) {
			f.noSecret(n, strict.Index(o.Path(key), i))
		}
	}
	if text := o.String("client_secret"); text != "" {
		v, err := f.secrets.expand(text)
		switch {
		case err != nil:
			for line := range strings.Lines(err.Error()) {
				o.Errorf("client_secret", "%s", strings.TrimSpace(line))
			}
		case out.ClientID == "":
			o.Errorf("client_secret", "belongs to a client_id")
		}
		out.ClientSecret = v
	}
	s.OAuth = out
}

// loginURL says what is wrong with an issuer, or "".
func (s *Server) loginURL(text string) string {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Opaque != "" || u.Hostname() == "" || u.User != nil || strings.ContainsAny(text, "?#"):
		return "want https://HOST or https://HOST/PATH"
	case u.Scheme != "https" && (u.Scheme != "http" || !s.AllowLocalEndpoint || !isLoopback(u.Hostname())):
		return "want https://; plaintext is for loopback, with allow_local_endpoint: true"
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443", "http": "80"}[u.Scheme]
	}
	return s.loginHost(net.JoinHostPort(u.Hostname(), port))
}

func isLoopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}

// loginHost says what is wrong with a host of an authorization server, or "".
func (s *Server) loginHost(h string) string {
	host, port, err := net.SplitHostPort(h)
	if err != nil {
		host, port = strings.Trim(h, "[]"), "443"
	}
	if n, err := strconv.ParseUint(port, 10, 16); host == "" || strings.ContainsAny(host, "/*@ ") || err != nil || n == 0 {
		return "want HOST or HOST:PORT"
	}
	if isLocal(host) {
		if !s.AllowLocalEndpoint {
			return "leads to this machine or a private network: only with allow_local_endpoint: true"
		}
		if _, err := netguard.Compile(netguard.Config{Mode: netguard.ModeAllowlist, AllowLocalEndpoint: []string{net.JoinHostPort(host, port)}}); err != nil {
			return "is no local endpoint: " + guardSays(err)
		}
		return ""
	}
	if _, err := netguard.Compile(netguard.Config{Mode: netguard.ModeAllowlist, Allow: []netguard.Rule{HostRule(host, port)}}); err != nil {
		return "cannot be opened: " + guardSays(err)
	}
	return ""
}

// HostRule opens one host, a name or an address, and one port.
func HostRule(host, port string) netguard.Rule {
	rule := netguard.Rule{Host: host, Ports: []netguard.Port{netguard.Port(port)}}
	if a, err := netip.ParseAddr(host); err == nil {
		rule.Host, rule.CIDR = "", netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()).String()
	}
	return rule
}

// LoginEndpoints are the HOST:PORT that a login may reach: the server's own,
// the issuers' and the hosts'; local ones apart.
func (s *Server) LoginEndpoints() (public, local []string) {
	add := func(host, port string) {
		if isLocal(host) {
			local = append(local, net.JoinHostPort(host, port))
			return
		}
		public = append(public, net.JoinHostPort(host, port))
	}
	texts := s.OAuth.Issuers
	if own := s.LocalEndpoint(); own != "" {
		local = append(local, own)
	} else {
		texts = append([]string{s.URL}, texts...)
	}
	for _, text := range texts {
		u, err := url.Parse(text)
		if err != nil {
			continue
		}
		port := u.Port()
		if port == "" {
			port = map[string]string{"http": "80", "ws": "80"}[u.Scheme]
			if port == "" {
				port = "443"
			}
		}
		add(u.Hostname(), port)
	}
	for _, h := range s.OAuth.Hosts {
		host, port, err := net.SplitHostPort(h)
		if err != nil {
			host, port = strings.Trim(h, "[]"), "443"
		}
		add(host, port)
	}
	return public, local
}
