package mcpbridge

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/mcpbridge/internal/fake"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/sandbox"
)

const initLine = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`

// open initializes a session and returns its id.
func open(t testing.TB, url string) string {
	t.Helper()
	status, body, h := do(t, "POST", url, initLine)
	id := h.Get("Mcp-Session-Id")
	if status != 200 || id == "" || !strings.Contains(body, `"result"`) {
		t.Fatalf("initialize: %d %s", status, body)
	}
	return id
}

// datas are the messages in an event stream.
func datas(body string) []string {
	var out []string
	for l := range strings.SplitSeq(body, "\n") {
		if d, ok := strings.CutPrefix(l, "data: "); ok {
			out = append(out, d)
		}
	}
	return out
}

func TestRawEndpointKeepsBytes(t *testing.T) {
	const params = `{ "name":"echo","x":12345678901234567890, "f":1.50 ,"_meta":{"u":"\u00e9"},"é":[{}]}`
	const answer = `{"x-envelope":{"b":1,"a":2},"result":{"z":9007199254740993,"f":1.500,"content":[{"type":"hologram","q":1e400}],"_meta":{}} , "jsonrpc":"2.0","id":"s-1"}`
	seen := make(chan string, 4)
	start, _ := starts(func() *fake.Server {
		return &fake.Server{Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
			if r.Method == "odd/method" {
				seen <- string(r.Raw)
				r.Write(`{"method":"notifications/odd","jsonrpc":"2.0","params":{"n":00.5}}`) // no JSON: stray
				r.Write(`{"method":"notifications/odd","jsonrpc":"2.0","params":{"n":0.50}}` + "\r")
				r.Write(answer)
				return nil, nil
			}
			return nil, &fake.Error{Code: -32601, Message: "no"}
		}}
	})
	r := newRegistry(t, Config{}, Server{Name: "x", Start: start})
	url := serve(t, r).URL + "/mcp/x"
	id := open(t, url)
	req := `{"x-more":1,"id":"s-1","method":"odd/method","params":` + params + `,"jsonrpc":"2.0"}`
	status, body, _ := do(t, "POST", url, strings.Replace(req, `,"id"`, ",\n\t\"id\"", 1), "Mcp-Session-Id", id)
	if status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	if got := <-seen; got != strings.Replace(req, `,"id"`, ", \t\"id\"", 1) {
		t.Errorf("server got %s", got)
	}
	got := datas(body)
	if len(got) != 2 || got[1] != answer || got[0] != `{"method":"notifications/odd","jsonrpc":"2.0","params":{"n":0.50}} ` {
		t.Errorf("client got %q", got)
	}
}

func TestRawEndpointSessions(t *testing.T) {
	die := make(chan struct{}, 1)
	start, last := starts(func() *fake.Server {
		return &fake.Server{Tools: echoTools, Concurrent: true, Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
			if r.Method == "hang" {
				die <- struct{}{}
				return nil, nil
			}
			return echoHandle(r)
		}}
	})
	r := newRegistry(t, Config{MaxSessions: 2}, Server{Name: "x", Start: start, Required: true})
	url := serve(t, r).URL + "/mcp/x"
	call := func(id, msg string, header ...string) (int, string) {
		status, body, _ := do(t, "POST", url, msg, append([]string{"Mcp-Session-Id", id}, header...)...)
		return status, body
	}
	ping := `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	a, b := open(t, url), open(t, url)
	if status, body, _ := do(t, "POST", url, initLine); status != 503 || !strings.Contains(body, "too many sessions") {
		t.Errorf("a session over the limit: %d %s", status, body)
	}
	for _, tt := range []struct {
		name, id, msg string
		header        []string
		status        int
		want          string
	}{
		{"ping", a, ping, nil, 200, `"result":{}`},
		{"notification", a, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, nil, 202, ""},
		{"plain JSON", a, ping, []string{"Accept", "application/json"}, 200, `{"jsonrpc":"2.0","id":1,"result":{}}`},
		{"batch", a, `[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":2,"method":"ping"}]`, nil, 200, `"id":2,"result":{}`},
		{"batch, plain", a, `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, []string{"Accept", "application/json"}, 200, `[{"jsonrpc":"2.0","id":1,"result":{}}]`},
		{"twice the same id", a, `[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":1.0,"method":"ping"}]`, nil, 400, "open already"},
		{"null id", a, `{"jsonrpc":"2.0","id":null,"method":"ping"}`, nil, 400, "string or a number"},
		{"no session", "", ping, nil, 400, "initialize first"},
		{"wrong session", "guess", ping, nil, 404, "no such session"},
		{"again", a, initLine, nil, 400, "already"},
		{"no JSON", a, `{`, nil, 400, "-32700"},
		{"no JSON-RPC", a, `{"a":1}`, nil, 400, "-32600"},
		{"other version", a, ping, []string{"Mcp-Protocol-Version", "1999-01-01"}, 400, "unsupported protocol version"},
		{"known version", a, ping, []string{"Mcp-Protocol-Version", "2025-03-26"}, 200, "result"},
		{"text", a, ping, []string{"Content-Type", "text/plain"}, 415, ""},
		{"wants HTML", a, ping, []string{"Accept", "text/html"}, 406, ""},
	} {
		if status, body := call(tt.id, tt.msg, tt.header...); status != tt.status || !strings.Contains(body, tt.want) {
			t.Errorf("%s: %d %s, want %d with %s", tt.name, status, body, tt.status, tt.want)
		}
	}
	// One session's end is not the other's.
	if status, _, _ := do(t, "DELETE", url, "", "Mcp-Session-Id", a); status != 204 {
		t.Errorf("delete: %d", status)
	}
	if status, _ := call(a, ping); status != 404 {
		t.Errorf("after delete: %d", status)
	}
	if status, body := call(b, ping); status != 200 {
		t.Errorf("the neighbour: %d %s", status, body)
	}
	// A server that dies fails what is open, with its cause.
	sandboxOfB := last.Load()
	go func() {
		<-die
		sandboxOfB.Kill()
	}()
	if _, body := call(b, `{"jsonrpc":"2.0","id":"h","method":"hang"}`); !strings.Contains(body, "server ended: killed by signal 9") {
		t.Errorf("a dead server: %s", body)
	}
}

func TestRawEndpointServerRequests(t *testing.T) {
	answers := make(chan string, 1)
	start, _ := starts(func() *fake.Server {
		return &fake.Server{Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
			switch {
			case r.Method == "notifications/initialized":
				r.Write(`{"jsonrpc":"2.0","id":"srv-1","method":"sampling/createMessage","params":{"maxTokens":1.0}}`)
			case strings.Contains(string(r.Raw), `"result"`): // the registry's own session has no sampling
				answers <- string(r.Raw)
			}
			return nil, nil
		}}
	})
	r := newRegistry(t, Config{}, Server{Name: "x", Start: start})
	url := serve(t, r).URL + "/mcp/x"
	id := open(t, url)
	req, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Mcp-Session-Id", id)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if status, _, _ := do(t, "GET", url, "", "Mcp-Session-Id", id); status != 409 {
		t.Errorf("a second stream: %d", status)
	}
	do(t, "POST", url, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, "Mcp-Session-Id", id)
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if d, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			if d != `{"jsonrpc":"2.0","id":"srv-1","method":"sampling/createMessage","params":{"maxTokens":1.0}}` {
				t.Errorf("client was asked %s", d)
			}
			break
		}
	}
	answer := `{"jsonrpc":"2.0","id":"srv-1","result":{"role":"assistant","model":"m","content":{"type":"text","text":"x"}}}`
	if status, _, _ := do(t, "POST", url, answer, "Mcp-Session-Id", id); status != 202 {
		t.Errorf("the answer: %d", status)
	}
	if got := <-answers; got != answer {
		t.Errorf("server got %s", got)
	}
}

