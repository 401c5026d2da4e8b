package mcpbridge

import (
	"encoding/json"
	"strings"
	"testing"
)

func raws(defs ...string) (out []json.RawMessage) {
	for _, d := range defs {
		out = append(out, json.RawMessage(d))
	}
	return out
}

func TestToolsHash(t *testing.T) {
	want, err := ToolsHash(raws(`{"name":"a","inputSchema":{"type":"object","n":1}}`, `{"name":"b"}`))
	if err != nil || !strings.HasPrefix(want, "sha256:") {
		t.Fatal(want, err)
	}
	same, err := ToolsHash(raws(` {"name":"b"} `, `{ "inputSchema": {"n":1, "type":"obj\u0065ct"}, "name":"a"}`))
	if err != nil || same != want {
		t.Errorf("order and white space changed the hash: %s %v", same, err)
	}
	for name, defs := range map[string][]json.RawMessage{
		"a number written otherwise": raws(`{"name":"a","inputSchema":{"type":"object","n":1.0}}`, `{"name":"b"}`),
		"a description":              raws(`{"name":"a","inputSchema":{"type":"object","n":1},"description":"x"}`, `{"name":"b"}`),
		"one less":                   raws(`{"name":"b"}`),
		"none":                       nil,
	} {
		if got, err := ToolsHash(defs); err != nil || got == want {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
	for _, bad := range [][]json.RawMessage{raws(`{"name":"a"}`, `{"name":"a"}`), raws(`{}`), raws(`[]`), raws(`{"name":1}`), raws(`{"name":"a"`), raws(``)} {
		if got, err := ToolsHash(bad); err == nil {
			t.Errorf("%s: hashed to %s", bad, got)
		}
	}
}

// TestApproveAll: what was approved by its hash is what the registry compares
// with afterwards.
func TestApproveAll(t *testing.T) {
	p := OpenPins(t.TempDir())
	defs := raws(`{"name":"a","description":"one"}`)
	if err := p.ApproveAll("My Server", defs); err != nil {
		t.Fatal(err)
	}
	approved, err := p.see(Slug("My Server"), definitions{"a": json.RawMessage(`{"name":"a","description":"two"}`)})
	if err != nil || approved.pinned("a", defs[0]) != "" {
		t.Errorf("%v, %v", approved, err)
	}
	if changes, err := p.Diff("My Server"); err != nil || len(changes) != 1 {
		t.Errorf("changes: %v, %v", changes, err)
	}
	if p.ApproveAll("..", defs) == nil || p.ApproveAll("x", raws(`{}`)) == nil {
		t.Error("a nameless server or tool was approved")
	}
}
