package netguard

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
)

// door is what the policy and the pins say about a destination before a byte
// was read from the guest. The zero value denies.
type door struct {
	match
	target Target // for raw bytes: the literal, or the name whose rule opens them
	raw    bool   // bytes pass unread, so a server may speak first
	named  bool   // a name has to be proven on the wire
	tls    bool   // by a ClientHello
	http   bool   // by each request's Host
}

// door judges a destination: a literal that a rule opens, a local endpoint, or
// an address to which a live pin of an allowed name leads.
func (e *Egress) door(p *Policy, dst netip.AddrPort) door {
	lit := Target{Addr: dst.Addr(), Port: dst.Port()}
	m := e.guard.judge(p, e.subject.Registry, lit)
	if m.Allow {
		m.Addrs = []netip.Addr{dst.Addr()}
		return door{
			match: m, target: lit, raw: m.permits(ProtocolTCP, lit),
			tls: m.permits(ProtocolTLS, lit), http: m.permits(ProtocolHTTP, lit),
		}
	}
	if p == nil || m.Reason == ReasonPortRange {
		return door{match: m}
	}
	if d := e.localhostDoor(p, dst); d.Allow {
		return d
	}
	out := door{match: m}
	if m.Reason == ReasonLiteral {
		out.match = deny(ReasonPin, nil)
	}
	for i, name := range e.gw.pins.namesOf(dst.Addr()) {
		t := Target{Name: name, Port: dst.Port()}
		m := e.pinned(p, t, dst.Addr())
		switch {
		case m.permits(ProtocolTCP, t):
			return door{match: m, target: t, raw: true}
		case m.Allow:
			if !out.Allow {
				out.match = m
			}
			out.named = true
			out.tls = out.tls || m.permits(ProtocolTLS, t)
			out.http = out.http || m.permits(ProtocolHTTP, t)
		case i == 0:
			out.match = m
		}
	}
	return out
}

// localhostDoor finds a local endpoint by the name localhost for a loopback
// destination: a guest's own hosts file answers that name, so no look-up ever
// pins it.
func (e *Egress) localhostDoor(p *Policy, dst netip.AddrPort) door {
	if !dst.Addr().IsLoopback() {
		return door{}
	}
	for key, r := range p.local {
		if key.port != dst.Port() || !localhostName(key.name) {
			continue
		}
		t := Target{Name: key.name, Port: key.port}
		m := e.guard.judge(p, e.subject.Registry, t)
		both := []netip.Addr{dst.Addr()}
		for _, a := range []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()} {
			if a != dst.Addr() {
				both = append(both, a)
			}
		}
		if m = e.guard.vet(p, e.subject.Registry, m, t, both); m.Allow {
			m.rule = r
			return door{match: m, target: t, raw: true}
		}
	}
	return door{}
}

// pinned judges a name on a port for a destination: the policy on the name,
// a live pin of it to that very address, and the policy on the address. The
// verdict's addresses are all that may be dialled, that one first.
func (e *Egress) pinned(p *Policy, t Target, dst netip.Addr) match {
	m := e.guard.judge(p, e.subject.Registry, t)
	if !m.Allow {
		return m
	}
	live := e.gw.pins.lookup(t.Name)
	if !slices.Contains(live, dst) {
		return deny(ReasonPinMismatch, m.rule)
	}
	first := []netip.Addr{dst}
	m = e.guard.vet(p, e.subject.Registry, m, t, first)
	if !m.Allow {
		return m
	}
	for _, a := range live {
		if a == dst {
			continue
		}
		one := []netip.Addr{a}
		if again := e.guard.vet(p, e.subject.Registry, m, t, one); again.Allow && again.rule == m.rule {
			first = append(first, a)
		}
	}
	m.Addrs = first
	return m
}

