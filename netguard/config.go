package netguard

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Mode says what a policy starts from.
type Mode string

// The modes. There is no default: a policy without one does not compile.
const (
	ModeAllowlist Mode = "allowlist" // only what a rule names
	ModePublic    Mode = "public"    // any public address that no deny rule covers
)

// Protocol is what may be spoken under a rule.
type Protocol string

// The protocols. The empty one means TLS, and HTTP on port 80.
const (
	ProtocolTLS  Protocol = "tls"
	ProtocolHTTP Protocol = "http"
	ProtocolTCP  Protocol = "tcp" // raw bytes; the name cannot be checked on the wire
)

// Config is the egress section of a policy, as written. Compile checks it.
// Nothing here is a setting of the operator's.
type Config struct {
	Mode  Mode   `json:"mode"`
	Allow []Rule `json:"allow,omitempty"`
	Deny  []Rule `json:"deny,omitempty"`
	// AllowLocalEndpoint lists exact host:port pairs on loopback, RFC 1918,
	// CGNAT or ULA addresses. Metadata and link-local never open.
	AllowLocalEndpoint []string `json:"allow_local_endpoint,omitempty"`
	// Schemes of URLs: a subset of http, https, ws, wss; nil means all four.
	Schemes []string `json:"schemes,omitempty"`
	// MaxRedirects is the number of hops followed; nil means 5.
	MaxRedirects *int `json:"max_redirects,omitempty"`
	// NAT64 opens 64:ff9b::/96 where the embedded address is public.
	NAT64 bool `json:"nat64,omitempty"`
	// CrossOriginBody is "deny" (the default) or "allow".
	CrossOriginBody string `json:"cross_origin_body,omitempty"`
	Limits          Limits `json:"limits,omitzero"`
	// PinTTL is how long a look-up's answer opens its addresses; zero means
	// the answer's own TTL within DefaultPinTTL.
	PinTTL time.Duration `json:"pin_ttl,omitempty"`
}

// Rule is one allow or deny entry. A deny entry has Host or CIDR and no more.
type Rule struct {
	Host string `json:"host,omitempty"` // an A-label name, or *.suffix for the names below it
	CIDR string `json:"cidr,omitempty"` // a canonical prefix, for literals
	// Ports lists numbers and inclusive ranges; nil means 443.
	Ports []Port `json:"ports,omitempty"`
	// ResolveWithin bounds the answers of Host to these prefixes.
	ResolveWithin []string `json:"resolve_within,omitempty"`
	// SharedSuffix accepts a wildcard over a suffix where strangers register.
	SharedSuffix bool     `json:"shared_suffix,omitempty"`
	Protocol     Protocol `json:"protocol,omitempty"`
	// ECH is "allow" to let Encrypted Client Hello pass under a name rule.
	ECH string `json:"ech,omitempty"`
}

// Port is "443" or "8000-8100", as written; Compile parses it. In JSON it may
// also be a number.
type Port string

// UnmarshalJSON takes a string or a number and keeps its text.
func (p *Port) UnmarshalJSON(b []byte) error {
	var n json.Number
	if len(b) > 0 && b[0] != '"' {
		if err := json.Unmarshal(b, &n); err != nil {
			return fmt.Errorf("port: %w", err)
		}
		*p = Port(n.String())
		return nil
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("port: %w", err)
	}
	*p = Port(s)
	return nil
}

// Limits bound one sandbox. Zero means the default, a negative value is an
// error.
type Limits struct {
	Connections int   `json:"connections,omitempty"` // open at once; default DefaultConnections
	PerSecond   int   `json:"per_second,omitempty"`  // new ones a second; default DefaultPerSecond
	BytesUp     int64 `json:"bytes_up,omitempty"`    // sent in the sandbox's life; default unlimited
	BytesDown   int64 `json:"bytes_down,omitempty"`  // received; default unlimited
	// NamesPerWildcard bounds the distinct names looked up under one wildcard
	// rule: each is a query that could carry data out. Default
	// DefaultNamesPerWildcard.
	NamesPerWildcard int `json:"names_per_wildcard,omitempty"`
}

// Defaults of Limits and Config.
const (
	DefaultConnections      = 2048
	DefaultPerSecond        = 200
	DefaultNamesPerWildcard = 256
	DefaultMaxRedirects     = 5
	DefaultPinTTL           = 10 * time.Minute
)

// FieldError is one fault of a Config at a path such as `allow[2].ports[0]`.
type FieldError struct {
	Path string
	Msg  string
}

// Error is "path: message".
func (e FieldError) Error() string { return e.Path + ": " + e.Msg }

// ConfigError lists every fault of a Config, in the order of its fields. A
// loader turns each Path into a line and a column.
type ConfigError struct{ Fields []FieldError }

// Error joins the faults, one a line.
func (e *ConfigError) Error() string {
	lines := make([]string, len(e.Fields))
	for i, f := range e.Fields {
		lines[i] = f.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap yields each fault, for errors.As with FieldError.
func (e *ConfigError) Unwrap() []error {
	errs := make([]error, len(e.Fields))
	for i, f := range e.Fields {
		errs[i] = f
	}
	return errs
}

// Warning is a rule that compiles, and that a reviewer should look at twice.
type Warning struct {
	Path string
	Msg  string
}

// ErrUnknownKey is the kind of a JSON policy's error for a key that does not
// exist; a typo must not silently allow or deny.
var ErrUnknownKey = errors.New("unknown key")
