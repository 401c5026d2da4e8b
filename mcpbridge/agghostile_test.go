package mcpbridge

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/mcpbridge/internal/fake"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/sandbox"
)

// listing is a server that declares everything and answers lists with what it
// is given.
func listing(lists map[string]string, handle func(*fake.Request) (json.RawMessage, *fake.Error)) *fake.Server {
	return &fake.Server{
		Tools: `[{"name":"a","inputSchema":{"type":"object"}}]`, Concurrent: true,
		Capabilities: `{"tools":{},"resources":{"subscribe":true},"prompts":{},"logging":{},"completions":{}}`,
		Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
			if l, ok := lists[r.Method]; ok {
				if l == "" {
					return nil, nil // never answers
				}
				return json.RawMessage(l), nil
			}
			if handle != nil {
				return handle(r)
			}
			return json.RawMessage(`{}`), nil
		},
	}
}

func TestHostileLists(t *testing.T) {
	bad, _ := starts(func() *fake.Server {
		return listing(map[string]string{
			"prompts/list":             `{"prompts":[{"name":"ok","x":1.50},{"name":"b ad"},{"name":"p\u0430y"},{"name":"ok"},{"name":7},{"noname":1},7,null,{"name":"c","name":"d"},{"name":""}]}`,
			"resources/list":           `{"resources":[{"uri":"a\"\u202e","n":9007199254740993},{"uri":7},{},{"uri":"x","uri":"y"},{"uri":"mcp-good+test://stolen"},{"uri":""}]}`,
			"resources/templates/list": `{"resourceTemplates":"none"}`,
		}, nil)
	})
	good, _ := starts(func() *fake.Server {
		return listing(map[string]string{
			"prompts/list": `{"prompts":[{"name":"ok"}]}`, "resources/list": `{"resources":[{"uri":"test://a"}]}`,
			"resources/templates/list": `{"resourceTemplates":[]}`,
		}, nil)
	})
	r := newRegistry(t, Config{}, Server{Name: "bad", Start: bad, Required: true}, Server{Name: "good", Start: good, Required: true})
	s := r.openAggregate(nil, func(relay.Message, []byte) {})
	defer s.Close(context.Background())
	got := map[string][]string{}
	for _, method := range []string{"prompts/list", "resources/list", "resources/templates/list"} {
		for _, item := range s.collect(t.Context(), kindOf(method)) {
			if !json.Valid(item) {
				t.Errorf("%s is no JSON", item)
			}
			got[method] = append(got[method], string(item))
		}
	}
	want := map[string][]string{
		"prompts/list":   {`{"name":"mcp_bad_ok","x":1.50}`, `{"name":"mcp_good_ok"}`},
		"resources/list": {`{"uri":"mcp-bad+a\"\u202e","n":9007199254740993}`, `{"uri":"mcp-bad+mcp-good+test://stolen"}`, `{"uri":"mcp-good+test://a"}`},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if e, own := s.resourceOf("mcp-bad+mcp-good+test://stolen"); e == nil || e.slug != "bad" || own != "mcp-good+test://stolen" {
		t.Errorf("a server's URI leads to another: %v %s", e, own)
	}
}

// One server that never answers, or floods, does not keep the others' features
// from a client.
func TestNeighboursOfAFlood(t *testing.T) {
	const n = 3000
	big := strings.Repeat("x", 100<<10)
	flood, _ := starts(func() *fake.Server {
		return listing(nil, func(r *fake.Request) (json.RawMessage, *fake.Error) {
			if r.Method != "tools/call" {
				return nil, nil
			}
			for i := range n {
				r.Write(`{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}`)
				r.Write(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"test://nobody"}}`)
				r.Write(fmt.Sprintf(`{"jsonrpc":"2.0","id":"r%d","method":"elicitation/create","params":{"message":"?"}}`, i))
				if i%10 == 0 {
					r.Write(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"` + big + `"}}`)
				}
			}
			return json.RawMessage(`{"content":[]}`), nil
		})
	})
	good, _ := starts(echoServer)
	r := newRegistry(t, Config{}, Server{Name: "flood", Start: flood, Required: true}, Server{Name: "good", Start: good, Required: true})
	var mu sync.Mutex
	seen := map[string]int{}
	block := make(chan struct{})
	s := r.openAggregate(nil, func(m relay.Message, _ []byte) {
		if m.Kind != relay.Response {
			<-block // a client that does not read
		}
		mu.Lock()
		seen[m.Method]++
		mu.Unlock()
	})
	s.initialize([]byte(`{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}}}`))
	line := s.callTool(t.Context(), []byte(`1`), []byte(`{"name":"mcp_flood_a","arguments":{}}`))
	if m, err := relay.Peek(line); err != nil || m.Error.End != 0 {
		t.Errorf("the flooding call: %s", line)
	}
	s.mu.Lock()
	asks, held := len(s.asks), s.queue.size.Load()
	s.mu.Unlock()
	if asks > maxAsks || held > outboxBytes {
		t.Errorf("%d asks and %d bytes are held", asks, held)
	}
	line = s.callTool(t.Context(), []byte(`2`), []byte(`{"name":"mcp_good_echo","arguments":{"text":"hi"}}`))
	if !strings.Contains(string(line), "hi") {
		t.Errorf("the neighbour: %s", line)
	}
	close(block)
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if seen["notifications/resources/list_changed"] > 5 || seen["notifications/resources/updated"] > 0 {
		t.Errorf("the client was sent %v", seen)
	}
}

