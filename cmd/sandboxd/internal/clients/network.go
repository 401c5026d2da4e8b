package clients

import (
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sandboxd/sandboxd/images"
)

var headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$")

// reserved belong to the connection: a config refuses them.
var reserved = []string{
	"accept", "connection", "content-length", "content-type", "expect", "host", "keep-alive", "last-event-id",
	"mcp-protocol-version", "mcp-session-id", "te", "trailer", "transfer-encoding", "upgrade",
}

// network takes a server that has a url.
func (im *importer) network(e *entry, s *serverOut, rep *ServerReport) bool {
	x := im.scope.expand(e.url)
	u, err := url.Parse(x.value)
	switch {
	case len(x.missing) > 0 || im.secretSource(x):
		rep.remark("its url holds the variable or question %s, which a url cannot: write it out", shown(strings.Join(append(x.missing, x.known...), ", ")))
		return false
	case err != nil || u.Host == "":
		rep.remark("its url cannot be read")
		return false
	case u.User != nil || looksSecret(x.value) || u.Fragment != "":
		rep.remark("its url holds what is or may be a secret, which a url cannot: use a header")
		return false
	}
	switch t := strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(e.transport)); t {
	case "", "http", "streamablehttp", "streamable":
		s.Transport = "http"
	case "sse":
		s.Transport = "sse"
	case "websocket", "ws":
		s.Transport = "websocket"
	default:
		rep.remark("its transport %s is not known", shown(e.transport))
		return false
	}
	local := isLocal(u.Hostname())
	if plain := u.Scheme == "http" || u.Scheme == "ws"; plain && !local {
		rep.remark("its url is plaintext beyond this host: use https")
		return false
	}
	if local {
		s.Local = true
		rep.remark("its url is local: allow_local_endpoint opens that host and port")
	}
	s.URL, rep.Runs = x.value, u.Host
	var headers []pair
	for _, h := range e.headers {
		if name := strings.ToLower(h.name); slices.Contains(reserved, name) || strings.HasPrefix(name, "sec-") || strings.HasPrefix(name, "proxy-") {
			rep.remark("the header %s was dropped: the connection sets it", shown(h.name))
			continue
		}
		headers = append(headers, h)
	}
	s.Headers = im.values(headers, "header", e.name, rep, func(n string) bool { return headerName.MatchString(n) })
	if len(e.env) > 0 {
		rep.remark("its variables were dropped: a server on the network has none")
	}
	return true
}

func isLocal(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && (a.IsLoopback() || a.IsPrivate() || a.IsLinkLocalUnicast())
}

// remoteProxy knows a package that does nothing but speak to a server on the
// network, which sandboxd does itself: mcp-remote URL [--header NAME:VALUE…].
// It takes the entry only whole.
func (im *importer) remoteProxy(e *entry, s *serverOut, rep *ServerReport) bool {
	cmd, err := images.ParseCommand(append([]string{e.command}, e.args...))
	if err != nil || cmd.Ref.Kind != images.KindNPM || cmd.Ref.Name != "mcp-remote" || len(cmd.Args) == 0 {
		return false
	}
	as := entry{name: e.name, url: cmd.Args[0]}
	vars := map[string]string{}
	for _, p := range e.env {
		vars[p.name] = p.value
	}
	for args := cmd.Args[1:]; len(args) > 0; {
		switch {
		case args[0] == "--header" && len(args) > 1:
			name, value, ok := strings.Cut(args[1], ":")
			if !ok {
				return false
			}
			value = variable.ReplaceAllStringFunc(strings.TrimSpace(value), func(m string) string {
				if v, ok := vars[m[2:len(m)-1]]; ok {
					return v
				}
				return m
			})
			as.headers, args = append(as.headers, pair{name, value}), args[2:]
		case args[0] == "--transport" && len(args) > 1:
			if strings.HasPrefix(args[1], "sse") {
				as.transport = "sse"
			}
			args = args[2:]
		case args[0] == "--allow-http" || args[0] == "--debug" || args[0] == "--silent":
			args = args[1:]
		default:
			if _, err := strconv.ParseUint(args[0], 10, 16); err != nil {
				return false
			}
			args = args[1:] // the port for a sign-in
		}
	}
	trial := *rep
	if !im.network(&as, s, &trial) {
		*s = serverOut{ID: s.ID, Label: s.Label, ToolsAllowlist: s.ToolsAllowlist, Include: s.Include, Required: s.Required, Autostart: s.Autostart}
		return false
	}
	*rep = trial
	rep.remark("mcp-remote is not needed: sandboxd speaks to its server itself; a sign-in in a browser is not done")
	return true
}
