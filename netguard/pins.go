package netguard

import (
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Bounds of one sandbox's pin table. Past them the pins that would expire
// first go: a guest that looks up without end forgets only its own.
const (
	maxPinnedNames = 4096
	maxPinnedAddrs = 2 * MaxAnswers // of one name, over several answers
)

// pinTable holds which addresses each name was answered with in one sandbox,
// and until when. It holds no verdicts: the policy in force when a connection
// comes decides about it. Safe for concurrent use.
type pinTable struct {
	mu    sync.Mutex
	names map[string][]pinned
	addrs map[netip.Addr]map[string]struct{} // which names to look at for an address
}

type pinned struct {
	addr    netip.Addr
	expires time.Time
}

// add pins a vetted answer for ttl. Addresses of earlier answers keep the
// time they were given, so a client that still holds them can use them.
func (t *pinTable) add(name string, addrs []netip.Addr, ttl time.Duration) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.names == nil {
		t.names = make(map[string][]pinned)
		t.addrs = make(map[netip.Addr]map[string]struct{})
	}
	old := t.names[name]
	if old == nil && len(t.names) >= maxPinnedNames {
		t.evict(now)
	}
	fresh := make([]pinned, 0, len(addrs)+len(old))
	for _, a := range addrs {
		fresh = append(fresh, pinned{a, now.Add(ttl)})
	}
	for _, p := range old {
		switch {
		case slices.Contains(addrs, p.addr):
		case len(fresh) < maxPinnedAddrs && p.expires.After(now):
			fresh = append(fresh, p)
		default:
			t.unlink(name, p.addr)
		}
	}
	t.names[name] = fresh
	for _, a := range addrs {
		if t.addrs[a] == nil {
			t.addrs[a] = make(map[string]struct{}, 1)
		}
		t.addrs[a][name] = struct{}{}
	}
}

// evict drops all that expired, or else the name that would expire first.
func (t *pinTable) evict(now time.Time) {
	var (
		first string
		when  time.Time
		freed bool
	)
	for name, pins := range t.names {
		last := time.Time{}
		for _, p := range pins {
			if p.expires.After(last) {
				last = p.expires
			}
		}
		if !last.After(now) {
			t.drop(name)
			freed = true
		} else if when.IsZero() || last.Before(when) {
			first, when = name, last
		}
	}
	if !freed {
		t.drop(first)
	}
}

func (t *pinTable) drop(name string) {
	for _, p := range t.names[name] {
		t.unlink(name, p.addr)
	}
	delete(t.names, name)
}

func (t *pinTable) unlink(name string, a netip.Addr) {
	delete(t.addrs[a], name)
	if len(t.addrs[a]) == 0 {
		delete(t.addrs, a)
	}
}

// lookup returns the live addresses of name, those of the newest answer first.
func (t *pinTable) lookup(name string) []netip.Addr {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	var live []netip.Addr
	for _, p := range t.names[name] {
		if p.expires.After(now) {
			live = append(live, p.addr)
		}
	}
	return live
}

// namesOf returns the names with a live pin to a, sorted.
func (t *pinTable) namesOf(a netip.Addr) []string {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	var live []string
	for name := range t.addrs[a] {
		for _, p := range t.names[name] {
			if p.addr == a && p.expires.After(now) {
				live = append(live, name)
			}
		}
	}
	slices.Sort(live)
	return live
}
