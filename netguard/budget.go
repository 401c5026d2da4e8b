package netguard

import (
	"strings"
	"sync/atomic"

	"golang.org/x/time/rate"
)

// lookupsPerConnection is how many look-ups a guest may ask for with each
// connection that the policy lets it open: one for each family. They all go to
// a resolver that it shares with everybody else.
const lookupsPerConnection = 2

// budget is what one sandbox may still use. connections and rate are guarded
// by the Egress's lock; the byte counts are atomic, for the copying loops.
type budget struct {
	connections int
	rate        *rate.Limiter
	lookups     *rate.Limiter // of look-ups that guests ask for; not under the lock
	maxUp       atomic.Int64  // 0: unlimited
	maxDown     atomic.Int64
	up, down    atomic.Int64
}

// set puts other limits in force. What was used stays used.
func (b *budget) set(l Limits) {
	b.connections = l.Connections
	lookups := lookupsPerConnection * l.PerSecond
	if b.rate == nil {
		b.rate = rate.NewLimiter(rate.Limit(l.PerSecond), l.PerSecond)
		b.lookups = rate.NewLimiter(rate.Limit(lookups), lookups)
	} else {
		b.rate.SetLimit(rate.Limit(l.PerSecond))
		b.rate.SetBurst(l.PerSecond)
		b.lookups.SetLimit(rate.Limit(lookups))
		b.lookups.SetBurst(lookups)
	}
	b.maxUp.Store(l.BytesUp)
	b.maxDown.Store(l.BytesDown)
}

// spent reports whether a byte budget is used up.
func (b *budget) spent() bool {
	up, down := b.maxUp.Load(), b.maxDown.Load()
	return up > 0 && b.up.Load() >= up || down > 0 && b.down.Load() >= down
}

// countName counts the distinct names looked up under each wildcard, since a
// name can carry data to whoever serves the zone. It reports whether this one
// may be looked up. In mode public without a rule the limit counts all names,
// and only where the policy sets one.
func (e *Egress) countName(p *Policy, m match, name string) bool {
	key := "*"
	switch {
	case m.local, m.rule == nil && p.limits.NamesPerWildcard == 0:
		return true
	case m.rule != nil && !m.rule.wildcard:
		return true
	case m.rule != nil:
		key = m.rule.suffix
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	seen := e.names[key]
	if _, ok := seen[name]; ok {
		return true
	}
	if len(seen) >= p.Limits().NamesPerWildcard {
		return false
	}
	if seen == nil {
		seen = map[string]struct{}{}
		e.names[strings.Clone(key)] = seen
	}
	seen[strings.Clone(name)] = struct{}{}
	return true
}
