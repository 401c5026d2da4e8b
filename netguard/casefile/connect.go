package casefile

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strings"

	"github.com/sandboxd/sandboxd/netguard"
)

func invalid(reason netguard.Reason) got {
	return outcome(false, reason, "", "")
}

func runIP(b *bench, raw json.RawMessage) (got, error) {
	var s string
	if err := decode(raw, &s); err != nil {
		return got{}, err
	}
	a, reason := netguard.ParseIP(s)
	if reason != "" {
		return invalid(reason), nil
	}
	return b.connect(net.JoinHostPort(a.String(), "443"), 1), nil
}

func runHost(b *bench, raw json.RawMessage) (got, error) {
	var s string
	if err := decode(raw, &s); err != nil {
		return got{}, err
	}
	name, addr, reason := netguard.ParseHost(s)
	if reason != "" {
		return invalid(reason), nil
	}
	if addr.IsValid() {
		name = addr.String()
	}
	return b.connect(net.JoinHostPort(name, "443"), 1), nil
}

func runURL(b *bench, raw json.RawMessage) (got, error) {
	var s string
	if err := decode(raw, &s); err != nil {
		return got{}, err
	}
	u, reason := netguard.ParseURL(s)
	if reason != "" {
		return invalid(reason), nil
	}
	// The client speaks http and https; a WebSocket starts as one of them.
	scheme := strings.Replace(u.Scheme, "ws", "http", 1)
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, scheme+"://"+u.Target.String()+u.Rest, nil)
	if err != nil {
		return invalid(netguard.ReasonURLSyntax), nil
	}
	if scheme != u.Scheme {
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "websocket")
	}
	resp, err := b.egress.RoundTripper(netguard.HTTPOptions{}).RoundTrip(req)
	if err == nil {
		_ = resp.Body.Close()
	}
	g := b.decision()
	g.detail = Detail{Dial: b.dialled}
	return g, nil
}

// connectInput is the input of the kinds policy and dns.
type connectInput struct {
	Connect string    `json:"connect"`
	Nth     int       `json:"nth"`
	Load    bool      `json:"load"`
	Query   *dnsQuery `json:"query"`
}

func runConnect(b *bench, c Case) (got, error) {
	var in connectInput
	if err := decode(c.Input, &in); err != nil {
		return got{}, err
	}
	switch {
	case in.Load:
		return got{Outcome: Allow}, nil // the policy has compiled
	case in.Query != nil:
		return b.query(*in.Query)
	}
	return b.connect(in.Connect, max(in.Nth, 1)), nil
}

// connect dials nth separate times; the last one is the case's.
func (b *bench) connect(address string, nth int) got {
	for range nth {
		b.mu.Lock()
		b.dialled = nil
		b.mu.Unlock()
		b.zone.mu.Lock()
		b.zone.lookups = 0
		b.zone.mu.Unlock()
		if conn, err := b.egress.DialContext(context.Background(), "tcp", address); err == nil {
			_ = conn.Close()
		}
	}
	g := b.decision()
	g.detail = Detail{Dial: b.dialled, Resolutions: &b.zone.lookups}
	return g
}
