package casefile

import (
	"bytes"
	"os"
	"testing"
)

func TestShippedCases(t *testing.T) {
	data, err := os.ReadFile("testdata/cases.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	rep, err := Run(bytes.NewReader(data), Options{Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range rep.Failures {
		t.Errorf("%s (%s): expected %s, got %s: %s differs", d.ID, d.Kind, d.Expected, d.Got, d.What)
	}
	if rep.Passed != 845 {
		t.Errorf("%d passed, %d failed: %v", rep.Passed, rep.Failed, rep.Kinds)
	}
}
