package mcpbridge

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/internal/fake"
)

// hostile answers a call named after its trick.
func hostile(r *fake.Request) (json.RawMessage, *fake.Error) {
	_, args := r.Tool()
	var a struct{ Text string }
	_ = json.Unmarshal(args, &a)
	id := string(r.ID)
	result := func(s string) { r.Write(`{"jsonrpc":"2.0","id":` + id + `,"result":` + s + `}`) }
	switch a.Text {
	case "stray":
		for range 1000 {
			r.Write("log line that is no JSON")
			r.Write(`{"level":"info","msg":"JSON, but no JSON-RPC"}`)
		}
	case "null id":
		r.Write(`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error"}}`)
	case "wrong ids":
		for _, w := range []string{`99999`, `"` + id + `"`, `-1`, `1.5`, `{}`, `[]`, `"x"`, `12345678901234567890`} {
			r.Write(`{"jsonrpc":"2.0","id":` + w + `,"result":{"content":[{"type":"text","text":"stolen"}]}}`)
		}
	case "twice":
		result(`{"content":[{"type":"text","text":"first"}]}`)
		result(`{"content":[{"type":"text","text":"second"}]}`)
		return nil, nil
	case "duplicate members":
		r.Write(`{"jsonrpc":"2.0","id":` + id + `,"result":{"content":[]},"result":{"content":[{"type":"text","text":"other"}]}}`)
		return nil, nil
	case "duplicate content":
		result(`{"content":[],"content":[{"type":"text","text":"other"}]}`)
		return nil, nil
	case "both":
		r.Write(`{"jsonrpc":"2.0","id":` + id + `,"result":{"content":[]},"error":{"code":1,"message":"x"}}`)
		return nil, nil
	case "deep":
		result(strings.Repeat(`{"a":[`, 200_000) + strings.Repeat(`]}`, 200_000))
		return nil, nil
	case "no object":
		result(`[1,2]`)
		return nil, nil
	case "no list":
		result(`{"content":"text"}`)
		return nil, nil
	case "huge":
		result(`{"content":[{"type":"text","text":"` + strings.Repeat("x", 17<<20) + `"}]}`)
		return nil, nil
	case "15 MiB":
		result(`{"content":[{"type":"text","text":"` + strings.Repeat("x", 15<<20) + `"}]}`)
		return nil, nil
	case "utf-8":
		result("{\"content\":[{\"type\":\"text\",\"text\":\"a\xff\xfe\xc3(b\"}]}")
		return nil, nil
	case "notifications":
		for i := range 5000 {
			r.Write(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":%d}}`, i))
			r.Write(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":1}}`)
			r.Write(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		}
	case "asks":
		for i := range 5000 {
			r.Write(fmt.Sprintf(`{"jsonrpc":"2.0","id":"q%d","method":"ping"}`, i))
			r.Write(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"sampling/createMessage","params":{}}`, i))
		}
	case "drip":
		for _, c := range `{"jsonrpc":"2.0","id":` + id + `,"result":{"content":[]}}` + "\n" {
			r.Drip(byte(c))
			time.Sleep(time.Millisecond)
		}
		return nil, nil
	case "error object":
		r.Write(`{"jsonrpc":"2.0","id":` + id + `,"error":["no","object"]}`)
		return nil, nil
	}
	return echoHandle(r)
}

func TestHostileServer(t *testing.T) {
	start, _ := starts(func() *fake.Server { return &fake.Server{Tools: echoTools, Handle: hostile} })
	good, _ := starts(echoServer)
	r := newRegistry(t, Config{},
		Server{Name: "bad", Start: start, Required: true, CallTimeout: 20 * time.Second}, Server{Name: "good", Start: good, Required: true})
	for _, tt := range []struct {
		trick string
		code  Code // empty: the call succeeds
		want  string
	}{
		{"stray", "", `stray`},
		{"null id", "", `null id`},
		{"wrong ids", "", `wrong ids`},
		{"twice", "", `first`},
		{"duplicate members", CodeBadResult, "twice"},
		{"duplicate content", CodeBadResult, "twice"},
		{"both", CodeBadResult, "both"},
		{"deep", CodeBadResult, "levels"},
		{"no object", CodeBadResult, "no JSON object"},
		{"no list", CodeBadResult, "no list"},
		{"huge", CodeBadResult, "limit"},
		{"15 MiB", "", "xxx"},
		{"utf-8", "", "\uFFFD"},
		{"notifications", "", "notifications"},
		{"asks", "", "asks"},
		{"drip", "", "[]"},
		{"error object", CodeServerError, "malformed"},
	} {
		t.Run(tt.trick, func(t *testing.T) {
			args := json.RawMessage(fmt.Sprintf(`{"text":%q}`, tt.trick))
			res, err := r.Call(t.Context(), "bad", "echo", args)
			switch {
			case tt.code == "" && err != nil:
				t.Error(err)
			case tt.code == "" && !strings.Contains(string(res.Content), tt.want):
				t.Errorf("got %.200s", res.Content)
			case tt.code != "" && (err == nil || asError(err).Code != tt.code || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("%v, want %s with %q", err, tt.code, tt.want)
			}
			if tt.code == "" && !json.Valid(res.Content) {
				t.Error("content is no JSON")
			}
			// Neither the session nor a neighbour is harmed.
			for _, name := range []string{"bad", "good"} {
				if _, err := r.Call(t.Context(), name, "echo", json.RawMessage(`{"text":"fine"}`)); err != nil {
					t.Errorf("%s afterwards: %v", name, err)
				}
			}
		})
	}
	for _, s := range r.Status() {
		if s.Name == "bad" && (s.Starts != 1 || s.Strays != 2000 || s.Orphans < 9) {
			t.Errorf("status %+v", s)
		}
	}
}

func TestHostileListOf10000(t *testing.T) {
	var list strings.Builder
	list.WriteString("[")
	for i := range 10_000 {
		fmt.Fprintf(&list, `{"name":"t%d","inputSchema":{"type":"object","properties":{"a":{"type":"string"}}}},`, i)
	}
	list.WriteString(`{}]`)
	start, _ := starts(func() *fake.Server { return &fake.Server{Tools: list.String(), Handle: echoHandle} })
	r := newRegistry(t, Config{}, Server{Name: "x", Start: start, Required: true})
	st := r.Status()[0]
	if st.Tools != 2048 || !strings.Contains(fmt.Sprint(st.LeftOut), "more tools than the limit of 2048") {
		t.Errorf("%d tools, left out %v", st.Tools, st.LeftOut)
	}
}

func TestHostileNames(t *testing.T) {
	var defs []string
	for _, n := range []string{`ok`, `ok`, `a\u0000b`, `a\nb`, `\u202eevil`, `\u0435cho`, ``, `a b`, `<script>`, strings.Repeat("x", 129), `../../etc`, `A.b-c_d/e`} {
		defs = append(defs, `{"name":"`+n+`","inputSchema":{"type":"object"}}`)
	}
	defs = append(defs, `{"name":7,"inputSchema":{"type":"object"}}`, `7`, `{"name":"noschema"}`, `{"name":"two","name":"ok2","inputSchema":{"type":"object"}}`,
		`{"name":"string","inputSchema":{"type":"string"}}`, `{"name":"badout","inputSchema":{"type":"object"},"outputSchema":{"$ref":"http://x/"}}`,
		`{"name":"rootless","inputSchema":{"properties":{}}}`, `{"name":"empty","inputSchema":{ }}`)
	start, _ := starts(func() *fake.Server {
		return &fake.Server{Tools: "[" + strings.Join(defs, ",") + "]", Handle: echoHandle}
	})
	r := newRegistry(t, Config{}, Server{Name: "x", Start: start, Required: true})
	var keys []string
	for _, a := range r.Connectors()[0].Descriptor().Actions {
		keys = append(keys, a.Key)
		if !strings.HasPrefix(string(a.InputSchema), `{"type":"object"`) || !json.Valid(a.InputSchema) {
			t.Errorf("%s is shown with the schema %s", a.Key, a.InputSchema)
		}
	}
	if got := strings.Join(keys, " "); got != "ok ../../etc A.b-c_d/e rootless empty" {
		t.Errorf("admitted %s", got)
	}
	if n := len(r.Status()[0].LeftOut); n != 15 {
		t.Errorf("%d reports: %v", n, r.Status()[0].LeftOut)
	}
	for _, def := range r.table().list {
		if !json.Valid(def) {
			t.Errorf("the aggregated definition is no JSON: %s", def)
		}
	}
}

func TestAggregateCollisionsFailClosed(t *testing.T) {
	tool := func(name string) func() *fake.Server {
		return func() *fake.Server {
			return &fake.Server{Tools: `[{"name":"` + name + `","inputSchema":{"type":"object"}}]`, Handle: echoHandle}
		}
	}
	a, _ := starts(tool("b_c"))
	ab, _ := starts(tool("c"))
	long := strings.Repeat("l", 60)
	lg, _ := starts(tool(long))
	r := newRegistry(t, Config{}, Server{Name: "a", Start: a, Required: true}, Server{Name: "a-b", Start: ab, Required: true}, Server{Name: "long", Start: lg, Required: true})
	tab := r.table()
	if at, ok := tab.tools["mcp_a_b_c"]; !ok || at.e.slug != "a_b" {
		t.Errorf("mcp_a_b_c is %+v", at)
	}
	if got := fmt.Sprint(r.Status()[0].LeftOut); !strings.Contains(got, "belongs to a server with a longer name") {
		t.Errorf("not reported: %s", got)
	}
	name := AggregateName("long", long)
	if len(name) != 64 || name != AggregateName("long", long) || tab.tools[name].t == nil || name == AggregateName("long", long+"l") {
		t.Errorf("shortened to %s", name)
	}
	if err := r.Add(t.Context(), Server{Name: "A.B", Start: a}); err == nil || !strings.Contains(err.Error(), "rename one") {
		t.Errorf("the same slug twice: %v", err)
	}
}

// A server that writes one line for ever loses its session, not our memory.
func TestHostileEndlessLine(t *testing.T) {
	srv := func() *fake.Server {
		return &fake.Server{Tools: echoTools, Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
			if r.Method == "tools/call" {
				chunk := []byte(strings.Repeat("x", 64<<10))
				for range 64 << 20 / len(chunk) {
					r.Drip(chunk...)
				}
			}
			return nil, nil
		}}
	}
	start, _ := starts(srv)
	r := newRegistry(t, Config{}, Server{Name: "x", Start: start, Required: true, Limits: Limits{Line: 512 << 10}})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := r.Call(t.Context(), "x", "echo", json.RawMessage(`{"text":"a"}`))
	if asError(err).Code != CodeServerDown {
		t.Errorf("got %v", err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 16<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	waitStatus(t, r, "x", func(s Status) bool { return s.Starts == 2 && s.State == StateReady })
}

func TestHostileCursors(t *testing.T) {
	for name, page := range map[string]string{
		"the same":     `{"tools":[],"nextCursor":"c"}`,
		"no tools":     `{}`,
		"tools object": `{"tools":{}}`,
	} {
		start, _ := starts(func() *fake.Server {
			return &fake.Server{Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) { return json.RawMessage(page), nil }}
		})
		r := newRegistry(t, Config{})
		if err := r.Add(t.Context(), Server{Name: "x", Start: start, Required: true}); err == nil || !strings.Contains(err.Error(), "broke the protocol") {
			t.Errorf("%s: %v", name, err)
		}
	}
	n := 0
	start, _ := starts(func() *fake.Server {
		return &fake.Server{Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
			n++
			return json.RawMessage(fmt.Sprintf(`{"tools":[{"name":"t%d","inputSchema":{"type":"object"}}],"nextCursor":"c%d"}`, n, n)), nil
		}}
	})
	r := newRegistry(t, Config{})
	if err := r.Add(t.Context(), Server{Name: "x", Start: start, Required: true}); err == nil || !strings.Contains(err.Error(), "pages") {
		t.Errorf("pages without end: %v", err)
	}
}

func TestHostileVersions(t *testing.T) {
	for v, ok := range map[string]bool{"2024-11-05": true, "2025-03-26": true, "2025-06-18": true, "2025-11-25": true, "2019-01-01": false, "": true} {
		start, _ := starts(func() *fake.Server { return &fake.Server{Version: v, Tools: echoTools, Handle: echoHandle} })
		r := newRegistry(t, Config{})
		err := r.Add(t.Context(), Server{Name: "x", Start: start, Required: true})
		if (err == nil) != ok {
			t.Errorf("version %q: %v", v, err)
		}
	}
}

func TestOutputSchema(t *testing.T) {
	answers := map[string]string{
		"good":    `{"content":[],"structuredContent":{"n":1}}`,
		"wrong":   `{"content":[],"structuredContent":{"n":"x"}}`,
		"missing": `{"content":[]}`,
		"failed":  `{"content":[{"type":"text","text":"sorry"}],"isError":true}`,
	}
	start, _ := starts(func() *fake.Server {
		return &fake.Server{
			Tools: `[{"name":"t","inputSchema":{"type":"object"},"outputSchema":{"type":"object","properties":{"n":{"type":"integer"}}}}]`,
			Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
				_, args := r.Tool()
				var a struct{ Want string }
				_ = json.Unmarshal(args, &a)
				return json.RawMessage(answers[a.Want]), nil
			},
		}
	})
	r := newRegistry(t, Config{}, Server{Name: "x", Start: start, Required: true})
	for want, code := range map[string]Code{"good": "", "wrong": CodeBadResult, "missing": CodeBadResult, "failed": CodeToolError} {
		res, err := r.Call(t.Context(), "x", "t", json.RawMessage(fmt.Sprintf(`{"want":%q}`, want)))
		var got Code
		if err != nil {
			got = asError(err).Code
		} else if res.Error != nil {
			got = res.Error.Code
		}
		if got != code {
			t.Errorf("%s: %s (%v)", want, got, err)
		}
		if want == "wrong" && !strings.Contains(err.Error(), "/n") {
			t.Errorf("the path is missing: %v", err)
		}
	}
}

func TestConcurrentCallsUnderChurn(t *testing.T) {
	start, last := starts(func() *fake.Server { return &fake.Server{Tools: echoTools, Handle: echoHandle, Concurrent: true} })
	r := newRegistry(t, Config{}, Server{Name: "x", Start: start, Required: true})
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := range 50 {
				text := fmt.Sprintf("%d-%d", w, i)
				res, err := r.Call(t.Context(), "x", "echo", json.RawMessage(fmt.Sprintf(`{"text":%q}`, text)))
				if err != nil {
					if c := asError(err).Code; c != CodeServerDown {
						t.Errorf("%v", err)
					}
				} else if !strings.Contains(string(res.Content), text) {
					t.Errorf("%s got another's answer: %s", text, res.Content)
				}
				if w == 0 && i%10 == 5 {
					last.Load().Kill()
				}
			}
		})
	}
	wg.Wait()
}

func TestServerOutputGoesToItsLog(t *testing.T) {
	var mu sync.Mutex
	var got []string
	cfg := Config{ServerLog: func(server, stream string, line []byte) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, server+" "+stream+" "+string(line))
	}}
	start, _ := starts(func() *fake.Server {
		return &fake.Server{Init: []string{"banner"}, Tools: echoTools, Handle: echoHandle}
	})
	newRegistry(t, cfg, Server{Name: "x", Start: start, Required: true})
	mu.Lock()
	defer mu.Unlock()
	if len(got) != 1 || got[0] != "x stdout banner" {
		t.Errorf("%q", got)
	}
}
