package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/images"
	"github.com/sandboxd/sandboxd/mcpbridge"
	"github.com/sandboxd/sandboxd/netguard"
)

// TestAttemptsAreCompared shows where the newer of two servers goes that the
// older did not, and in a form that is no danger to a terminal.
func TestAttemptsAreCompared(t *testing.T) {
	a := &attempts{}
	for _, r := range []netguard.Record{
		{Event: netguard.EventDecision, Sandbox: "old", Host: "same.example", Port: 443},
		{Event: netguard.EventDecision, Sandbox: "old", Host: "gone.example"},
		{Event: netguard.EventDecision, Sandbox: "new", Host: "same.example", Port: 443},
		{Event: netguard.EventDecision, Sandbox: "new", Host: "evil\x1b[2J.example", Port: 80},
		{Event: netguard.EventDecision, Sandbox: "new", Host: "evil\x1b[2J.example", Port: 80},
		{Event: netguard.EventClose, Sandbox: "new", Host: "closed.example"},
	} {
		a.add(r)
	}
	if d := cmp.Diff([]string{`evil\x1b[2J.example:80`}, a.only("new", "old")); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"gone.example"}, a.only("old", "new")); d != "" {
		t.Error(d)
	}
}

func TestUpdateIsPrinted(t *testing.T) {
	v := updateView{
		Ref: "npm:a", Old: "sha256:1", New: "sha256:2",
		Packages: []images.Change{{Kind: "npm", Name: "b", New: "2"}, {Kind: "npm", Name: "c", Old: "1"}, {Kind: "npm", Name: "d", Old: "1", New: "2"}},
		Tools:    []mcpbridge.ToolChange{{Tool: "t", Kind: "added"}},
	}
	v.Egress.Added = []string{"x.example:443"}
	var out strings.Builder
	if err := printUpdate(&out, &v, true); err != nil {
		t.Fatal(err)
	}
	want := "npm:a would change from sha256:1 to sha256:2\n  + npm b 2\n  - npm c 1\n  ~ npm d 1 -> 2\n+ t (added)\negress + x.example:443\n"
	if d := cmp.Diff(want, out.String()); d != "" || !v.differs() {
		t.Error(d)
	}
	same := updateView{Ref: "npm:a", Old: "sha256:1", New: "sha256:1"}
	out.Reset()
	if err := printUpdate(&out, &same, true); err != nil || out.String() != "npm:a is up to date (sha256:1)\n" || same.differs() {
		t.Errorf("%q, %v", out.String(), err)
	}
}