// judgeHello judges a ClientHello sent to dst. Under a literal's rule no name
// is enforced, but one that a deny rule covers is refused there too.
func (e *Egress) judgeHello(p *Policy, d door, dst netip.AddrPort, hello clientHello) (match, Target) {
	if !d.named {
		return denyHello(p, d, hello), d.target
	}
	if !hello.hasSNI {
		return deny(ReasonNoSNI, nil), Target{}
	}
	name, ok := helloName(hello)
	if !ok {
		return deny(ReasonTLSMalformed, nil), Target{}
	}
	t := Target{Name: name, Port: dst.Port()}
	m := e.pinned(p, t, dst.Addr())
	switch {
	case !m.Allow:
	case !p.PermitsScheme("https") && !p.PermitsScheme("wss"):
		m = deny(ReasonScheme, m.rule)
	case !m.permits(ProtocolTLS, t):
		m = deny(ReasonProtocol, m.rule)
	case hello.ech && !m.ech(t):
		m = deny(ReasonECH, m.rule)
	}
	return m, t
}

// denyHello applies the deny rules, and only those, to a hello whose
// destination needs no name.
func denyHello(p *Policy, d door, hello clientHello) match {
	if name, ok := helloName(hello); ok {
		if r := p.deny.first(name); r != nil {
			return deny(ReasonDenyRule, r)
		}
	}
	return d.match
}

// helloName is the server name in canonical form: an A-label name without a
// trailing dot, and no literal (RFC 6066, section 3).
func helloName(hello clientHello) (string, bool) {
	name, addr, reason := ParseHost(hello.serverName)
	if reason != "" || addr.IsValid() || strings.HasSuffix(hello.serverName, ".") {
		return "", false
	}
	return name, true
}

// judgeHead judges one request sent to dst, over plain HTTP or, where bound is
// not empty, within a TLS connection that was proven to be bound's.
func (e *Egress) judgeHead(p *Policy, d door, dst netip.AddrPort, bound string, head httpHead) (match, Target) {
	scheme, port, proto := "http", "80", ProtocolHTTP
	if bound != "" {
		scheme, port, proto = "https", "443", ProtocolTLS
	}
	t, reason := requestTarget(head.host, port)
	if reason == "" && head.absolute {
		reason = checkAuthority(head, scheme, port, t)
	}
	switch {
	case reason != "":
		return deny(reason, nil), Target{}
	case !d.named && bound == "":
		if r := p.deny.first(t.Name); r != nil {
			return deny(ReasonDenyRule, r), t
		}
		return d.match, d.target
	case t.Name == "", t.Port != dst.Port(), strings.HasSuffix(head.host, "."), bound != "" && t.Name != bound:
		return deny(ReasonHTTPHost, nil), t
	}
	if head.websocket {
		scheme = strings.Replace(scheme, "http", "ws", 1)
	}
	m := e.pinned(p, t, dst.Addr())
	switch {
	case !m.Allow:
	case !p.PermitsScheme(scheme):
		m = deny(ReasonScheme, m.rule)
	case !m.permits(proto, t):
		m = deny(ReasonProtocol, m.rule)
	}
	return m, t
}

// checkAuthority compares an absolute-form target with Host: the target wins
// at an origin (RFC 9112, section 3.2.2), so they have to agree.
func checkAuthority(head httpHead, scheme, port string, host Target) Reason {
	if head.authority == "" || strings.IndexByte(head.authority, '@') >= 0 {
		return ReasonHTTPSyntax
	}
	t, reason := requestTarget(head.authority, port)
	switch {
	case reason != "":
		return reason
	case head.scheme != scheme || t != host:
		return ReasonRequestHost
	}
	return ""
}

// requestTarget reads uri-host [":" port] as Host and an authority carry it.
func requestTarget(s, port string) (Target, Reason) {
	host := s
	if i := strings.LastIndexByte(s, ':'); i >= 0 && i > strings.LastIndexByte(s, ']') {
		host, port = s[:i], s[i+1:]
	}
	t, reason := parseTarget(host, port)
	if reason == ReasonHostNumeric {
		return t, ReasonHTTPHost // well formed as HTTP sees it
	}
	if reason != "" {
		return t, ReasonHTTPSyntax
	}
	return t, ""
}

