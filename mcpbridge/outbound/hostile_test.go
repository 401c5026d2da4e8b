package outbound_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandboxd/sandboxd/mcpbridge/outbound"
)

func echo() outbound.Workflow {
	return outbound.Workflow{ID: "echo", InputSchema: json.RawMessage(`{"type":"object"}`), Runner: outbound.RunnerFunc(
		func(_ context.Context, inputs json.RawMessage, _ outbound.Caller) (json.RawMessage, error) {
			return inputs, nil
		})}
}

// nonsense are messages with what must be in the answer, or "" for none.
func nonsense() map[string]string {
	deep := strings.Repeat(`{"a":`, 300) + `1` + strings.Repeat(`}`, 300)
	return map[string]string{
		`no json`: `"id":null,"error":{"code":-32700`,
		`{"jsonrpc":"2.0","id":1,"method":"nothing"}`:                                                                          `"id":1,"error":{"code":-32601`,
		`{"jsonrpc":"2.0","id":90071992547409931,"method":"ping"}`:                                                             `"id":90071992547409931,"result":{}`,
		`{"jsonrpc":"2.0","id":null,"method":"ping"}`:                                                                          `"id":null,"error":{"code":-32600`,
		`{"jsonrpc":"2.0","id":{},"method":"ping"}`:                                                                            `"id":null,"error":{"code":-32600`,
		`{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}`:                                                                      `"error":{"code":-32600`,
		`[{"jsonrpc":"2.0","id":1,"method":"ping"}]`:                                                                           `-32600`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`:                                                                       `-32602`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}`:                                                           `-32602`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"relavium_echo","name":"x"}}`:                          `-32602`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"relavium_echo","arguments":[]}}`:                      `invalid arguments`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"relavium_echo","arguments":` + deep + `}}`:            `invalid arguments`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"mcp_\u0000\ud800"}}`:                                  `unknown tool`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"x"}}`:                                               `-32602`,
		`{"jsonrpc":"2.0","id":"ask-1","result":{"action":"accept"}}`:                                                          ``,
		`{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"no"}}`:                                                           ``,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}`:                                       ``,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":7}`:                                                      ``,
		`{"jsonrpc":"2.0","method":"notifications/unheard_of"}`:                                                                ``,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"relavium_echo","arguments":{"n":90071992547409931}}}`: `90071992547409931`,
	}
}

func TestHostileClients(t *testing.T) {
	p := newPublisher(t, outbound.Config{MaxBody: 64 << 10}, echo())
	url := serve(t, p)
	k := dial(t, url)
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	served := make(chan error, 1)
	go func() { served <- p.ServeStdio(t.Context(), in, out) }()
	lines := json.NewDecoder(fromServer)
	stdio := func(msg string, answered bool) string {
		fmt.Fprintln(toServer, msg)
		if !answered {
			return ""
		}
		var raw json.RawMessage
		if err := lines.Decode(&raw); err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	for msg, want := range nonsense() {
		k.send(msg)
		got := stdio(msg, want != "")
		if want != "" {
			if got := k.next(); !strings.Contains(got, want) {
				t.Errorf("socket: %.80s: %s, want %s", msg, got, want)
			}
			if !strings.Contains(got, want) {
				t.Errorf("stdio: %.80s: %s, want %s", msg, got, want)
			}
		}
	}
	// What is too long is refused; stdio goes on.
	long := `{"jsonrpc":"2.0","id":5,"method":"ping","params":{"x":"` + strings.Repeat("x", 70<<10) + `"}}`
	if got := stdio(long, true); !strings.Contains(got, `"id":5,"error"`) {
		t.Errorf("a long line: %s", got)
	}
	if got := stdio(`{"jsonrpc":"2.0","id":6,"method":"ping"}`, true); !strings.Contains(got, `"id":6,"result"`) {
		t.Errorf("after a long line: %s", got)
	}
	_ = toServer.Close()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if err := k.conn.Write(t.Context(), websocket.MessageText, []byte(long)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := k.conn.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusMessageTooBig {
		t.Errorf("a long frame: %v", err)
	}
	k = dial(t, url)
	if err := k.conn.Write(t.Context(), websocket.MessageBinary, []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := k.conn.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusUnsupportedData {
		t.Errorf("a binary frame: %v", err)
	}
}

func TestSocketsAreNotOpenedForEveryone(t *testing.T) {
	url := serve(t, newPublisher(t, outbound.Config{MaxSessions: 1}, echo()))
	ws := strings.Replace(url, "http", "ws", 1)
	for name, opts := range map[string]*websocket.DialOptions{
		"no subprotocol": {}, "another": {Subprotocols: []string{"graphql-ws"}},
		"a foreign page": {Subprotocols: []string{"mcp"}, HTTPHeader: map[string][]string{"Origin": {"https://evil.example"}}},
	} {
		conn, res, err := websocket.Dial(t.Context(), ws, opts)
		if err == nil {
			_ = conn.CloseNow()
			t.Errorf("%s: let in", name)
		} else if res == nil || res.StatusCode != 400 && res.StatusCode != 403 {
			t.Errorf("%s: %v", name, err)
		}
	}
	var first *raw
	until(t, "the refused ones are forgotten", func() bool {
		conn, _, err := websocket.Dial(t.Context(), ws, &websocket.DialOptions{Subprotocols: []string{"mcp"}})
		if err == nil {
			first = &raw{t, conn}
			t.Cleanup(func() { _ = conn.CloseNow() })
		}
		return err == nil
	})
	if _, res, err := websocket.Dial(t.Context(), ws, &websocket.DialOptions{Subprotocols: []string{"mcp"}}); err == nil || res.StatusCode != 503 {
		t.Errorf("one too many: %v", err)
	}
	first.send(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	if got := first.next(); !strings.Contains(got, `"result"`) {
		t.Error(got)
	}
}

// modernCall calls deploy in the revision without sessions; rest is more of its
// params.
func modernCall(t testing.TB, url, rest string) string {
	t.Helper()
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}`
	_, body, _ := post(t, "POST", url, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"relavium_deploy",`+meta+rest+`}}`,
		"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "relavium_deploy")
	return body
}

// Clients that ask for runs and never come back leave room for others.
func TestRunsThatWaitLeaveRoom(t *testing.T) {
	p := newPublisher(t, outbound.Config{MaxCalls: 4}, deploy(), echo())
	url := serve(t, p)
	waiting := 0
	for range 8 {
		switch got := modernCall(t, url, `,"arguments":{"version":"v"}`); {
		case strings.Contains(got, "input_required"):
			waiting++
		case !strings.Contains(got, "too many"):
			t.Error(got)
		}
	}
	if waiting != 2 {
		t.Errorf("%d of 4 places only wait, want 2", waiting)
	}
	k := dial(t, url)
	until(t, "another client is served", func() bool {
		k.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"relavium_echo"}}`)
		return strings.Contains(k.next(), `"result"`)
	})
}

