package mcpbridge

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/mcpbridge/internal/fake"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// tasking is a server whose calls are tasks. All of its kind give the same ids.
func tasking() *fake.Server {
	described := func(id, status string) string {
		return fmt.Sprintf(`"taskId":%q,"status":%q,"createdAt":"2025-11-25T10:30:00Z","ttl":9007199254740993`, id, status)
	}
	return &fake.Server{
		Tools: `[{"name":"slow","inputSchema":{"type":"object"},"outputSchema":{"type":"object","required":["n"]},"execution":{"taskSupport":"optional"}}]`, Concurrent: true,
		Capabilities: `{"tools":{},"tasks":{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}}`,
		Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
			var p struct {
				TaskID string `json:"taskId"`
				Task   json.RawMessage
			}
			_ = json.Unmarshal(r.Params, &p)
			switch {
			case r.Method == "tools/call" && p.Task == nil:
				return json.RawMessage(`{"content":[],"structuredContent":{"n":0}}`), nil
			case r.Method == "tools/call":
				r.Write(`{"jsonrpc":"2.0","id":"q","method":"tasks/get","params":{"taskId":"of another"}}`)
				return json.RawMessage(`{"task":{` + described("t1", "working") + `},"x":1.50}`), nil
			case strings.HasPrefix(r.Method, "tasks/") && p.TaskID != "t1":
				return nil, &fake.Error{Code: -32602, Message: "not " + p.TaskID}
			case r.Method == "tasks/get":
				r.Write(`{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{` + described("t1", "working") + `}}`)
				return json.RawMessage(`{` + described("t1", "working") + `}`), nil
			case r.Method == "tasks/cancel":
				return json.RawMessage(`{` + described("t1", "cancelled") + `}`), nil
			case r.Method == "tasks/result":
				return json.RawMessage(`{"content":[],"structuredContent":{"n":1},"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t1"}}}`), nil
			}
			return nil, nil
		},
	}
}

func TestTasks(t *testing.T) {
	a, _ := starts(tasking)
	b, _ := starts(tasking)
	plain, _ := starts(echoServer)
	r := newRegistry(t, Config{}, Server{Name: "a", Start: a, Required: true}, Server{Name: "b", Start: b, Required: true},
		Server{Name: "plain", Start: plain, Required: true}, Server{Name: "each", Start: a, Required: true, Sharing: SharingCall})
	heard := make(chan string, 16)
	one := r.openAggregate(nil, func(m relay.Message, raw []byte) {
		if m.Kind == relay.Notification {
			heard <- string(raw)
		}
	})
	defer one.Close(context.Background())
	two := r.openAggregate(nil, func(m relay.Message, raw []byte) {
		if m.Method == "notifications/tasks/status" {
			t.Errorf("another session heard %s", raw)
		}
	})
	defer two.Close(context.Background())
	ask := func(s *aggSession, method, params string) string {
		return string(s.answer(t.Context(), method, []byte(`1`), []byte(params)))
	}
	begin := func(tool string) string {
		t.Helper()
		var res struct {
			Result struct{ Task struct{ TaskID string } }
		}
		line := ask(one, "tools/call", `{"name":"`+tool+`","arguments":{},"task":{"ttl":1}}`)
		if err := json.Unmarshal([]byte(line), &res); err != nil || res.Result.Task.TaskID == "" || !strings.Contains(line, `"ttl":9007199254740993},"x":1.50`) {
			t.Fatalf("%s: %s, %v", tool, line, err)
		}
		return res.Result.Task.TaskID
	}
	first, second := begin("mcp_a_slow"), begin("mcp_b_slow")
	if first == second || strings.Contains(first, "t1") {
		t.Errorf("ids %s and %s", first, second)
	}
	want := `{"jsonrpc":"2.0","id":1,"result":{"taskId":"` + first + `","status":"working","createdAt":"2025-11-25T10:30:00Z","ttl":9007199254740993}}`
	if got := ask(one, "tasks/get", `{"taskId":"`+first+`"}`); got != want {
		t.Errorf("get: %s", got)
	}
	if got := receive(t, "the task's status", heard); !strings.Contains(got, first) {
		t.Errorf("heard %s", got)
	}
	if got := ask(one, "tasks/result", `{"taskId":"`+first+`"}`); !strings.Contains(got, `{"n":1}`) || !strings.Contains(got, `related-task":{"taskId":"`+first+`"}`) {
		t.Errorf("result: %s", got)
	}
	if got := ask(one, "tasks/cancel", `{"taskId":"`+second+`"}`); !strings.Contains(got, `"cancelled"`) {
		t.Errorf("cancel: %s", got)
	}
	if got := ask(one, "tasks/list", `{}`); !strings.Contains(got, first) || !strings.Contains(got, second) || !strings.Contains(got, `"cancelled"`) {
		t.Errorf("list: %s", got)
	}
	for _, method := range []string{"tasks/get", "tasks/result", "tasks/cancel"} {
		for _, id := range []string{`"` + first + `"`, `"t1"`, `"a-t1"`, `7`, `""`} {
			if got := ask(two, method, `{"taskId":`+id+`}`); !strings.Contains(got, `-32602`) {
				t.Errorf("another session's %s of %s: %s", method, id, got)
			}
		}
	}
	if got := ask(two, "tasks/list", `{}`); got != `{"jsonrpc":"2.0","id":1,"result":{"tasks":[]}}` {
		t.Errorf("another session's list: %s", got)
	}
	// Where no task can be, the call is one as any other.
	for tool, args := range map[string]string{"mcp_plain_echo": `{"text":"x"}`, "mcp_each_slow": `{}`} {
		if got := ask(one, "tools/call", `{"name":"`+tool+`","arguments":`+args+`,"task":{}}`); !strings.Contains(got, `"content"`) {
			t.Errorf("%s: %s", tool, got)
		}
	}
	// Tasks are bounded, and those that ended make room.
	for range maxTasks - 1 {
		begin("mcp_a_slow")
	}
	if got := ask(one, "tools/call", `{"name":"mcp_a_slow","arguments":{},"task":{}}`); !strings.Contains(got, "tasks already") {
		t.Errorf("over the bound: %s", got)
	}
}

// A server learns of the client's tasks that it asked for, and of no other.
func TestTasksOfClients(t *testing.T) {
	r := newRegistry(t, Config{}, Server{Name: "a", Start: sdkStart, Required: true}, Server{Name: "b", Start: sdkStart, Required: true})
	s := r.openAggregate(nil, func(relay.Message, []byte) {})
	defer s.Close(context.Background())
	ea, eb := r.entry("a"), r.entry("b")
	raw := []byte(`{"jsonrpc":"2.0","id":1,"result":{"task":{"taskId":"mine","status":"working"}}}`)
	m, err := relay.Peek(raw)
	if err != nil {
		t.Fatal(err)
	}
	s.begun(ea, raw, m.Result)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, tt := range []struct {
		e      *entry
		params string
		want   bool
	}{
		{ea, `{"taskId":"mine"}`, true},
		{eb, `{"taskId":"mine"}`, false},
		{ea, `{"taskId":"other"}`, false},
		{ea, `{"taskId":"mine","taskId":"other"}`, false},
		{ea, `{}`, false},
		{ea, ``, false},
	} {
		if got := s.asksOwn(tt.e, []byte(tt.params)); got != tt.want {
			t.Errorf("%s asks for %s: %v", tt.e.slug, tt.params, got)
		}
	}
}
