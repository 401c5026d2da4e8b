package mcpbridge

import (
	"bytes"

	"github.com/sandboxd/sandboxd/mcpbridge/suspect"
)

// maxScan bounds, in bytes, what of one list is looked at for suspicious text.
// The longest honest list has a quarter of it.
const maxScan = 4 << 20

// Flagged is suspicious text in an admitted tool's definition: for a person to
// judge. The tool works as any other.
type Flagged struct {
	Tool string `json:"tool"`
	suspect.Finding
}

// flag looks at the tools that are new or changed since old.
func (s *snapshot) flag(f *suspect.Finder, old *snapshot) {
	left := maxScan
	for _, t := range s.tools {
		if o := old.byName[t.name]; o != nil && bytes.Equal(o.raw, t.raw) {
			t.found = o.found
		} else if left -= len(t.raw); left >= 0 {
			t.found = f.Find(t.raw)
		} else if left+len(t.raw) >= 0 { // the first that is too many
			s.flagged = append(s.flagged, Flagged{t.name, suspect.Finding{Kind: suspect.Encoded, Excerpt: "the list is too long: from here on it was not looked at"}})
		}
		for _, found := range t.found {
			if len(s.flagged) < maxReports {
				s.flagged = append(s.flagged, Flagged{t.name, found})
			}
		}
	}
}

// reportFlagged says once what is new in a list.
func (e *entry) reportFlagged(now, old *snapshot) {
	said := map[Flagged]bool{}
	for _, f := range old.flagged {
		said[f] = true
	}
	for _, f := range now.flagged {
		if !said[f] {
			e.log.Warn("tool's definition has suspicious text", "tool", f.Tool, "kind", f.Kind, "path", f.Path, "text", f.Excerpt)
		}
	}
}