func TestRawEndpointFilter(t *testing.T) {
	tools := `[{"name":"secret","inputSchema":{}},{"name":"echo","inputSchema":{"type":"object"}, "x":1.0},{"name":"echo","name":"secret"}]`
	called := make(chan string, 8)
	newServer := func() *fake.Server {
		return &fake.Server{Tools: tools, Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
			if r.Method == "tools/call" {
				called <- string(r.Params)
			}
			return echoHandle(r)
		}}
	}
	for _, sharing := range []Sharing{SharingSession, SharingTenant} {
		start, _ := starts(newServer)
		r := newRegistry(t, Config{}, Server{Name: "x", Start: start, ToolsAllowlist: []string{"echo"}, Required: true, Sharing: sharing})
		url := serve(t, r).URL + "/mcp/x"
		id := open(t, url)
		post := func(msg string) string {
			_, body, _ := do(t, "POST", url, msg, "Mcp-Session-Id", id)
			return strings.Join(datas(body), "")
		}
		if got, want := post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`), `{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"echo","inputSchema":{"type":"object"}, "x":1.0}]}}`; got != want {
			t.Errorf("list %s, want %s", got, want)
		}
		for _, bad := range []string{
			`{"name":"secret"}`, `{"n\u0061me":"secret"}`, `{"name":"echo","name":"secret"}`, `{"name":"secret","name":"echo"}`, `{"name":7}`, `{}`, `null`,
		} {
			if got := post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + bad + `}`); !strings.Contains(got, `"error":{"code":-32602`) {
				t.Errorf("%s: %s", bad, got)
			}
		}
		post(`{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call","params":{"name":"secret"}}`)
		post(`[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"secret"}}]`)
		if got := post(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"echo"}}`); !strings.Contains(got, `"result"`) {
			t.Errorf("the allowed tool: %s", got)
		}
		if p := <-called; p != `{"name":"echo"}` || len(called) > 0 {
			t.Errorf("server was called with %s and %d more", p, len(called))
		}
	}
}

func TestRawEndpointStartFails(t *testing.T) {
	r := newRegistry(t, Config{}, Server{Name: "x", Start: func(context.Context) (sandbox.Sandbox, error) {
		return nil, errors.New("runtime runsc is missing: run make engine")
	}})
	status, body, _ := do(t, "POST", serve(t, r).URL+"/mcp/x", initLine)
	if status != 503 || !strings.Contains(body, "run make engine") {
		t.Errorf("%d %s", status, body)
	}
	if n := r.entry("x").raw.Len(); n != 0 {
		t.Errorf("%d sessions stayed", n)
	}
}

func TestRawSlowClientHoldsItsOwnServerOnly(t *testing.T) {
	start, _ := starts(func() *fake.Server {
		return &fake.Server{Concurrent: true, Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
			if r.Method == "flood" {
				line := `{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"` + strings.Repeat("x", 10_000) + `"}}`
				for range 5_000 {
					r.Write(line)
				}
			}
			return json.RawMessage(`{}`), nil
		}}
	})
	r := newRegistry(t, Config{}, Server{Name: "x", Start: start})
	url := serve(t, r).URL + "/mcp/x"
	id := open(t, url)
	req, err := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"flood"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Mcp-Session-Id", id)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	other := open(t, url) // a neighbour works while nobody reads the flood
	if status, body, _ := do(t, "POST", url, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, "Mcp-Session-Id", other); status != 200 {
		t.Errorf("the neighbour: %d %s", status, body)
	}
	n := 0
	lines := relay.NewReader(res.Body, 0)
	for {
		l, err := lines.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(string(l.Text), "data: ") {
			n++
		}
	}
	if n != 5_001 {
		t.Errorf("%d messages, want 5000 and the answer", n)
	}
}
