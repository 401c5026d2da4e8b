package netguard

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestExplain(t *testing.T) {
	l := newLab(t, Config{
		Mode:               ModeAllowlist,
		Allow:              []Rule{{Host: "*.example.com"}, {Host: "in.example.org", ResolveWithin: []string{"8.8.8.0/24"}}, {CIDR: "9.9.9.0/24"}},
		Deny:               []Rule{{Host: "bad.example.com"}},
		AllowLocalEndpoint: []string{"127.0.0.1:8080"},
		Schemes:            []string{"https"},
	})
	l.names.set("a.example.com", 0, "8.8.8.8")
	l.names.set("p.example.com", 0, "8.8.8.8", "10.0.0.1")
	l.names.set("in.example.org", 0, "9.9.9.9")
	p := l.egress.Policy()
	for target, want := range map[string]struct {
		reason Reason
		last   string
		change string
	}{
		"a.example.com":            {"", "addresses", "remove or narrow allow[0]"},
		"https://a.example.com/x":  {"", "addresses", "remove or narrow allow[0]"},
		"http://a.example.com/":    {ReasonScheme, "scheme", "schemes"},
		"ftp://a.example.com/":     {ReasonScheme, "scheme", "schemes"},
		"a.example.com:0":          {ReasonPortRange, "port", "nothing"},
		"a.example.com:22":         {ReasonPort, "allow rules", "add port 22 to allow[0]"},
		"bad.example.com:443":      {ReasonDenyRule, "deny rules", "narrow deny[0]"},
		"b.example.net:443":        {ReasonNotAllowed, "allow rules", "{host: b.example.net, ports: [443]}"},
		"8.8.8.8":                  {ReasonLiteral, "allow rules", "{cidr: 8.8.8.8/32, ports: [443]}"},
		"9.9.9.9:443":              {"", "allow rules", "allow[2]"},
		"127.0.0.1:8080":           {"", "local endpoint", "allow_local_endpoint[0]"},
		"127.0.0.1:8081":           {ReasonAddress, "address class", `allow_local_endpoint: "127.0.0.1:8081"`},
		"169.254.169.254:80":       {ReasonAddress, "address class", "nothing in a policy"},
		"metadata.google.internal": {ReasonSpecialName, "special names", "nothing in a policy"},
		"db.internal:5432":         {ReasonSpecialName, "special names", `allow_local_endpoint: "db.internal:5432"`},
		"p.example.com":            {ReasonAddress, "addresses", "allow_local_endpoint"},
		"in.example.org":           {ReasonWithin, "addresses", "resolve_within of allow[1]"},
		"gone.example.com":         {ReasonResolve, "look-up", "nothing in the policy"},
		"127.1:80":                 {ReasonHostNumeric, "syntax", "canonical form"},
		"https://a@b.example/":     {ReasonURLUserinfo, "syntax", "canonical form"},
	} {
		x := l.guard.Explain(t.Context(), p, target, true)
		lastStep := x.Steps[len(x.Steps)-1]
		if x.Reason != want.reason || x.Allow != (want.reason == "") || lastStep.Check != want.last || lastStep.Passed != x.Allow || !strings.Contains(x.Change, want.change) {
			t.Errorf("%s: %+v", target, x)
		}
		for _, s := range x.Steps[:len(x.Steps)-1] {
			if !s.Passed {
				t.Errorf("%s: %q failed and more follows", target, s.Check)
			}
		}
	}
	if len(l.dialled) != 0 || len(l.records) != 0 {
		t.Error("an explanation dials or records")
	}
	if x := Explain(nil, "a.example.com"); x.Reason != ReasonNoPolicy || x.Allow {
		t.Errorf("%+v", x)
	}
}

// TestExplainAgrees holds that an explanation and a connection never differ.
func TestExplainAgrees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, err := Compile(genConfig(t))
		if err != nil {
			return
		}
		g, target := &Guard{}, genTarget(t)
		m := g.judge(p, "", target)
		x := g.Explain(context.Background(), p, target.String(), true)
		if d := cmp.Diff([]any{m.Allow, m.Reason, m.Rule}, []any{x.Allow, x.Reason, x.Rule}); d != "" {
			t.Fatalf("%v: (-connection +explanation):\n%s", target, d)
		}
	})
}
