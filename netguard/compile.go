package netguard

import (
	"fmt"
	"strconv"
	"time"

	"github.com/sandboxd/sandboxd/netguard/iana"
)

// schemeSet is a set of URL schemes.
type schemeSet uint8

// The schemes that a policy may list.
const (
	schemeHTTP schemeSet = 1 << iota
	schemeHTTPS
	schemeWS
	schemeWSS
)

func schemeOf(s string) schemeSet {
	switch s {
	case "http":
		return schemeHTTP
	case "https":
		return schemeHTTPS
	case "ws":
		return schemeWS
	case "wss":
		return schemeWSS
	}
	return 0
}

// maxPolicyRedirects bounds max_redirects: a longer chain is a loop.
const maxPolicyRedirects = 50

// Compile checks a Config and makes it a Policy. The error is a *ConfigError
// that lists every fault. Compile copies what it keeps.
func Compile(cfg Config) (*Policy, error) {
	c := compiler{p: &Policy{
		mode:         cfg.Mode,
		maxRedirects: DefaultMaxRedirects,
		nat64:        cfg.NAT64,
		pinTTL:       cfg.PinTTL,
		limits:       cfg.Limits,
		local:        map[localKey]*rule{},
	}}
	switch cfg.Mode {
	case ModeAllowlist:
	case ModePublic:
		c.warn("mode", "opens every public address that no deny rule covers")
	case "":
		c.fail("mode", "is required: allowlist or public")
	default:
		c.fail("mode", "%q is neither allowlist nor public", cfg.Mode)
	}
	c.allowRules(cfg.Allow)
	c.denyRules(cfg.Deny)
	for i, e := range cfg.AllowLocalEndpoint {
		c.localEndpoint(fmt.Sprintf("allow_local_endpoint[%d]", i), e)
	}
	c.http(cfg)
	c.limits(cfg)
	if len(c.faults) > 0 {
		return nil, &ConfigError{Fields: c.faults}
	}
	c.p.warnings = c.warnings
	return c.p, nil
}

type compiler struct {
	p        *Policy
	faults   []FieldError
	warnings []Warning
}

func (c *compiler) fail(path, format string, args ...any) {
	c.faults = append(c.faults, FieldError{path, fmt.Sprintf(format, args...)})
}

func (c *compiler) warn(path, format string, args ...any) {
	c.warnings = append(c.warnings, Warning{path, fmt.Sprintf(format, args...)})
}

func (c *compiler) localEndpoint(path, s string) {
	t, reason := ParseTarget(s)
	switch {
	case reason != "":
		c.fail(path, "%q is not host:port: %s", cut(s), reason)
		return
	case t.Port == 0:
		c.fail(path, "port 0 is no destination")
		return
	case t.Name != "" && metadataName(t.Name), t.Addr.IsValid() && iana.Metadata(t.Addr):
		c.fail(path, "metadata services never open")
		return
	}
	if t.Addr.IsValid() {
		class := iana.Lookup(t.Addr)
		if class.Public() {
			c.fail(path, "is a public address: it belongs in allow")
			return
		}
		if !class.Local() {
			c.fail(path, "is %s: only loopback, RFC 1918, CGNAT and ULA addresses can be opened", class)
			return
		}
	}
	key := localKey{t.Name, t.Addr, t.Port}
	if c.p.local[key] == nil {
		c.p.local[key] = &rule{id: path + " " + t.String(), ports: []portRange{{t.Port, t.Port}}, protocol: ProtocolTCP}
	}
}

func (c *compiler) http(cfg Config) {
	if cfg.Schemes == nil {
		c.p.schemes = schemeHTTP | schemeHTTPS | schemeWS | schemeWSS
	} else if len(cfg.Schemes) == 0 {
		c.fail("schemes", "is empty: leave it out for all of http, https, ws, wss")
	}
	for i, s := range cfg.Schemes {
		bit := schemeOf(s)
		if bit == 0 {
			c.fail("schemes["+strconv.Itoa(i)+"]", "%q is none of http, https, ws, wss", cut(s))
		}
		c.p.schemes |= bit
	}
	if n := cfg.MaxRedirects; n != nil {
		if *n < 0 || *n > maxPolicyRedirects {
			c.fail("max_redirects", "%d is not in 0..%d", *n, maxPolicyRedirects)
		}
		c.p.maxRedirects = *n
	}
	switch cfg.CrossOriginBody {
	case "", "deny":
	case "allow":
		c.p.crossOriginBody = true
		c.warn("cross_origin_body", "a redirect can carry a request's body, with its secrets, elsewhere")
	default:
		c.fail("cross_origin_body", "%q is neither allow nor deny", cut(cfg.CrossOriginBody))
	}
}

func (c *compiler) limits(cfg Config) {
	for _, l := range []struct {
		name  string
		value int64
	}{
		{"connections", int64(cfg.Limits.Connections)},
		{"per_second", int64(cfg.Limits.PerSecond)},
		{"bytes_up", cfg.Limits.BytesUp},
		{"bytes_down", cfg.Limits.BytesDown},
		{"names_per_wildcard", int64(cfg.Limits.NamesPerWildcard)},
	} {
		if l.value < 0 {
			c.fail("limits."+l.name, "is negative")
		}
	}
	if cfg.PinTTL < 0 || cfg.PinTTL > 24*time.Hour {
		c.fail("pin_ttl", "%s is not in 0..24h", cfg.PinTTL)
	}
	if cfg.NAT64 {
		c.warn("nat64", "a translator outside the guard chooses the final address")
	}
}
