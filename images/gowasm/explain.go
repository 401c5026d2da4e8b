package gowasm

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/sandboxd/sandboxd/images"
)

// ReportError says all that keeps a server from being compiled. It matches
// images.ErrRefused.
type ReportError struct {
	Target   string
	Findings []Finding
}

// Error has one line for each finding.
func (e *ReportError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s cannot be compiled to WASM (use --isolation container or gvisor):", e.Target)
	for _, f := range e.Findings {
		fmt.Fprintf(&b, "\n  %s: %s", f.Package, f.Detail)
	}
	return b.String()
}

// Unwrap returns images.ErrRefused.
func (e *ReportError) Unwrap() error { return images.ErrRefused }

var (
	messageRE   = regexp.MustCompile(`^\S+\.(?:go|s):\d+(?::\d+)?: (.*)$`)
	undefinedRE = regexp.MustCompile(`^undefined: ((?:syscall|unix|os|signal|net)\.\w+)$`)
)

const (
	mostPackages = 8 // of which a report speaks
	mostMessages = 3 // for each
)

// explain reads what the compiler said: for each package its first messages,
// and what is missing where that is plain.
func explain(stderr []byte, packages []goPackage) []Finding {
	labels := map[string]string{}
	for _, p := range packages {
		labels[p.ImportPath] = p.label()
	}
	var out []Finding
	var messages []string
	flush := func() {
		if len(out) > 0 {
			out[len(out)-1].Detail = reason(messages)
		}
		messages = nil
	}
	for line := range strings.Lines(string(stderr)) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "# "); ok {
			flush()
			if len(out) == mostPackages {
				return out
			}
			label := labels[name]
			if label == "" {
				label = clean(name)
			}
			out = append(out, Finding{Kind: "compile", Package: label})
			continue
		}
		if m := messageRE.FindStringSubmatch(line); m != nil {
			line = m[1]
		}
		if line != "" && line != "too many errors" {
			messages = append(messages, line)
		}
	}
	flush()
	return out
}

// reason puts a package's messages into one clause.
func reason(messages []string) string {
	var absent, rest []string
	seen := map[string]bool{}
	for _, m := range messages {
		if seen[m] {
			continue
		}
		seen[m] = true
		if u := undefinedRE.FindStringSubmatch(m); u != nil {
			absent = append(absent, u[1])
		} else {
			rest = append(rest, clean(m))
		}
	}
	switch {
	case len(absent) > 0:
		return "uses " + cut(absent) + ", which wasip1 does not have"
	case len(rest) == 0:
		return "does not compile for wasip1"
	}
	return "does not compile for wasip1: " + strings.Join(rest[:min(len(rest), mostMessages)], "; ")
}
