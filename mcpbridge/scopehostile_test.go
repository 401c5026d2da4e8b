package mcpbridge

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/mcpbridge/internal/fake"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
)

// carelessServer reads its messages as a program in Go does, whose parser takes
// the last of members that differ in case alone.
func carelessServer(called chan<- string) *fake.Server {
	return &fake.Server{Tools: twoTools, Concurrent: true, Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
		var m struct {
			Method string
			Params struct{ Name string }
		}
		if json.Unmarshal(r.Raw, &m) == nil && m.Method == "tools/call" {
			called <- m.Params.Name
		}
		return json.RawMessage(`{"content":[]}`), nil
	}}
}

// A tool that a client may call does not lead to one that it may not, by a name
// that the server reads in another way than the bridge.
func TestNamesInOtherCase(t *testing.T) {
	called := make(chan string, 64)
	start, _ := starts(func() *fake.Server { return carelessServer(called) })
	scope := &Scope{Name: "c", Servers: []string{"*"}, Tools: []string{"read_*"}}
	r := newRegistry(t, Config{Authorize: func(*http.Request) (*Scope, error) { return scope, nil }},
		Server{Name: "own", Start: start, Required: true}, Server{Name: "shared", Start: start, Required: true, Sharing: SharingTenant})
	url := serve(t, r).URL
	for path, name := range map[string]string{"/mcp": "mcp_own_read_a", "/mcp/own": "read_a", "/mcp/shared": "read_a"} {
		id := open(t, url+path)
		for _, msg := range []string{
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"NAME","arguments":{}}}`,
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"NAME","Name":"write_a","arguments":{}}}`,
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"NAME","arguments":{}},"Params":{"name":"write_a"}}`,
			`{"jsonrpc":"2.0","id":1,"method":"ping","METHOD":"tools/call","params":{"name":"write_a"}}`,
			`{"jsonrpc":"2.0","id":1,"result":{},"method":"ping","\u004dethod":"tools/call","params":{"name":"write_a"}}`,
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"write_a"}}`,
		} {
			_, body, _ := do(t, "POST", url+path, strings.ReplaceAll(msg, "NAME", name), "Mcp-Session-Id", id)
			if strings.Contains(body, `"result"`) != strings.HasSuffix(msg, `"NAME","arguments":{}}}`) {
				t.Errorf("%s %s: %s", path, msg, body)
			}
		}
	}
	close(called)
	for name := range called {
		if name != "read_a" {
			t.Errorf("the server ran %s", name)
		}
	}
}

