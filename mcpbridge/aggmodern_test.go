package mcpbridge

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandboxd/sandboxd/mcpbridge/client"
	"github.com/sandboxd/sandboxd/mcpbridge/internal/fake"
)

// ask posts one request of the revision 2026-07-28 to the aggregated endpoint.
func modernPost(t testing.TB, url, method, name, params string, caps string, header ...string) (int, string) {
	t.Helper()
	meta := fmt.Sprintf(`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":%s}`, caps)
	if params != "" {
		meta = params + "," + meta
	}
	msg := fmt.Sprintf(`{"jsonrpc":"2.0","id":"q","method":%q,"params":{%s}}`, method, meta)
	status, body, _ := do(t, "POST", url, msg, append([]string{"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", method, "Mcp-Name", name}, header...)...)
	return status, body
}

// onlyModern is a server without the older era, whose tool asks its client.
func onlyModern() *fake.Server {
	s := modernServer()
	s.NoInitialize = true
	plain := s.Handle
	s.Handle = func(r *fake.Request) (json.RawMessage, *fake.Error) {
		name, _ := r.Tool()
		if r.Method != "tools/call" || name != "echo" {
			return plain(r)
		}
		var p struct{ InputResponses map[string]json.RawMessage }
		_ = json.Unmarshal(r.Params, &p)
		if p.InputResponses == nil {
			return json.RawMessage(`{"resultType":"input_required","inputRequests":{"k":{"method":"elicitation/create","params":{"mode":"form","message":"?","requestedSchema":{"type":"object","properties":{}}}}}}`), nil
		}
		return json.RawMessage(fmt.Sprintf(`{"content":[{"type":"text","text":%q}]}`, p.InputResponses["k"])), nil
	}
	return s
}

// Servers of either era serve clients of either.
func TestErasMeet(t *testing.T) {
	start, _ := starts(onlyModern)
	release := make(chan struct{})
	close(release)
	old, _ := starts(func() *fake.Server { return asking(release) })
	r := newRegistry(t, Config{}, Server{Name: "new", Start: start, Required: true}, Server{Name: "old", Start: old, Required: true})
	if v := r.entry("new").live.Load().Init().ProtocolVersion; v != client.Stateless {
		t.Errorf("the new server speaks %s", v)
	}
	url := serve(t, r).URL + "/mcp"
	for _, version := range []string{"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", client.Stateless} {
		cs := connectAs(t, url, &mcp.ClientOptions{ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "decline"}, nil
		}}, version)
		for _, tool := range []string{"mcp_new_echo", "mcp_old_a"} {
			res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: map[string]any{"text": "x"}})
			if got := toolText(t, res, err); !strings.Contains(got, "decline") {
				t.Errorf("%s %s: %s", version, tool, got)
			}
		}
	}
}

