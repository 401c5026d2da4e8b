package doctor

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox"
)

// Status is the outcome of one check.
type Status string

// The outcomes. What could not be tried is a warning whose Untried is set,
// never an OK.
const (
	OK   Status = "ok"
	Warn Status = "warn" // works with a restriction, or could not be tried
	Fail Status = "fail"
)

// Check is one thing that was tried.
type Check struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	// Detail is what was seen, in one line.
	Detail string `json:"detail"`
	// Next is what to do about it, or empty.
	Next string `json:"next,omitempty"`
	// Untried is set where the check needs rights that this user lacks.
	Untried bool `json:"untried,omitempty"`

	absent bool // no fault of the host's, and yet a tier that needs it is out
}

// Tier says whether this host gives one isolation.
type Tier struct {
	Name string `json:"name"`
	// Holds is true where a proof succeeded, or, without a proof to ask for,
	// where everything that the tier needs was tried and works.
	Holds bool `json:"holds"`
	// Proven is true where a sandbox of the tier, without a policy, was started
	// and reached nothing.
	Proven bool   `json:"proven"`
	Detail string `json:"detail"`

	isolation sandbox.Isolation
}

// Report is all that was found.
type Report struct {
	OS     string  `json:"os"`
	Arch   string  `json:"arch"`
	Kernel string  `json:"kernel,omitempty"`
	UID    int     `json:"uid"`
	Checks []Check `json:"checks"`
	Tiers  []Tier  `json:"tiers"`
}

// Holds lists the tiers that this host gives, in rising order.
func (r Report) Holds() []sandbox.Isolation {
	var out []sandbox.Isolation
	for _, t := range r.Tiers {
		if t.Holds {
			out = append(out, t.isolation)
		}
	}
	return out
}

// Missing lists which of the required tiers this host does not give.
func (r Report) Missing(required ...sandbox.Isolation) []sandbox.Isolation {
	holds := map[sandbox.Isolation]bool{}
	for _, i := range r.Holds() {
		holds[i] = true
	}
	var out []sandbox.Isolation
	for _, i := range required {
		if !holds[i] {
			out = append(out, i)
		}
	}
	return out
}

// Print writes the report as a table for people. JSON is json.Marshal's.
func (r Report) Print(w io.Writer) error {
	var b strings.Builder
	who := "user " + strconv.Itoa(r.UID)
	if r.UID == 0 {
		who = "root"
	}
	fmt.Fprintf(&b, "%s/%s, kernel %s, as %s\n\n", r.OS, r.Arch, r.Kernel, who)
	width := 0
	for _, c := range r.Checks {
		width = max(width, len(c.Name))
	}
	for _, t := range r.Tiers {
		width = max(width, len(t.Name))
	}
	for _, c := range r.Checks {
		fmt.Fprintf(&b, "%-4s  %-*s  %s\n", c.Status, width, c.Name, c.Detail)
		if c.Next != "" {
			fmt.Fprintf(&b, "%-4s  %-*s  -> %s\n", "", width, "", c.Next)
		}
	}
	b.WriteString("\nisolation that this host gives\n")
	for _, t := range r.Tiers {
		word := "no"
		if t.Holds {
			word = "yes"
		}
		fmt.Fprintf(&b, "%-4s  %-*s  %s\n", word, width, t.Name, t.Detail)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// line makes one clean line of what a program or an error said.
func line(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "") + "…"
	}
	if strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}