func TestSilentServerDelaysNoList(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the bound of ten seconds")
	}
	silent, _ := starts(func() *fake.Server { return listing(map[string]string{"prompts/list": ""}, nil) })
	r := newRegistry(t, Config{}, Server{Name: "silent", Start: silent, Required: true}, Server{Name: "good", Start: sdkStart, Required: true})
	cs := connect(t, serve(t, r).URL+"/mcp", nil)
	began := time.Now()
	list, err := cs.ListPrompts(t.Context(), nil)
	if err != nil || len(list.Prompts) != 1 || time.Since(began) > 2*listTimeout {
		t.Errorf("%+v, %v after %v", list, err, time.Since(began))
	}
}

// Answers of a client go to the server that asked, and only once.
func TestAnswersToNothing(t *testing.T) {
	r := newRegistry(t, Config{}, Server{Name: "x", Start: sdkStart, Required: true})
	s := r.openAggregate(nil, func(relay.Message, []byte) {})
	defer s.Close(context.Background())
	for _, raw := range []string{
		`{"jsonrpc":"2.0","id":"x-1","result":{}}`, `{"jsonrpc":"2.0","id":null,"result":{}}`, `{"jsonrpc":"2.0","id":1,"error":{}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[]}}`, `{"jsonrpc":"2.0","method":"notifications/cancelled"}`,
		`{"jsonrpc":"2.0","method":"notifications/roots/list_changed","params":7}`,
	} {
		m, err := relay.Peek([]byte(raw))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Receive(t.Context(), m, []byte(raw)); err != nil {
			t.Errorf("%s: %v", raw, err)
		}
	}
	for _, params := range []string{``, `{}`, `7`, `{"ref":{}}`, `{"ref":{"type":"ref/prompt"}}`, `{"ref":{"type":"x","name":"y"}}`, `{"ref":{"type":"ref/resource","uri":"test://a"}}`} {
		if m, err := relay.Peek(s.complete(t.Context(), []byte(`1`), []byte(params))); err != nil || m.Error.End == 0 {
			t.Errorf("completion of %s was taken", params)
		}
	}
}

// A link in a result is prefixed, and nothing that only looks like one.
func TestPrefixResult(t *testing.T) {
	for in, want := range map[string]string{
		`{"content":[{"type":"resource_link","uri":"a:b"}]}`:                        `{"content":[{"type":"resource_link","uri":"mcp-x+a:b"}]}`,
		`{"content":[{"type":"text","uri":"a:b","text":"\"uri\""}]}`:                `{"content":[{"type":"text","uri":"a:b","text":"\"uri\""}]}`,
		`{"content":[{"uri":"a","uri":"b","type":"resource_link"}]}`:                `{"content":[{"uri":"a","uri":"b","type":"resource_link"}]}`,
		`{"content":[7,{"type":"resource","resource":{"uri":"a"},"n":1.0}],"z":[]}`: `{"content":[7,{"type":"resource","resource":{"uri":"mcp-x+a"},"n":1.0}],"z":[]}`,
		`{"content":[{"type":"resource","resource":{"uri":7}}]}`:                    `{"content":[{"type":"resource","resource":{"uri":7}}]}`,
		`{"content":{"uri":"a"}}`:                                                   `{"content":{"uri":"a"}}`,
	} {
		if got := string(prefixResult("x", "tools/call", []byte(in))); got != want {
			t.Errorf("%s became %s", in, got)
		}
	}
}

// A session that ends while its own sandbox starts leaves nothing behind.
func TestSessionEndsDuringItsStart(t *testing.T) {
	began := make(chan struct{}, 1)
	r := newRegistry(t, Config{}, Server{Name: "x", Sharing: SharingSession, Start: func(ctx context.Context) (sandbox.Sandbox, error) {
		select {
		case began <- struct{}{}:
			return fake.Start(echoServer().Guest), nil // the shared one
		default:
		}
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}, Required: true})
	s := r.openAggregate(nil, func(relay.Message, []byte) {})
	raw := []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mcp_x_echo","arguments":{"text":"x"}}}`)
	m, err := relay.Peek(raw)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Receive(t.Context(), m, raw); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	e := r.entry("x")
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.children != 0 {
		t.Errorf("%d sandboxes are left", e.children)
	}
}

func TestTaskMemberIsTakenOut(t *testing.T) {
	got := make(chan string, 1)
	start, _ := starts(func() *fake.Server {
		return &fake.Server{Tools: echoTools, Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
			if r.Method == "tools/call" {
				got <- string(r.Params)
			}
			return echoHandle(r)
		}}
	})
	r := newRegistry(t, Config{}, Server{Name: "x", Start: start, Required: true})
	s := r.openAggregate(nil, func(relay.Message, []byte) {})
	defer s.Close(context.Background())
	s.callTool(t.Context(), []byte(`1`), []byte(`{"task":{"ttl":1},"name":"mcp_x_echo","arguments":{"text":"x","n":1e0}}`))
	if p := receive(t, "the call", got); p != `{"name":"echo","arguments":{"text":"x","n":1e0}}` {
		t.Errorf("the server got %s", p)
	}
}