// TestListsUnderUsedIDs has a client that may see one tool ask for the list
// under the id of a request that it left, and a server that answers with two
// lists in one.
func TestListsUnderUsedIDs(t *testing.T) {
	scope := &Scope{Name: "c", Servers: []string{"*"}, Tools: []string{"read_*"}}
	f := (&entry{srv: Server{}, slug: "x"}).newFilter(scope)
	peek := func(s string) (relay.Message, []byte) {
		m, err := relay.Peek([]byte(s))
		if err != nil {
			t.Fatal(err)
		}
		return m, []byte(s)
	}
	list := `{"jsonrpc":"2.0","id":1,"result":{"tools":` + twoTools + `}}`
	f.fromClient(peek(`{"jsonrpc":"2.0","id":1,"method":"slow"}`))
	f.fromClient(peek(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
	if _, out := f.fromServer(peek(`{"jsonrpc":"2.0","id":1,"result":{"text":"of slow"}}`)); !strings.Contains(string(out), "of slow") {
		t.Errorf("another answer became %s", out)
	}
	for range 2 {
		if _, out := f.fromServer(peek(list)); strings.Contains(string(out), "write_a") || !strings.Contains(string(out), "read_a") {
			t.Errorf("the client sees %s", out)
		}
	}
	for _, two := range []string{`{"tools":[],"tools":`, `{"tools":[],"Tools":`} {
		if _, out := f.fromServer(peek(strings.Replace(list, `{"tools":`, two, 1))); strings.Contains(string(out), "write_a") || !strings.Contains(string(out), `"error"`) {
			t.Errorf("of two lists the client sees %s", out)
		}
	}
	for i := range 2 * maxListIDs {
		f.fromClient(peek(fmt.Sprintf(`{"jsonrpc":"2.0","id":"x%d","method":"tools/list"}`, i)))
	}
	if len(f.list) > maxListIDs {
		t.Errorf("%d ids are kept", len(f.list))
	}
	if _, out := f.fromServer(peek(strings.Replace(list, `"id":1`, `"id":"x2000"`, 1))); strings.Contains(string(out), "write_a") {
		t.Errorf("after many lists the client sees %s", out)
	}
}

// TestTasksOfASharedSandbox has two clients at a server's own endpoint who share
// its sandbox.
func TestTasksOfASharedSandbox(t *testing.T) {
	n := 0
	start, _ := starts(func() *fake.Server {
		return &fake.Server{Tools: twoTools, Capabilities: `{"tools":{},"tasks":{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}}`, Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
			switch r.Method {
			case "tools/call":
				n++
				return json.RawMessage(fmt.Sprintf(`{"task":{"taskId":"t%d","status":"working","createdAt":"x","ttl":null}}`, n)), nil
			case "tasks/list":
				return json.RawMessage(`{"tasks":[{"taskId":"t1","status":"working"},{"taskId":"t2","status":"working"},{"TaskId":"t1","taskId":"t2"}],"nextCursor":"c"}`), nil
			}
			return json.RawMessage(`{"taskId":"t1","secret":1}`), nil
		}}
	})
	scope := map[string]*Scope{"a": {Name: "a", Servers: []string{"*"}}, "b": {Name: "b", Servers: []string{"*"}}}
	r := newRegistry(t, Config{Authorize: func(req *http.Request) (*Scope, error) {
		return scope[strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer ")], nil
	}}, Server{Name: "x", Start: start, Required: true, Sharing: SharingTenant})
	url := serve(t, r).URL + "/mcp/x"
	say := func(who, session, method, params string) string {
		_, body, h := do(t, "POST", url, `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+`}`, "Authorization", "Bearer "+who, "Mcp-Session-Id", session, "Accept", "application/json")
		if method == "initialize" {
			return h.Get("Mcp-Session-Id")
		}
		return body
	}
	session := map[string]string{}
	for _, who := range []string{"a", "b"} {
		session[who] = say(who, "", "initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`)
		say(who, session[who], "tools/call", `{"name":"read_a","arguments":{},"task":{}}`)
	}
	got := []string{}
	for _, who := range []string{"a", "b"} {
		got = append(got, say(who, session[who], "tasks/list", `{}`))
		for _, method := range []string{"tasks/get", "tasks/result", "tasks/cancel"} {
			for _, params := range []string{`{"taskId":"t1"}`, `{"taskId":"t2","TaskId":"t1"}`} {
				body := say(who, session[who], method, params)
				if may := who == "a" && !strings.Contains(params, "t2"); strings.Contains(body, "secret") != may {
					t.Errorf("%s of %s by %s: %s", method, params, who, body)
				}
			}
		}
	}
	want := []string{
		`{"jsonrpc":"2.0","id":1,"result":{"tasks":[{"taskId":"t1","status":"working"}],"nextCursor":"c"}}`,
		`{"jsonrpc":"2.0","id":1,"result":{"tasks":[{"taskId":"t2","status":"working"}],"nextCursor":"c"}}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestClientsTakeTurns has one client fill a server's queue from as many
// sessions as it likes, at every endpoint: another's call waits for one of them.
func TestClientsTakeTurns(t *testing.T) {
	g := &gate{came: make(chan string, 64), let: make(chan struct{})}
	start, _ := starts(g.server)
	r := newRegistry(t, Config{Authorize: func(req *http.Request) (*Scope, error) {
		return &Scope{Name: req.Header.Get("X-Client"), Servers: []string{"*"}}, nil
	}}, Server{Name: "x", Start: start, Required: true, Sharing: SharingTenant, Limits: Limits{InFlight: 1, Queue: 32}})
	url, e := serve(t, r).URL, r.entry("x")
	var wg sync.WaitGroup
	call := func(who, path string) {
		header := []string{"X-Client", who}
		body := `{"text":"` + who + `"}`
		if strings.HasPrefix(path, "/mcp") {
			_, _, h := do(t, "POST", url+path, initLine, header...)
			header = append(header, "Mcp-Session-Id", h.Get("Mcp-Session-Id"))
			name := "echo"
			if path == "/mcp" {
				name = "mcp_x_echo"
			}
			body = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + name + `","arguments":` + body + `}}`
		}
		wg.Go(func() {
			if status, body, _ := do(t, "POST", url+path, body, header...); status != 200 {
				t.Errorf("%s at %s: %d %s", who, path, status, body)
			}
		})
	}
	waiting := func(n int) {
		for e.places.Waiting() < n {
			// Entering the queue tells nobody.
			if t.Context().Err() != nil {
				t.Fatal("nobody waits")
			}
		}
	}
	const connector = "/api/v1/automation/connectors/x/actions/echo"
	call("greedy", connector)
	order := []string{<-g.came}
	paths := []string{"/mcp", "/mcp/x", connector}
	for i := range 9 {
		call("greedy", paths[i%3])
		waiting(i + 1)
	}
	for i, path := range paths {
		call("modest", path)
		waiting(10 + i)
	}
	for range 12 {
		g.let <- struct{}{}
		order = append(order, <-g.came)
	}
	close(g.let)
	wg.Wait()
	if n := strings.Count(strings.Join(order[:7], " "), "modest"); n != 3 {
		t.Errorf("served in the order %v", order)
	}
}

