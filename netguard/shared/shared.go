package shared

import (
	_ "embed"
	"strings"

	"golang.org/x/net/publicsuffix"
)

// spans holds, one a line between newlines, each name that is no suffix
// itself and has a private one below it.
//
//go:embed spans.txt
var spans string

// Kind says who registers the names below a name.
type Kind int

// The kinds, in rising order of danger for a wildcard.
const (
	Private Kind = iota // one owner, as far as the list knows
	Shared              // anyone with an account at a provider
	Public              // anyone: a registry's suffix, or a bare top-level domain
)

// Below classifies the names directly or further below name, which is
// canonical: lower case, A-labels, no trailing dot.
func Below(name string) Kind {
	// A rule such as *.ck or *.kobe.jp makes every child a suffix, though the
	// name itself may be none; a probe label finds it.
	worst := Private
	for _, n := range []string{name, "x--probe." + name} {
		suffix, icann := publicsuffix.PublicSuffix(n)
		if suffix != n {
			continue
		}
		if icann || !strings.Contains(n, ".") {
			return Public
		}
		worst = Shared
	}
	if worst == Private && strings.Contains(spans, "\n"+name+"\n") {
		return Shared
	}
	return worst
}

// Itself reports whether name is a registry's suffix or a bare top-level
// domain, which no rule may name as a host.
func Itself(name string) bool {
	suffix, icann := publicsuffix.PublicSuffix(name)
	return suffix == name && (icann || !strings.Contains(name, "."))
}
