package casefile

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// maxLine bounds one case, in bytes.
const maxLine = 1 << 20

// Options choose what counts.
type Options struct {
	// Strict also fails a case that was refused in another class (deny for
	// invalid) or with another code than it names. Without it, such a case
	// passes and is listed as a note: only allow against refused is strict.
	Strict bool
}

// Report is the outcome of a file.
type Report struct {
	Passed   int              `json:"passed"`
	Failed   int              `json:"failed"`
	Kinds    map[string]Count `json:"kinds"`
	Failures []Diff           `json:"failures"`
	Notes    []Diff           `json:"notes"`
}

// Count is the tally of one kind.
type Count struct {
	Passed int `json:"passed"`
	Failed int `json:"failed"`
}

// Diff is one case whose outcome is not the expected one.
type Diff struct {
	ID       string   `json:"id"`
	Kind     string   `json:"kind"`
	Expected expected `json:"expected"`
	Got      got      `json:"got"`
	What     string   `json:"what"` // the field that differs
}

type expected struct {
	Outcome Outcome `json:"outcome"`
	Code    string  `json:"code,omitempty"`
	Reason  string  `json:"reason,omitempty"` // the case's own words
}

// Run runs every case of r. The error is about the file (a line that is no
// case), never about a verdict.
func Run(r io.Reader, opts Options) (Report, error) {
	rep := Report{Kinds: map[string]Count{}, Failures: []Diff{}, Notes: []Diff{}}
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, 64<<10), maxLine)
	for line := 1; sc.Scan(); line++ {
		text := bytes.TrimSpace(sc.Bytes())
		if len(text) == 0 {
			continue
		}
		c, err := parse(text)
		if err != nil {
			return rep, fmt.Errorf("line %d: %w", line, err)
		}
		g, err := run(c)
		if err != nil {
			return rep, fmt.Errorf("line %d: case %q: %w", line, c.ID, err)
		}
		rep.add(c, g, opts)
	}
	if err := sc.Err(); err != nil {
		return rep, fmt.Errorf("read cases: %w", err)
	}
	return rep, nil
}

var errKind = errors.New("unknown kind")

// run decides one case.
func run(c Case) (got, error) {
	b, refused, err := newBench(c)
	if err != nil {
		return got{}, err
	}
	defer b.egress.Close() //nolint:errcheck // always nil
	if refused.Outcome == Invalid {
		return refused, nil
	}
	switch c.Kind {
	case "ip":
		return runIP(b, c.Input)
	case "host":
		return runHost(b, c.Input)
	case "url":
		return runURL(b, c.Input)
	case "policy", "dns":
		return runConnect(b, c)
	case "sni":
		return runSNI(b, c)
	case "redirect_chain":
		return runRedirect(b, c.Input)
	}
	return got{}, fmt.Errorf("%w %q", errKind, c.Kind)
}

func (rep *Report) add(c Case, g got, opts Options) {
	fatal, note := compare(c, g)
	k := rep.Kinds[c.Kind]
	d := Diff{ID: c.ID, Kind: c.Kind, Expected: expected{c.Expect, c.Code, c.Reason}, Got: g}
	switch {
	case fatal != "" || opts.Strict && note != "":
		d.What = fatal + note
		rep.Failed++
		k.Failed++
		rep.Failures = append(rep.Failures, d)
	default:
		rep.Passed++
		k.Passed++
		if note != "" {
			d.What = note
			rep.Notes = append(rep.Notes, d)
		}
	}
	rep.Kinds[c.Kind] = k
}

// compare returns what makes a case fail, or else what is merely different.
func compare(c Case, g got) (fatal, note string) {
	if (c.Expect == Allow) != (g.Outcome == Allow) {
		return "verdict", ""
	}
	if d := c.Detail; d != nil && c.Expect == Allow {
		if what := d.differs(g.detail); what != "" {
			return what, ""
		}
	}
	if c.Expect != g.Outcome {
		return "", "class of refusal"
	}
	if c.Code != "" && c.Expect != Allow && !slices.Contains(g.code(), c.Code) {
		return "", "code"
	}
	return "", ""
}

func (d *Detail) differs(g Detail) string {
	switch {
	case d.Dial != nil && !slices.Equal(d.Dial, g.Dial):
		return fmt.Sprintf("dialled %v", g.Dial)
	case d.Resolutions != nil && (g.Resolutions == nil || *d.Resolutions != *g.Resolutions):
		return "resolutions"
	case d.FinalURL != "" && lowerAuthority(d.FinalURL) != g.FinalURL:
		return fmt.Sprintf("final_url %q", g.FinalURL)
	case d.FinalMethod != "" && d.FinalMethod != g.FinalMethod:
		return fmt.Sprintf("final_method %q", g.FinalMethod)
	case d.Sent != nil && !slices.Equal(d.Sent, g.Sent):
		return fmt.Sprintf("sent %v", g.Sent)
	case d.Hops != nil && (g.Hops == nil || *d.Hops != *g.Hops):
		return "hops"
	}
	return ""
}

// Print writes each case that differs with both verdicts and reasons, then
// the notes, and ends with the line "N passed, N failed".
func (rep Report) Print(w io.Writer) error {
	var b strings.Builder
	for _, d := range rep.Failures {
		fmt.Fprintf(&b, "FAIL %s (%s): expected %s, got %s: %s differs\n", d.ID, d.Kind, d.Expected, d.Got, d.What)
	}
	for _, d := range rep.Notes {
		fmt.Fprintf(&b, "note %s (%s): expected %s, got %s: %s differs\n", d.ID, d.Kind, d.Expected, d.Got, d.What)
	}
	fmt.Fprintf(&b, "%d passed, %d failed\n", rep.Passed, rep.Failed)
	_, err := io.WriteString(w, b.String())
	return err
}

// String is the outcome with the case's own code and words.
func (e expected) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s (%s)", e.Outcome, e.Code, e.Reason))
}

// String is the outcome with everything that explains it.
func (g got) String() string {
	parts := []string{string(g.Outcome)}
	for _, s := range []string{g.Reason, g.Class, g.Rule, g.Note} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, " ")
}
