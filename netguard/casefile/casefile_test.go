package casefile

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func shipped(t testing.TB) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/cases.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func shippedCases(t testing.TB, kinds ...string) []Case {
	t.Helper()
	var out []Case
	for line := range bytes.Lines(shipped(t)) {
		c, err := parse(line)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range kinds {
			if c.Kind == k {
				out = append(out, c)
			}
		}
	}
	return out
}

// TestShippedCases holds every case to its verdict, its class of refusal, its
// code and its details.
func TestShippedCases(t *testing.T) {
	rep, err := Run(bytes.NewReader(shipped(t)), Options{Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range rep.Failures {
		t.Errorf("%s (%s): expected %s, got %s: %s differs", d.ID, d.Kind, d.Expected, d.Got, d.What)
	}
	want := map[string]Count{
		"ip": {Passed: 246}, "host": {Passed: 40}, "url": {Passed: 165}, "policy": {Passed: 175},
		"dns": {Passed: 76}, "sni": {Passed: 59}, "redirect_chain": {Passed: 84},
	}
	for kind, n := range want {
		if rep.Kinds[kind] != n {
			t.Errorf("%s: %+v; want %+v", kind, rep.Kinds[kind], n)
		}
	}
	if rep.Passed != 845 || rep.Failed != 0 || len(rep.Kinds) != len(want) {
		t.Errorf("%d passed, %d failed in %d kinds", rep.Passed, rep.Failed, len(rep.Kinds))
	}
}

// TestSettledCasesAreUntouched holds by hash that the cases which rest on a
// registry, an RFC or a specification are as they were handed down. Only the
// ones of basis design may ever be argued with here.
func TestSettledCasesAreUntouched(t *testing.T) {
	h := sha256.New()
	n := 0
	for line := range bytes.Lines(shipped(t)) {
		var c struct{ Basis string }
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		switch c.Basis {
		case "registry", "rfc", "spec":
			h.Write(line)
			n++
		case "design":
		default:
			t.Errorf("basis %q", c.Basis)
		}
	}
	const want = "c9eee6ddb53a65e8f9b0244634be270c98c4dd585c699262fded6ae2cd6274c6"
	if got := hex.EncodeToString(h.Sum(nil)); got != want || n != 549 {
		t.Errorf("%d settled cases, hash %s", n, got)
	}
}

// TestRunCanFail holds that a wrong expectation is reported with both verdicts
// and reasons, and that the last line counts.
func TestRunCanFail(t *testing.T) {
	const file = `{"id":"x-1","kind":"ip","input":"8.8.8.8","expect":"deny","reason":"wrong"}
{"id":"x-2","kind":"policy","input":{"connect":"10.0.0.1:443"},"policy":{"mode":"public"},"expect":"invalid"}

{"id":"x-3","kind":"host","input":"a.example.com","policy":{"mode":"allowlist","allow":[{"host":"*.example.com"}]},"resolver":{"*":["8.8.8.8"]},"expect":"allow","expect_detail":{"dial":["8.8.4.4:443"]}}
{"id":"x-4","kind":"redirect_chain","input":{"request":{"method":"GET","url":"https://a.example.com/","headers":{"X-A":"1"}},"responses":[{"status":302,"location":"https://b.example.com/"}]},"resolver":{"*":["8.8.8.8"]},"expect":"allow","expect_detail":{"sent":["x-a"]}}
{"id":"x-5","kind":"ip","input":"10.0.0.1","expect":"deny","code":"v4.cgnat"}
`
	for _, tt := range []struct {
		strict bool
		want   string
	}{
		{false, "FAIL x-1 (ip): expected deny (wrong), got allow v4.public: verdict differs\n" +
			"FAIL x-3 (host): expected allow (), got allow v4.public allow[0] host *.example.com: dialled [8.8.8.8:443] differs\n" +
			"FAIL x-4 (redirect_chain): expected allow (), got allow: sent [] differs\n" +
			"note x-2 (policy): expected invalid (), got deny ip.blocked v4.private: class of refusal differs\n" +
			"note x-5 (ip): expected deny v4.cgnat (), got deny ip.blocked v4.private: code differs\n" +
			"2 passed, 3 failed\n"},
		{true, "0 passed, 5 failed\n"},
	} {
		rep, err := Run(strings.NewReader(file), Options{Strict: tt.strict})
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := rep.Print(&out); err != nil {
			t.Fatal(err)
		}
		got := strings.ReplaceAll(out.String(), "  ", " ")
		if ok := got == tt.want || tt.strict && strings.HasSuffix(got, tt.want); !ok {
			t.Errorf("strict %v:\n%s", tt.strict, got)
		}
	}
}

func TestBrokenFiles(t *testing.T) {
	for name, file := range map[string]string{
		"no json":         "x",
		"unknown key":     `{"id":"a","kind":"ip","input":"1.1.1.1","expect":"allow","typo":1}`,
		"unknown expect":  `{"id":"a","kind":"ip","input":"1.1.1.1","expect":"maybe"}`,
		"unknown kind":    `{"id":"a","kind":"icmp","input":"1.1.1.1","expect":"allow"}`,
		"unknown input":   `{"id":"a","kind":"policy","input":{"conect":"a:1"},"expect":"allow"}`,
		"wrong input":     `{"id":"a","kind":"ip","input":7,"expect":"allow"}`,
		"broken resolver": `{"id":"a","kind":"ip","input":"1.1.1.1","resolver":{"a":[1]},"expect":"allow"}`,
		"no id":           `{"kind":"ip","input":"1.1.1.1","expect":"allow"}`,
	} {
		if _, err := Run(strings.NewReader("\n"+file), Options{}); err == nil || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%s: %v", name, err)
		}
	}
	rep, err := Run(strings.NewReader(`{"id":"a","kind":"policy","input":{"load":true},"policy":{"mode":"public","x":1},"expect":"allow"}`), Options{})
	if err != nil || rep.Failed != 1 || !strings.Contains(rep.Failures[0].Got.Note, "unknown") {
		t.Errorf("an invalid policy: %+v, %v", rep, err)
	}
}
