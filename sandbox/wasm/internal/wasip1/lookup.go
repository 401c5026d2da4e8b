package wasip1

import (
	"net/netip"
	"strings"
)

// Synthetic addresses stand for looked-up names. They come from 198.18.0.0/15,
// which RFC 2544 keeps off the internet: a guest that leaks one to somebody
// else has leaked nothing, and no policy opens it as a literal.
const (
	maxNames      = 1 << 14
	maxNameLength = 253
)

var syntheticBase = [4]byte{198, 18, 0, 0}

// lookups maps names to synthetic addresses and back, for one guest. When it
// is full the oldest name makes room.
type lookups struct {
	byName map[string]int
	names  []string
	next   int
}

// address returns the address that stands for name.
func (l *lookups) address(name string) netip.Addr {
	i, ok := l.byName[name]
	if !ok {
		if l.byName == nil {
			l.byName = map[string]int{}
		}
		if len(l.names) < maxNames {
			l.names = append(l.names, name)
			i = len(l.names) - 1
		} else {
			i, l.next = l.next, (l.next+1)%maxNames
			delete(l.byName, l.names[i])
			l.names[i] = name
		}
		l.byName[name] = i
	}
	a, n := syntheticBase, i+1 // not the network's own address
	a[2], a[3] = byte(n>>8), byte(n)
	return netip.AddrFrom4(a)
}

// name returns what an address stands for.
func (l *lookups) name(a netip.Addr) (string, bool) {
	if !a.Is4() {
		return "", false
	}
	b := a.As4()
	i := int(b[2])<<8 + int(b[3]) - 1
	if b[0] != syntheticBase[0] || b[1] != syntheticBase[1] || i < 0 || i >= len(l.names) {
		return "", false
	}
	return l.names[i], true
}

// lookup checks a name and gives its address: a literal's own, else a
// synthetic one. Nothing is sent.
func (s *System) lookup(name string) (netip.Addr, Errno) {
	if s.cfg.Dial == nil {
		return netip.Addr{}, EACCES
	}
	if a, err := netip.ParseAddr(name); err == nil && a.Zone() == "" {
		return a.Unmap(), Success
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if !plainName(name) {
		return netip.Addr{}, ENOENT
	}
	if s.cfg.CheckName != nil && s.cfg.CheckName(name) != nil {
		return netip.Addr{}, EACCES
	}
	return s.names.address(name), Success
}

// plainName accepts letters, digits, hyphens, underscores and dots. Whatever
// else a name may be is for the policy, which reads it again at the dial; here
// it only must not change the meaning of host:port.
func plainName(name string) bool {
	if name == "" || len(name) > maxNameLength {
		return false
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return true
}