// The answer to a question reaches the run that asked, once, and no other.
func TestAnswersReachTheirRunAlone(t *testing.T) {
	p := newPublisher(t, outbound.Config{}, deploy())
	url := serve(t, p)
	modern := func(rest string) string { return modernCall(t, url, rest) }
	state := func(body string) string {
		var r struct {
			Result struct{ ResultType, RequestState string }
		}
		if err := json.Unmarshal([]byte(body), &r); err != nil || r.Result.ResultType != "input_required" || r.Result.RequestState == "" {
			t.Fatalf("%s: %v", body, err)
		}
		return `"` + r.Result.RequestState + `"`
	}
	const yes = `,"inputResponses":{"ask":{"action":"accept","content":{"where":"home"}}}`
	a := state(modern(`,"arguments":{"version":"a"}`))
	b := state(modern(`,"arguments":{"version":"b"}`))
	for name, rest := range map[string]string{
		"another run's": `,"arguments":{"version":"b"},"requestState":` + a + yes,
		"a guess":       `,"arguments":{"version":"a"},"requestState":"AAAAAAAAAAAAAAAAAAAAAAAAAA"` + yes,
		"no string":     `,"arguments":{"version":"a"},"requestState":7` + yes,
		"no answer":     `,"arguments":{"version":"a"},"requestState":` + a,
	} {
		if got := modern(rest); !strings.Contains(got, `-32602`) {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got := modern(`,"arguments":{"version":"b"},"requestState":` + b + yes); !strings.Contains(got, `"deployed":"b at home"`) || !strings.Contains(got, `"resultType":"complete"`) {
		t.Errorf("b: %s", got)
	}
	if got := modern(`,"arguments":{"version":"b"},"requestState":` + b + yes); !strings.Contains(got, `-32602`) {
		t.Errorf("b again: %s", got)
	}
	bad := `,"inputResponses":{"ask":{"action":"accept","content":{"where":"much too far away"}}}`
	if got := modern(`,"arguments":{"version":"a"},"requestState":` + a + bad); !strings.Contains(got, `does not fit`) || !strings.Contains(got, `"isError":true`) {
		t.Errorf("a: %s", got)
	}

	// With sessions: one client cannot answer for another.
	one, other := dial(t, url), dial(t, url)
	for _, k := range []*raw{one, other} {
		k.send(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}}}}`)
		k.next()
	}
	one.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"relavium_deploy","arguments":{"version":"one"}}}`)
	if got := one.next(); !strings.Contains(got, `"id":"ask-1","method":"elicitation/create"`) {
		t.Fatal(got)
	}
	other.send(`{"jsonrpc":"2.0","id":"ask-1","result":{"action":"accept","content":{"where":"elsewhere"}}}`)
	other.send(`{"jsonrpc":"2.0","id":2,"method":"ping"}`)
	other.next()
	one.send(`{"jsonrpc":"2.0","id":"ask-1","result":{"action":"accept","content":{"where":"home"}}}`)
	if got := one.next(); !strings.Contains(got, `one at home`) {
		t.Error(got)
	}
}