// headReason is the reason for a head that did not parse.
func headReason(err error) Reason {
	switch {
	case errors.Is(err, errHeadTunnel):
		return ReasonHTTPConnect
	case errors.Is(err, errHeadUpgrade):
		return ReasonHTTPUpgrade
	case errors.Is(err, errHeadFraming):
		return ReasonHTTPFraming
	}
	return ReasonHTTPSyntax
}

// helloReason is the reason for a hello that did not parse.
func helloReason(err error) Reason {
	switch {
	case errors.Is(err, errHelloNotTLS):
		return ReasonProtocol
	case errors.Is(err, errHelloTooLarge), errors.Is(err, errIncomplete):
		return ReasonTLSTruncated
	}
	return ReasonTLSMalformed
}

// JudgeStream decides what ServeConn would about a connection to dst on which
// the guest sends stream and then nothing, without opening anything: policy
// tests use it. network is tcp or whatever the gateway saw.
func (e *Egress) JudgeStream(network string, dst netip.AddrPort, stream []byte) Verdict {
	dst = unmapDst(dst)
	if network != "tcp" {
		return deny(ReasonNetwork, nil).Verdict
	}
	p := e.Policy()
	d := e.door(p, dst)
	switch {
	case !d.Allow:
		return d.Verdict
	case d.raw && !p.deniesNames():
		return d.Verdict
	case looksLikeTLS(stream):
		m, _, _ := e.proveTLS(p, d, dst, stream)
		return m.Verdict
	case d.raw && !looksLikeHTTP(stream):
		return d.Verdict
	case !d.http:
		return deny(ReasonProtocol, nil).Verdict
	}
	return e.judgeRequests(p, d, dst, "", stream)
}

// JudgeRequest decides about HTTP requests within a TLS connection to dst that
// was proven to be for name and is being intercepted.
func (e *Egress) JudgeRequest(name string, dst netip.AddrPort, stream []byte) Verdict {
	return e.judgeRequests(e.Policy(), door{named: true}, unmapDst(dst), name, stream)
}

// judgeRequests judges every head of stream; the first refusal counts.
func (e *Egress) judgeRequests(p *Policy, d door, dst netip.AddrPort, bound string, stream []byte) Verdict {
	v := deny(ReasonHTTPSyntax, nil).Verdict
	for len(stream) > 0 {
		head, n, err := parseHTTPHead(stream)
		if err != nil {
			return deny(headReason(err), nil).Verdict
		}
		m, _ := e.judgeHead(p, d, dst, bound, head)
		if v = m.Verdict; !m.Allow {
			return v
		}
		body := newBodyScanner(head)
		k, _, err := body.feed(stream[n:])
		if err != nil {
			return deny(headReason(err), nil).Verdict
		}
		stream = stream[n+k:]
	}
	return v
}

// proveTLS parses and judges a ClientHello; errIncomplete asks for more.
func (e *Egress) proveTLS(p *Policy, d door, dst netip.AddrPort, b []byte) (match, Target, error) {
	if !d.tls && !d.raw {
		return deny(ReasonProtocol, nil), Target{}, nil
	}
	hello, _, err := parseClientHello(b)
	if err != nil {
		return deny(helloReason(err), nil), Target{}, err
	}
	m, t := e.judgeHello(p, d, dst, hello)
	return m, t, nil
}

// looksLikeHTTP says whether b starts with a method that HTTP defines. It is
// asked only where other protocols may pass, to find denied names.
func looksLikeHTTP(b []byte) bool {
	method, _, ok := strings.Cut(string(b[:min(len(b), 8)]), " ")
	if !ok {
		return false
	}
	switch method {
	case "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "PRI":
		return true
	}
	return false
}

// deniesNames reports whether a deny rule names a host, so that even a
// destination open to any bytes has to be looked at.
func (p *Policy) deniesNames() bool { return len(p.deny.exact)+len(p.deny.suffix) > 0 }

func unmapDst(dst netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(dst.Addr().Unmap().WithZone(""), dst.Port())
}