func TestModernRequests(t *testing.T) {
	release := make(chan struct{})
	close(release)
	start, _ := starts(func() *fake.Server { return asking(release) })
	scope := func(req *http.Request) (*Scope, error) {
		return &Scope{Name: req.Header.Get("X-Client"), Servers: []string{"*"}}, nil
	}
	fresh, _ := starts(onlyModern)
	r := newRegistry(t, Config{Authorize: scope}, Server{Name: "x", Start: start, Required: true}, Server{Name: "new", Start: fresh, Required: true, Limits: Limits{InFlight: 100}})
	url := serve(t, r).URL + "/mcp"
	const caps = `{"elicitation":{}}`
	ask := func(params string, header ...string) (int, string) {
		return modernPost(t, url, "tools/call", "mcp_x_a", `"name":"mcp_x_a"`+params, caps, header...)
	}
	for _, tt := range []struct {
		method, name, params, caps string
		status                     int
		want                       string
	}{
		{"server/discover", "", "", caps, 200, `"supportedVersions":["2026-07-28","2025-11-25"`},
		{"tools/list", "", "", caps, 200, `"ttlMs":0,"cacheScope":"private","tools":[{"name":"mcp_x_a"`},
		{"tools/list", "", `"cursor":"1.00"`, caps, 400, `no such cursor`},
		{"initialize", "", "", caps, 404, `-32601`},
		{"resources/subscribe", "", `"uri":"mcp-x+a"`, caps, 404, `-32601`},
		{"tools/list", "", "", `7`, 400, `clientCapabilities`},
		{"tools/call", "nope", `"name":"nope"`, caps, 400, `unknown tool`},
		{"resources/read", "mcp-y+a", `"uri":"mcp-y+a"`, caps, 400, `no server has this resource`},
		{"tools/call", "mcp_x_a", `"name":"mcp_x_a"`, `{}`, 200, `-32601`},
		{"tools/call", "mcp_x_a", `"name":"mcp_x_a","requestState":"made up"`, caps, 400, `expired`},
		{"tools/call", "mcp_x_a", `"name":"mcp_x_a","requestState":["x"]`, caps, 400, `expired`},
		{"subscriptions/listen", "", ``, caps, 400, `params.notifications`},
		{"subscriptions/listen", "", `"notifications":{"resourceSubscriptions":["mcp-y+a"]}`, caps, 400, `no server has this resource`},
	} {
		if status, body := modernPost(t, url, tt.method, tt.name, tt.params, tt.caps); status != tt.status || !strings.Contains(body, tt.want) {
			t.Errorf("%s %s: %d %s, want %d with %s", tt.method, tt.params, status, body, tt.status, tt.want)
		}
	}
	var asked struct {
		Result struct {
			ResultType    string
			RequestState  string
			InputRequests map[string]struct{ Method string }
		}
	}
	begin := func() (state, key string) {
		t.Helper()
		_, body := ask("", "X-Client", "one")
		if err := json.Unmarshal([]byte(body), &asked); err != nil || asked.Result.ResultType != "input_required" || len(asked.Result.InputRequests) != 1 {
			t.Fatalf("%s, %v", body, err)
		}
		for k := range asked.Result.InputRequests {
			key = k
		}
		return asked.Result.RequestState, key
	}
	state, key := begin()
	// Neither another client, nor another request, nor a second time.
	back := fmt.Sprintf(`,"requestState":%q,"inputResponses":{%q:{"action":"decline","n":9007199254740993}}`, state, key)
	if _, body := ask(back, "X-Client", "two"); !strings.Contains(body, "expired") {
		t.Errorf("another client resumed the request: %s", body)
	}
	if _, body := ask(`,"arguments":{"other":1}`+back, "X-Client", "one"); !strings.Contains(body, "expired") {
		t.Errorf("another request resumed it: %s", body)
	}
	// What is left out is asked again.
	_, body := ask(fmt.Sprintf(`,"requestState":%q,"inputResponses":{"else":{}}`, state), "X-Client", "one")
	asked.Result.InputRequests = nil
	if err := json.Unmarshal([]byte(body), &asked); err != nil || len(asked.Result.InputRequests) != 1 || asked.Result.RequestState == state {
		t.Fatalf("%s, %v", body, err)
	}
	back = strings.Replace(back, state, asked.Result.RequestState, 1)
	if _, body = ask(back, "X-Client", "one"); !strings.Contains(body, `{\"action\":\"decline\",\"n\":9007199254740993}`) || !strings.HasPrefix(body, `{"jsonrpc":"2.0","id":"q","result":{"resultType":"complete",`) {
		t.Errorf("the result: %s", body)
	}
	if _, body := ask(back, "X-Client", "one"); !strings.Contains(body, "expired") {
		t.Errorf("a state was good twice: %s", body)
	}
	// Those that wait end with the registry, and are bounded.
	more := func() string {
		_, body := modernPost(t, url, "tools/call", "mcp_new_echo", `"name":"mcp_new_echo","arguments":{"text":""}`, caps)
		return body
	}
	for range maxParkedEach {
		if body := more(); !strings.Contains(body, "input_required") {
			t.Fatalf("within the bound: %s", body)
		}
	}
	if body := more(); !strings.Contains(body, "too many requests wait") {
		t.Errorf("over the bound: %s", body)
	}
}

