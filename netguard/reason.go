package netguard

import (
	"fmt"
	"net/netip"

	"github.com/sandboxd/sandboxd/netguard/iana"
)

// Reason says why something was refused. The set is closed: every value is a
// constant of this file, so that dashboards and tests can rely on it.
type Reason string

// Malformed input, refused before the policy is asked.
const (
	ReasonURLBytes     Reason = "url.bytes"     // a byte outside printable ASCII, or a backslash
	ReasonURLSyntax    Reason = "url.syntax"    // not an absolute URL with an authority (RFC 3986)
	ReasonURLUserinfo  Reason = "url.userinfo"  // credentials in the authority (RFC 9110, 4.2.4)
	ReasonHostSyntax   Reason = "host.syntax"   // not a host name of A-labels
	ReasonHostNumeric  Reason = "host.numeric"  // the last label is a number, yet no dotted quad
	ReasonHostIDNA     Reason = "host.idna"     // an A-label that does not decode
	ReasonIPSyntax     Reason = "ip.syntax"     // not an address in canonical form
	ReasonPortSyntax   Reason = "port.syntax"   // not a port in 1..65535 without leading zeros
	ReasonDNSMalformed Reason = "dns.malformed" // a DNS message that does not parse
	ReasonTLSMalformed Reason = "tls.malformed" // a ClientHello that does not parse
	ReasonHTTPSyntax   Reason = "http.syntax"   // a request head that parsers may read differently
	ReasonLocation     Reason = "redirect.location"
	ReasonPolicy       Reason = "policy.invalid" // the policy itself does not compile
)

// Well formed, refused.
const (
	ReasonNoPolicy    Reason = "policy.none"    // no policy, so nothing goes out
	ReasonDenyRule    Reason = "policy.deny"    // a deny rule covers the name or an address
	ReasonNotAllowed  Reason = "policy.name"    // no allow rule covers the name
	ReasonLiteral     Reason = "policy.literal" // no cidr rule covers the literal
	ReasonPort        Reason = "policy.port"    // a rule covers the host, but not on that port
	ReasonPortRange   Reason = "port.range"     // port 0
	ReasonScheme      Reason = "url.scheme"     // a scheme outside the policy's
	ReasonSpecialName Reason = "name.special"   // special use, metadata or a single label
	ReasonAddress     Reason = "ip.blocked"     // an address outside the public space
	ReasonWithin      Reason = "ip.within"      // an answer outside resolve_within
	ReasonLocal       Reason = "ip.local"       // a local endpoint that answers a non-local address
	ReasonNetwork     Reason = "network.refused"

	ReasonResolve  Reason = "dns.failed"  // no answer
	ReasonAnswers  Reason = "dns.answers" // more answers than one set may hold
	ReasonChain    Reason = "dns.chain"   // a CNAME chain that loops or is too long
	ReasonDNSType  Reason = "dns.type"    // neither A nor AAAA
	ReasonDNSClass Reason = "dns.class"   // not IN
	ReasonDNSOp    Reason = "dns.opcode"  // not a standard query

	ReasonProtocol     Reason = "protocol"        // bytes of a protocol that the rule does not open
	ReasonPin          Reason = "pin.none"        // no live look-up led to that address
	ReasonPinMismatch  Reason = "pin.mismatch"    // the name was not answered with that address
	ReasonNoSNI        Reason = "tls.no-sni"      // a name rule, and no server name
	ReasonECH          Reason = "tls.ech"         // Encrypted Client Hello under a name rule
	ReasonTLSTruncated Reason = "tls.incomplete"  // no complete ClientHello within the bounds
	ReasonHTTPHost     Reason = "http.host"       // the request's host is not the connection's
	ReasonHTTPConnect  Reason = "http.connect"    // CONNECT is never relayed
	ReasonHTTPUpgrade  Reason = "http.upgrade"    // an upgrade that hides later requests
	ReasonHTTPFraming  Reason = "http.framing"    // two length framings at once
	ReasonRequestHost  Reason = "http.authority"  // Host differs from the URL's authority
	ReasonRedirects    Reason = "redirect.limit"  // more hops than the policy follows
	ReasonDowngrade    Reason = "redirect.scheme" // https to http
	ReasonRedirLocal   Reason = "redirect.local"  // a hop from elsewhere into a local endpoint
	ReasonRedirBody    Reason = "redirect.body"   // a body that would have to leave its origin
	ReasonRedirMethod  Reason = "redirect.method" // a POST that would turn into a GET

	ReasonConnections Reason = "limit.connections"
	ReasonRate        Reason = "limit.rate"
	ReasonBytes       Reason = "limit.bytes"
	ReasonNames       Reason = "limit.names"
	ReasonDial        Reason = "dial.failed"
	ReasonClosed      Reason = "egress.closed"
)

// Malformed reports whether the input was refused before the policy was asked.
func (r Reason) Malformed() bool {
	switch r {
	case ReasonURLBytes, ReasonURLSyntax, ReasonURLUserinfo, ReasonHostSyntax,
		ReasonHostNumeric, ReasonHostIDNA, ReasonIPSyntax, ReasonPortSyntax,
		ReasonDNSMalformed, ReasonTLSMalformed, ReasonHTTPSyntax, ReasonLocation,
		ReasonPolicy:
		return true
	default:
		return false
	}
}

// Verdict is one decision. The zero value denies.
type Verdict struct {
	Allow  bool
	Reason Reason // empty where Allow
	// Rule names the deciding rule by its place in the policy, as in
	// `allow[3] host *.example.org`; empty where no rule decided.
	Rule string
	// Class is the kind of the address that decided, where one did.
	Class iana.Class
	// Addrs are the vetted addresses, in the resolver's order: the only ones
	// that may be dialled. Empty on a denial.
	Addrs []netip.Addr
}

// DeniedError is a refusal. Its text never carries an address that a look-up
// returned, so a sandbox learns nothing about the network from it.
type DeniedError struct {
	Request string     // what was asked for, as host:port or URL, cut to a bound
	Addr    netip.Addr // the address that decided; for records only
	Reason  Reason
	Rule    string
}

// Error names the request, the reason and the rule.
func (e *DeniedError) Error() string {
	if e.Rule != "" {
		return fmt.Sprintf("egress to %q denied: %s (%s)", e.Request, e.Reason, e.Rule)
	}
	return fmt.Sprintf("egress to %q denied: %s", e.Request, e.Reason)
}

// Is makes errors.Is(err, &DeniedError{Reason: r}) match by reason.
func (e *DeniedError) Is(target error) bool {
	t, ok := target.(*DeniedError)
	return ok && (t.Reason == "" || t.Reason == e.Reason)
}