func TestBadQuestionsAndAnswers(t *testing.T) {
	var q outbound.Question
	var answer string
	w := outbound.Workflow{ID: "q", Runner: outbound.RunnerFunc(func(ctx context.Context, _ json.RawMessage, caller outbound.Caller) (json.RawMessage, error) {
		a, err := caller.Ask(ctx, q)
		return json.RawMessage(`{"did":"` + string(a.Action) + `"}`), err
	})}
	k := dial(t, serve(t, newPublisher(t, outbound.Config{}, w)))
	k.send(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{"form":{},"url":{}}}}}`)
	k.next()
	call := func() string {
		k.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"relavium_q"}}`)
		got := k.next()
		if at := strings.Index(got, `"id":"ask-`); at >= 0 {
			id := got[at+5:]
			k.send(`{"jsonrpc":"2.0","id":` + id[:strings.Index(id, `,`)] + `,` + answer + `}`)
			return k.next()
		}
		return got
	}
	for _, bad := range []outbound.Question{
		{},
		{Message: strings.Repeat("x", 5000)},
		{Message: "m", URL: "javascript:alert(1)"},
		{Message: "m", URL: "https://u:p@x.example"},
		{Message: "m", URL: "https://x.example", Schema: json.RawMessage(`{"type":"object"}`)},
		{Message: "m", Schema: json.RawMessage(`[]`)},
		{Message: "m", Schema: json.RawMessage(`{"type":"object","properties":{"a":{"type":"object"}}}`)},
		{Message: "m", Schema: json.RawMessage(`{"type":"object","$ref":"https://x.example/s"}`)},
	} {
		q = bad
		if got := call(); !strings.Contains(got, "cannot be asked") {
			t.Errorf("%+v: %s", bad, got)
		}
	}
	q = outbound.Question{Message: "Well?"}
	for a, want := range map[string]string{
		`"result":{"action":"accept"}`: `\"did\":\"accept\"`, `"result":{"action":"decline","content":{"x":1}}`: `decline`,
		`"result":{"action":"perhaps"}`: "cannot be read", `"result":7`: "cannot be read", `"error":{"code":-1,"message":"no"}`: "with an error",
		`"result":{"action":"accept"},"result":{"action":"decline"}`: "with an error", `"result":{"action":"accept","content":[]}`: "does not fit",
	} {
		answer = a
		if got := call(); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", a, got, want)
		}
	}
}

// A run that reports without end, to a client that reads.
func TestFloodOfProgress(t *testing.T) {
	w := outbound.Workflow{ID: "flood", Runner: outbound.RunnerFunc(func(_ context.Context, _ json.RawMessage, caller outbound.Caller) (json.RawMessage, error) {
		for range 50_000 {
			caller.Progress(outbound.Progress{Message: "again"})
		}
		caller.Progress(outbound.Progress{Done: 1, Message: "backwards"})
		return json.RawMessage(`{}`), nil
	})}
	p := newPublisher(t, outbound.Config{}, w)
	k := dial(t, serve(t, p))
	k.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"relavium_flood","_meta":{"progressToken":"t"}}}`)
	began, n, last := time.Now(), 0, 0.0
	for {
		got := k.next()
		if strings.Contains(got, `"result"`) {
			break
		}
		var m struct {
			Params mcp.ProgressNotificationParams
		}
		if err := json.Unmarshal([]byte(got), &m); err != nil || m.Params.Progress <= last || m.Params.Message != "again" {
			t.Fatalf("after %v: %s, %v", last, got, err)
		}
		last = m.Params.Progress
		n++
	}
	if limit := 22 + 10*int(time.Since(began).Seconds()+1); n > limit || last != 50_000 {
		t.Errorf("%d notifications, at most %d are sent; the last is %v", n, limit, last)
	}
}

// A session's id is no use to a client that did not open it.
func TestSessionsHaveOwners(t *testing.T) {
	p := newPublisher(t, outbound.Config{Owner: func(r *http.Request) string { return r.Header.Get("X-Client") }}, echo())
	url := serve(t, p)
	_, _, h := post(t, "POST", url, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`, "X-Client", "a")
	for who, want := range map[string]int{"a": http.StatusOK, "b": http.StatusNotFound} {
		if status, body, _ := post(t, "POST", url, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, "X-Client", who, "Mcp-Session-Id", h.Get("Mcp-Session-Id")); status != want {
			t.Errorf("%s: %d %s", who, status, body)
		}
	}
}
