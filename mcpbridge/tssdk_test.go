package mcpbridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/mcpbridge/internal/fake"
)

// The TypeScript SDK's client drives every feature through the aggregated
// endpoint.
func TestTypeScriptSDK(t *testing.T) {
	_, err := exec.LookPath("node")
	need(t, err, "node")
	sdk := filepath.Dir(filepath.Dir(npmServer(t, "@modelcontextprotocol/sdk", "1.32.2", "dist/esm/client/index.js")))
	var many []string
	for i := range pageItems + 1 {
		many = append(many, fmt.Sprintf(`{"uri":"test://%d","name":"n"}`, i))
	}
	more, _ := starts(func() *fake.Server {
		return listing(map[string]string{"resources/list": `{"resources":[` + strings.Join(many, ",") + `]}`}, nil)
	})
	tasks, _ := starts(func() *fake.Server {
		s := tasking()
		s.Tools = strings.ReplaceAll(s.Tools, "optional", "required")
		plain := s.Handle
		s.Handle = func(r *fake.Request) (json.RawMessage, *fake.Error) { // JavaScript has no such numbers
			res, err := plain(r)
			text := strings.ReplaceAll(string(res), "9007199254740993", "60000")
			if strings.Contains(text, "createdAt") {
				text = strings.ReplaceAll(text, `"ttl"`, `"lastUpdatedAt":"2025-11-25T10:30:00Z","ttl"`)
			}
			if res == nil {
				return nil, err
			}
			return json.RawMessage(text), err
		}
		return s
	})
	r := newRegistry(t, Config{}, Server{Name: "full", Start: sdkStart, Required: true},
		Server{Name: "many", Start: more, Required: true}, Server{Name: "tasks", Start: tasks, Required: true})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	stdout, err := exec.CommandContext(ctx, "node", "testdata/client.mjs", sdk, serve(t, r).URL+"/mcp").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("%v\n%s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(stdout, &got); err != nil {
		t.Fatalf("%v: %s", err, stdout)
	}
	want := map[string]any{
		"tools":  []any{"mcp_full_work", "mcp_many_a", "mcp_tasks_slow"},
		"sample": "sampled", "elicit": "acceptme", "url": "accept", "roots": "file:///mine",
		"structured": map[string]any{"n": 1.5}, "progress": []any{"half"},
		"pages": 2.0, "resources": []any{1002.0, []any{"mcp-full+test://a"}},
		"templates": []any{"mcp-full+test://t/{x}"}, "read": map[string]any{"uri": "mcp-full+test://t/x", "text": "text of test://t/x"},
		"prompts": []any{"mcp_full_ask"}, "prompt": "mcp-full+test://a", "completion": []any{"ask!v"},
		"updated": "mcp-full+test://a", "logged": "full/db slow",
		"tools changed": true, "prompts changed": true, "resources changed": true,
		"cancelled": []any{"cancelled", "mcp-full+test://a"},
		"tasks":     []any{"working", true, map[string]any{"n": 1.0}, 1.0, "cancelled"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
