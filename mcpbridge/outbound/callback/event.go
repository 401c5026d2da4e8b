package callback

import (
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// event is one line of an engine's stream.
type event struct {
	Type    string
	URL     string          // run; ask
	ID      string          // ask
	Message string          // progress, ask, error
	Schema  json.RawMessage // ask
	Done    float64         // progress
	Total   float64
	Outputs json.RawMessage // done
}

// readEvent reads a line in one way alone: valid UTF-8, names as they are
// written, none twice. Members that are not known are ignored.
func readEvent(line []byte) (event, error) {
	var ev event
	if !utf8.Valid(line) {
		return ev, errors.New("it is not UTF-8")
	}
	to := map[string]any{
		"type": &ev.Type, "url": &ev.URL, "id": &ev.ID, "message": &ev.Message, "done": &ev.Done, "total": &ev.Total,
		"schema": &ev.Schema, "outputs": &ev.Outputs,
	}
	seen := map[string]bool{}
	var fault error
	err := relay.Members(line, func(k string, v relay.Span) bool {
		at, known := to[k]
		switch {
		case !known:
		case seen[k]:
			fault = fmt.Errorf("%s is there twice", k)
		case json.Unmarshal(v.Of(line), at) != nil:
			fault = fmt.Errorf("%s has another type than it should", k)
		}
		seen[k] = known
		return fault == nil
	})
	if err != nil && fault == nil {
		fault = err
	}
	if fault != nil {
		return ev, fault
	}
	need := map[string][]string{"run": {"url"}, "progress": nil, "ask": {"id", "message"}, "done": {"outputs"}, "error": {"message"}}
	members, ok := need[ev.Type]
	if !ok {
		return ev, fmt.Errorf("unknown type %q", relay.Cut([]byte(ev.Type), 40))
	}
	for _, m := range members {
		if !seen[m] {
			return ev, fmt.Errorf("%s lacks %s", ev.Type, m)
		}
	}
	if ev.Type == "ask" && (ev.ID == "" || len(ev.ID) > 256) {
		return ev, errors.New("the id of a question has 1 to 256 bytes")
	}
	return ev, nil
}
