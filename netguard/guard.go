package netguard

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"
)

// Control is called with the socket just before the kernel connects it; the
// guard refuses there what it did not vet.
type Control func(ctx context.Context, network, address string, c syscall.RawConn) error

// DialFunc opens a connection to a literal address. It must call control for
// each socket before it connects, as net.Dialer.ControlContext does.
type DialFunc func(ctx context.Context, network string, addr netip.AddrPort, control Control) (net.Conn, error)

// Options are the operator's settings. No policy can change them.
type Options struct {
	// Upstream is the DNS server to ask, host:port with a literal host.
	// Empty means the first one of /etc/resolv.conf. Ignored with Resolver.
	Upstream string
	// Resolver replaces the built-in upstream client.
	Resolver Resolver
	// Trusted maps a registry's name ("npm") to ranges outside the public
	// space on which its mirrors may sit. Only an Egress whose Subject names
	// the registry may use them, and never for a metadata address.
	Trusted map[string][]netip.Prefix
	// TrustedHosts maps a host's name to ranges outside the public space on
	// which it may sit, for every Egress whose policy allows that host: a
	// registry's mirror. It opens no literal. See CheckTrusted.
	TrustedHosts map[string][]netip.Prefix
	// Refused are further ranges that nothing may reach.
	Refused []netip.Prefix
	// Record takes every audit line. It is called synchronously, from many
	// goroutines, and must not block. Nil drops the lines.
	Record func(Record)
	// Dial opens connections. Nil means a net.Dialer.
	Dial DialFunc
	// DialTimeout bounds one connection's set-up over all its addresses;
	// zero means 15 seconds.
	DialTimeout time.Duration
	// Logger takes the guard's own faults. Nil drops them.
	Logger *slog.Logger
}

// Guard decides and opens all egress of one process. It is safe for
// concurrent use and has nothing to close: each Egress does.
type Guard struct {
	resolver Resolver
	trusted  map[string]*prefixTable
	refused  prefixTable

	trustedHosts map[string]*prefixTable

	record   func(Record)
	dial     DialFunc
	timeout  time.Duration
	log      *slog.Logger
	idPrefix string
	idNext   atomic.Uint64
}

// ErrUpstream says that no usable upstream resolver was given or found.
var ErrUpstream = errors.New("no usable upstream DNS server")

// New checks the options and returns a Guard that holds copies of them.
func New(opts Options) (*Guard, error) {
	g := &Guard{
		resolver: opts.Resolver,
		record:   opts.Record,
		dial:     opts.Dial,
		timeout:  opts.DialTimeout,
		log:      opts.Logger,
		trusted:  make(map[string]*prefixTable, len(opts.Trusted)),
	}
	if g.resolver == nil {
		up, err := NewUpstream(opts.Upstream)
		if err != nil {
			return nil, err
		}
		g.resolver = up
	}
	if g.record == nil {
		g.record = func(Record) {}
	}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	if g.timeout == 0 {
		g.timeout = 15 * time.Second
	}
	if g.dial == nil {
		g.dial = netDial
	}
	for name, prefixes := range opts.Trusted {
		t, err := operatorTable(prefixes)
		if err != nil {
			return nil, fmt.Errorf("trusted ranges of registry %q: %w", name, err)
		}
		g.trusted[name] = &t
	}
	var err error
	if g.trustedHosts, err = trustedHosts(opts.TrustedHosts); err != nil {
		return nil, err
	}
	refused, err := operatorTable(opts.Refused)
	if err != nil {
		return nil, fmt.Errorf("refused ranges: %w", err)
	}
	g.refused = refused
	var b [6]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, fmt.Errorf("record ids: %w", err)
	}
	g.idPrefix = hex.EncodeToString(b[:])
	return g, nil
}

// operatorTable checks ranges that an operator wrote.
func operatorTable(prefixes []netip.Prefix) (prefixTable, error) {
	entries := make([]prefixEntry, 0, len(prefixes))
	for _, p := range prefixes {
		if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() {
			return prefixTable{}, fmt.Errorf("%q is not a canonical prefix", p)
		}
		entries = append(entries, prefixEntry{prefix: p})
	}
	return newPrefixTable(entries), nil
}

// Subject is whom an Egress belongs to.
type Subject struct {
	Tenant  string
	Sandbox string
	// InFlight names the tool calls under way, for records. May be nil.
	InFlight func() []string
	// Registry names the Options.Trusted ranges this Egress may reach, for
	// the bridge's own fetches from a package registry. Empty for sandboxes.
	Registry string
}

// nextID is unique in the process and, by its prefix, between processes.
func (g *Guard) nextID() string {
	return fmt.Sprintf("%s-%d", g.idPrefix, g.idNext.Add(1))
}

// netDial is the default DialFunc.
func netDial(ctx context.Context, network string, addr netip.AddrPort, control Control) (net.Conn, error) {
	d := net.Dialer{ControlContext: control, KeepAlive: 30 * time.Second}
	return d.DialContext(ctx, network, addr.String())
}
