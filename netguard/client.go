package netguard

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// HTTPOptions shape one HTTP client.
type HTTPOptions struct {
	// KeepMethod refuses a redirect that would turn a POST into a GET. MCP's
	// Streamable HTTP needs it: a GET there means something else.
	KeepMethod bool
	// TLS is cloned; nil means the system's roots and TLS 1.2 or later. Its
	// ServerName is ignored: the name is the URL's.
	TLS *tls.Config
	// Wire, where set, answers each request in place of the network, after the
	// same verdict, look-up and vetting: for dry runs of a policy.
	Wire func(*http.Request) (*http.Response, error)
	// ResponseHeaderTimeout bounds the wait for a response head; zero means
	// none, which long polls need.
	ResponseHeaderTimeout time.Duration
}

// HTTPClient is a client whose every request and redirect hop the policy
// judges. Proxies of the environment are ignored, there is no cookie jar, and
// the client must not be given a CheckRedirect or Transport of another's.
// Close of the Egress ends its connections.
func (e *Egress) HTTPClient(opts HTTPOptions) *http.Client {
	return &http.Client{
		Transport: e.RoundTripper(opts),
		// The transport has followed what may be followed.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// RoundTripper is HTTPClient's transport. Unlike others it follows redirects
// itself, since http.Client forwards headers that must not cross an origin;
// the response's Request is the last one sent.
func (e *Egress) RoundTripper(opts HTTPOptions) http.RoundTripper {
	if opts.Wire != nil {
		dry := dryWire{e, opts.Wire}
		return &transport{e: e, keepMethod: opts.KeepMethod, pooled: dry, fresh: dry}
	}
	pooled := e.baseTransport(opts)
	e.onIdle(pooled.CloseIdleConnections)
	// A redirect hop is resolved and dialled afresh, never sent over a
	// connection whose address was vetted for an earlier answer.
	fresh := e.baseTransport(opts)
	fresh.DisableKeepAlives = true
	return &transport{e: e, keepMethod: opts.KeepMethod, pooled: pooled, fresh: fresh}
}

// dryWire does all that a connection's set-up does, up to the dial.
type dryWire struct {
	e    *Egress
	wire func(*http.Request) (*http.Response, error)
}

func (d dryWire) RoundTrip(req *http.Request) (*http.Response, error) {
	u, reason := ParseURL(req.URL.String())
	a := d.e.begin(ViaHTTP, "tcp", redact(req.URL.String()))
	if reason != "" {
		return nil, a.deny(deny(reason, nil))
	}
	a.target = u.Target
	p := d.e.Policy()
	m := d.e.resolve(req.Context(), p, d.e.guard.judgeURL(p, d.e.subject.Registry, asked(u, req)), u.Target)
	if !m.Allow {
		return nil, a.deny(m)
	}
	a.write(EventDecision, m, 0, 0)
	return d.wire(req)
}

// DialTLSContext is DialContext with a TLS handshake for the host of address,
// for the WebSocket libraries that want a dialer. tlsConfig may be nil.
func (e *Egress) DialTLSContext(ctx context.Context, network, address string, tlsConfig *tls.Config) (net.Conn, error) {
	t, reason := ParseTarget(address)
	if reason != "" {
		return nil, e.begin(ViaHTTP, network, address).deny(deny(reason, nil))
	}
	raw, err := e.dial(ctx, ViaHTTP, ProtocolTLS, network, address)
	if err != nil {
		return nil, err
	}
	cfg := clientTLS(tlsConfig)
	cfg.ServerName = t.Host()
	c := tls.Client(raw, cfg)
	if err := c.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("tls handshake with %s: %w", t.Host(), err)
	}
	return c, nil
}

func clientTLS(in *tls.Config) *tls.Config {
	if in == nil {
		return &tls.Config{MinVersion: tls.VersionTLS12}
	}
	out := in.Clone()
	out.ServerName = ""
	if out.MinVersion == 0 {
		out.MinVersion = tls.VersionTLS12
	}
	return out
}

type protoKey struct{}

func (e *Egress) baseTransport(opts HTTPOptions) *http.Transport {
	return &http.Transport{
		Proxy: nil, // never the environment's
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			proto, _ := ctx.Value(protoKey{}).(Protocol)
			if proto == "" {
				proto = ProtocolHTTP
			}
			return e.dial(ctx, ViaHTTP, proto, network, address)
		},
		TLSClientConfig:        clientTLS(opts.TLS),
		TLSHandshakeTimeout:    10 * time.Second,
		ForceAttemptHTTP2:      true,
		MaxIdleConnsPerHost:    4,
		IdleConnTimeout:        90 * time.Second,
		ResponseHeaderTimeout:  opts.ResponseHeaderTimeout,
		MaxResponseHeaderBytes: 256 << 10,
	}
}

type transport struct {
	e             *Egress
	pooled, fresh http.RoundTripper
	keepMethod    bool
}

