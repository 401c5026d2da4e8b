package config

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/netguard"
	"github.com/sandboxd/sandboxd/policies/strict"
)

// vars takes a mapping from names to strings in which secrets are put in.
func (f *file) vars(m strict.Map, key string, re *regexp.Regexp, what string) []Var {
	n := m.Get(key)
	if n == nil {
		return nil
	}
	if n.Kind != strict.Mapping {
		m.Errorf(key, "want a mapping from names to strings, got %s", n.Kind)
		return nil
	}
	var names []string
	for _, field := range n.Fields {
		names = append(names, field.Name)
	}
	values := f.r.Map(n, m.Path(key), names...)
	var out []Var
	for _, field := range n.Fields {
		at := &strict.Node{Line: field.Line, Col: field.Col}
		if !re.MatchString(field.Name) {
			f.r.Errorf(at, values.Path(field.Name), "is not %s", what)
			continue
		}
		if field.Value == nil || field.Value.Kind == strict.Null {
			f.r.Errorf(at, values.Path(field.Name), `has no value: write "" for an empty one`)
			continue
		}
		if field.Value.Kind != strict.String {
			values.String(field.Name) // says so without the value
			continue
		}
		v, err := f.secrets.expand(field.Value.Text)
		if err != nil {
			for line := range strings.Lines(err.Error()) {
				f.r.Errorf(field.Value, values.Path(field.Name), "%s", strings.TrimSpace(line))
			}
			continue
		}
		out = append(out, Var{Name: field.Name, Value: v})
	}
	return out
}

// noSecret refuses references to secrets where others could read the value.
func (f *file) noSecret(n *strict.Node, path string) {
	if n != nil && n.Kind == strict.String && mentions(n.Text) {
		f.r.Errorf(n, path, "secrets are put into env and headers only: anyone may see this value")
	}
}

var headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$") // RFC 9110, 5.6.2

// reservedHeaders belong to the connection or to the protocol, not to an
// author.
var reservedHeaders = []string{
	"Accept", "Connection", "Content-Length", "Content-Type", "Expect", "Host", "Keep-Alive", "Last-Event-Id",
	"Mcp-Protocol-Version", "Mcp-Session-Id", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// network takes what only a server on the network has.
func (f *file) network(m strict.Map, s *Server) {
	s.AllowLocalEndpoint = m.Bool("allow_local_endpoint")
	s.Headers = f.vars(m, "headers", headerName, "a header's name")
	seen := map[string]bool{}
	for _, h := range s.Headers {
		at, path := m.Get("headers").Get(h.Name), strict.Child(m.Path("headers"), h.Name)
		name := http.CanonicalHeaderKey(h.Name)
		switch {
		case slices.Contains(reservedHeaders, name) || strings.HasPrefix(name, "Sec-") || strings.HasPrefix(name, "Proxy-"):
			f.r.Errorf(at, path, "is set by the connection itself")
		case seen[name]:
			f.r.Errorf(at, path, "was given before in another spelling")
		case strings.ContainsFunc(h.Value.Reveal(), func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
			f.r.Errorf(at, path, "the value holds a control byte")
		}
		seen[name] = true
	}
	f.oauth(m, s)
	s.URL = m.String("url")
	f.noSecret(m.Get("url"), m.Path("url"))
	if s.URL == "" {
		if !f.r.Faulty(m.Path("url")) {
			m.Errorf("url", "is missing: a %s server needs one", s.Transport)
		}
		return
	}
	f.url(m, s)
}

// url checks the address of a server. It never repeats it in a message: people
// put tokens there.
func (f *file) url(m strict.Map, s *Server) {
	schemes := []string{"https", "http"}
	if s.Transport == WebSocket {
		schemes = []string{"wss", "ws"}
	}
	u, err := url.Parse(s.URL)
	switch {
	case err != nil || u.Opaque != "" || u.Hostname() == "":
		m.Errorf("url", "want %s://HOST/PATH", schemes[0])
	case !slices.Contains(schemes, u.Scheme):
		m.Errorf("url", "a %s server has a url that begins with %s://", s.Transport, schemes[0])
	case u.User != nil:
		m.Errorf("url", "credentials do not belong into a url: use headers with {{secrets.NAME}}")
	case strings.Contains(s.URL, "#"):
		m.Errorf("url", "a fragment has no meaning for a server")
	case u.Scheme == schemes[1] && !s.AllowLocalEndpoint:
		m.Errorf("url", "want %s://; plaintext is for a local server, with allow_local_endpoint: true", schemes[0])
	case s.AllowLocalEndpoint:
		local := netguard.Config{Mode: netguard.ModeAllowlist, AllowLocalEndpoint: []string{s.LocalEndpoint()}}
		if _, err := netguard.Compile(local); err != nil {
			m.Errorf("allow_local_endpoint", "the url's host and port are no local endpoint: %s", guardSays(err))
		}
	case isLocal(u.Hostname()):
		m.Errorf("url", "leads to this machine or a private network: only with allow_local_endpoint: true")
	}
}

// LocalEndpoint is the host:port that AllowLocalEndpoint opens, or "".
func (s *Server) LocalEndpoint() string {
	u, err := url.Parse(s.URL)
	if err != nil || !s.AllowLocalEndpoint {
		return ""
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "ws": "80"}[u.Scheme]
		if port == "" {
			port = "443"
		}
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// isLocal knows what is local without a look-up. The guard knows better when
// it dials; this is to say so early.
func isLocal(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && (a.IsLoopback() || a.IsPrivate() || a.IsLinkLocalUnicast() || a.IsUnspecified())
}

// guardSays drops the path within a policy that the author did not write.
func guardSays(err error) string {
	_, msg, ok := strings.Cut(err.Error(), ": ")
	if !ok {
		return err.Error()
	}
	return msg
}

func exists(path string) error {
	_, err := os.Stat(path)
	if err != nil {
		return pathless(err)
	}
	return nil
}