// TestLogsOfOthersCalls has two clients share a sandbox that logs what it is
// asked: each hears of its own calls, at both endpoints.
func TestLogsOfOthersCalls(t *testing.T) {
	start, _ := starts(func() *fake.Server {
		return &fake.Server{Tools: twoTools, Capabilities: `{"tools":{},"logging":{}}`, Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
			_, args := r.Tool()
			r.Write(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":%s}}`, args))
			return json.RawMessage(`{"content":[]}`), nil
		}}
	})
	r := newRegistry(t, Config{}, Server{Name: "x", Start: start, Required: true, Sharing: SharingTenant})
	e := r.entry("x")
	heard := map[string]chan string{}
	for _, who := range []string{"a", "b"} {
		scope := &Scope{Name: who, Servers: []string{"*"}}
		for _, kind := range []string{"aggregated ", "own "} {
			ch := make(chan string, 16)
			heard[kind+who] = ch
			emit := func(m relay.Message, raw []byte) {
				if m.Method == "notifications/message" {
					ch <- string(raw)
				}
			}
			if kind == "own " {
				s, err := e.openShared(t.Context(), e.newFilter(scope), emit)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close(context.Background())
				continue
			}
			s := r.openAggregate(scope, emit)
			defer s.Close(context.Background())
		}
	}
	for _, who := range []string{"a", "b", "a"} {
		ctx := WithCaller(t.Context(), (&Scope{Name: who}).name())
		if _, err := r.Call(ctx, "x", "read_a", json.RawMessage(`{"by":"`+who+`"}`)); err != nil {
			t.Fatal(err)
		}
	}
	for name, ch := range heard {
		who := name[len(name)-1:]
		for range map[string]int{"a": 2, "b": 1}[who] {
			if got := receive(t, name, ch); !strings.Contains(got, `"by":"`+who) {
				t.Errorf("%s heard %s", name, got)
			}
		}
	}
	var f flight
	defer f.enter(nil, "client a", "", true)()
	leave := f.enter(nil, "client b", "", true)
	if f.mayHear(&Scope{Name: "a"}) || !f.mayHear(nil) {
		t.Error("a log between two clients' calls goes to one of them, or not to who sees everything")
	}
	if leave(); !f.mayHear(&Scope{Name: "a"}) || f.mayHear(&Scope{Name: "b"}) {
		t.Error("a log is not given to the one client that calls")
	}
	st := (&Scope{Name: "a", Servers: []string{"*"}}).status(Status{Stderr: "about another"})
	ev, seen := (&Scope{Name: "a", Servers: []string{"*"}}).event(Event{Type: EventDown, Server: "x", Stderr: "about another"})
	if st.Stderr != "" || ev.Stderr != "" || !seen {
		t.Errorf("%+v %+v", st, ev)
	}
}