// CloseIdleConnections lets http.Client.CloseIdleConnections work.
func (t *transport) CloseIdleConnections() {
	if c, ok := t.pooled.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// RoundTrip sends the request and follows redirects by the rules of
// redirect.go. Every hop is judged like a first request.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	p := t.e.Policy()
	at, err := t.first(p, req)
	if err != nil {
		closeBody(req)
		return nil, err
	}
	cur := req.Clone(context.WithValue(req.Context(), protoKey{}, at.url.wire()))
	cur.Host = ""
	stripProxyFields(cur.Header)
	base := t.pooled
	for hops := 0; ; hops++ {
		resp, err := base.RoundTrip(cur)
		if err != nil {
			return nil, err
		}
		location := resp.Header["Location"]
		if !redirectStatus(resp.StatusCode) || len(location) == 0 {
			return resp, nil
		}
		next, err := t.follow(cur, at, resp.StatusCode, location, hops)
		discard(resp)
		if err != nil {
			return nil, err
		}
		cur, at, base = next.req, next.hop, t.fresh
	}
}

// first judges the request as the caller made it.
func (t *transport) first(p *Policy, req *http.Request) (hop, error) {
	text := req.URL.String()
	a := t.e.begin(ViaHTTP, "tcp", redact(text))
	u, reason := ParseURL(text)
	if reason != "" {
		return hop{}, a.deny(deny(reason, nil))
	}
	a.target = u.Target
	if req.Host != "" {
		// A Host that differs would ask an allowed server for another's site.
		if h, reason := parseAuthority(req.Host, defaultPort(u.Scheme)); reason != "" || h != u.Target {
			return hop{}, a.deny(deny(ReasonRequestHost, nil))
		}
	}
	if m := t.e.guard.judgeURL(p, t.e.subject.Registry, asked(u, req)); !m.Allow {
		return hop{}, a.deny(m)
	}
	return hop{url: u, method: methodOf(req), body: req.Body != nil && req.Body != http.NoBody}, nil
}

// asked is the URL in the policy's words: a request for an upgrade to
// WebSocket is one to ws or wss, whatever its URL says (RFC 6455, 3).
func asked(u URL, req *http.Request) URL {
	if strings.EqualFold(req.Header.Get("Upgrade"), "websocket") {
		u.Scheme = strings.Replace(u.Scheme, "http", "ws", 1)
	}
	return u
}

func methodOf(req *http.Request) string {
	if req.Method == "" {
		return http.MethodGet
	}
	return req.Method
}

type nextRequest struct {
	req *http.Request
	hop hop
}

// follow makes the request of the next hop, or says why there is none.
func (t *transport) follow(cur *http.Request, from hop, code int, location []string, hops int) (nextRequest, error) {
	p := t.e.Policy()
	a := t.e.begin(ViaHTTP, "tcp", redact(location[0]))
	if p == nil {
		return nextRequest{}, a.deny(deny(ReasonNoPolicy, nil))
	}
	to, text, m := t.e.guard.judgeHop(p, t.e.subject.Registry, from, code, location, hops, t.keepMethod)
	if !m.Allow {
		a.target = to.url.Target
		return nextRequest{}, a.deny(m)
	}
	parsed, err := url.Parse(text)
	if err != nil {
		return nextRequest{}, a.deny(deny(ReasonLocation, nil))
	}
	req := cur.Clone(context.WithValue(cur.Context(), protoKey{}, to.url.wire()))
	req.URL, req.Host, req.Method = parsed, "", to.method
	req.Header = hopHeader(cur.Header, from, to)
	req.Body, req.ContentLength, req.TransferEncoding = nil, 0, nil
	if !to.body {
		req.GetBody = nil
		return nextRequest{req, to}, nil
	}
	if cur.GetBody == nil {
		return nextRequest{}, a.deny(deny(ReasonRedirBody, nil))
	}
	if req.Body, err = cur.GetBody(); err != nil {
		return nextRequest{}, fmt.Errorf("replay the request's body: %w", err)
	}
	req.ContentLength = cur.ContentLength
	return nextRequest{req, to}, nil
}

// judgeHop applies the redirect rules and then the whole policy to one hop.
func (g *Guard) judgeHop(p *Policy, registry string, from hop, code int, location []string, hops int, keepMethod bool) (hop, string, match) {
	if hops >= p.maxRedirects {
		return hop{}, "", deny(ReasonRedirects, nil)
	}
	to, text, reason := nextHop(p, from, code, location, keepMethod)
	if reason != "" {
		return hop{}, "", deny(reason, nil)
	}
	m := g.judgeURL(p, registry, to.url)
	if m.Allow && m.local && !to.url.sameOrigin(from.url) {
		m = deny(ReasonRedirLocal, m.rule)
	}
	return to, text, m
}

// discard reads a little of a redirect's body, so that the connection can be
// kept, and closes it.
func discard(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, 2<<10)
	_ = resp.Body.Close()
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// onIdle adds to what SetPolicy and Close call, so that no idle connection
// outlives the policy that allowed it.
func (e *Egress) onIdle(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if prev := e.idle; prev != nil {
		e.idle = func() { prev(); f() }
		return
	}
	e.idle = f
}

// redact keeps the part of a URL that says where it leads: no userinfo, no
// query and no fragment, which hold secrets.
func redact(s string) string {
	if i := strings.IndexAny(s, "?#"); i >= 0 {
		s = s[:i]
	}
	if i := strings.LastIndexByte(s, '@'); i >= 0 {
		s = s[i+1:]
	}
	return s
}