// A subscription hears what it asked for, under its own id, and nothing else.
func TestModernListen(t *testing.T) {
	r := newRegistry(t, Config{}, Server{Name: "x", Start: sdkStart, Required: true})
	url := serve(t, r).URL + "/mcp"
	msg := `{"jsonrpc":"2.0","id":7,"method":"subscriptions/listen","params":{` + modernMeta + `},"notifications":{"promptsListChanged":true,"resourceSubscriptions":["mcp-x+test://a"]}}}`
	req, err := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader(msg))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "subscriptions/listen"} {
		req.Header.Set(k, v)
	}
	hc := &http.Client{Transport: &http.Transport{}}
	defer hc.CloseIdleConnections()
	res, err := hc.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	events := make(chan string, 16)
	go func() {
		defer close(events)
		var all strings.Builder
		buf := make([]byte, 4096)
		for {
			n, err := res.Body.Read(buf)
			all.Write(buf[:n])
			for {
				ev, rest, ok := strings.Cut(all.String(), "\n\n")
				if !ok {
					break
				}
				all.Reset()
				all.WriteString(rest)
				_, data, _ := strings.Cut(ev, "data: ")
				events <- data
			}
			if err == io.EOF || err != nil {
				return
			}
		}
	}()
	if got := receive(t, "the acknowledgement", events); got != `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":{"promptsListChanged":true,"resourceSubscriptions":["mcp-x+test://a"]},"_meta":{"io.modelcontextprotocol/subscriptionId":7}}}` {
		t.Errorf("acknowledged %s", got)
	}
	call := func(do string) {
		if status, body := modernPost(t, url, "tools/call", "mcp_x_work", `"name":"mcp_x_work","arguments":{"do":"`+do+`"}`, `{}`); status != 200 {
			t.Errorf("%s: %d %s", do, status, body)
		}
	}
	call("update")
	if got := receive(t, "an update", events); got != `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7},"uri":"mcp-x+test://a"}}` {
		t.Errorf("heard %s", got)
	}
	call("more") // resources and prompts change; it asked for prompts alone
	if got := receive(t, "a change", events); got != `{"jsonrpc":"2.0","method":"notifications/prompts/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7}}}` {
		t.Errorf("heard %s", got)
	}
	r.Drain()
	for got := range events {
		if !strings.Contains(got, "list_changed") && got != `{"jsonrpc":"2.0","id":7,"result":{"resultType":"complete","_meta":{"io.modelcontextprotocol/subscriptionId":7}}}` {
			t.Errorf("at the end: %s", got)
		}
	}
}

// A client that leaves cancels what its request began, and its session goes.
func TestModernClientLeaves(t *testing.T) {
	got := make(chan string, 4)
	start, _ := starts(func() *fake.Server {
		return &fake.Server{Tools: echoTools, Concurrent: true, Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
			switch r.Method {
			case "tools/call":
				got <- "call"
			case "notifications/cancelled":
				got <- "cancelled"
			}
			return nil, nil
		}}
	})
	r := newRegistry(t, Config{}, Server{Name: "x", Start: start, Required: true})
	url := serve(t, r).URL + "/mcp"
	ctx, cancel := context.WithCancel(t.Context())
	msg := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mcp_x_echo","arguments":{"text":"x"},` + modernMeta + `}}}`
	req, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(msg))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"Content-Type": "application/json", "Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "mcp_x_echo"} {
		req.Header.Set(k, v)
	}
	hc := &http.Client{Transport: &http.Transport{}}
	defer hc.CloseIdleConnections()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if res, err := hc.Do(req); err == nil {
			_ = res.Body.Close()
		}
	}()
	receive(t, "the call", got)
	cancel()
	<-done
	if what := receive(t, "the cancellation", got); what != "cancelled" {
		t.Errorf("the server saw %s", what)
	}
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		r.mu.Lock()
		n := len(r.sessions)
		r.mu.Unlock()
		if n == 0 {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("%d sessions are left", n)
		}
	}
}
