package callback

import (
	"encoding/json"
	"testing"
	"unicode/utf8"
)

// FuzzEvent: what is taken is UTF-8 and JSON, of a known type, and whole.
func FuzzEvent(f *testing.F) {
	for _, s := range []string{
		`{"type":"run","url":"/runs/7"}`, `{"type":"progress","done":1e3,"total":3}`, `{"type":"ask","id":"q","message":"m","schema":{}}`,
		`{"type":"done","outputs":{"a":[1]}}`, `{"type":"error","message":"\u0000"}`, `{"type":"done","outputs":1,"outputs":2}`, "{\"type\":\"\xff\"}", `[]`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		ev, err := readEvent(line)
		if err != nil {
			return
		}
		var strict struct{ Type string }
		if !utf8.Valid(line) || json.Unmarshal(line, &strict) != nil {
			t.Errorf("%q was taken", line)
		}
		switch ev.Type {
		case "done":
			if !json.Valid(ev.Outputs) {
				t.Errorf("%q: outputs %q", line, ev.Outputs)
			}
		case "ask":
			if ev.ID == "" {
				t.Errorf("%q has no id", line)
			}
		case "run", "progress", "error":
		default:
			t.Errorf("%q is of type %q", line, ev.Type)
		}
	})
}
