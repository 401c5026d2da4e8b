package mcpbridge

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandboxd/sandboxd/mcpbridge/internal/fake"
)

const modernMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}`

func modernServer() *fake.Server {
	return &fake.Server{Tools: echoTools, Concurrent: true, Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
		switch r.Method {
		case "server/discover":
			return json.RawMessage(`{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"serverInfo":{"name":"f","version":"1"}}`), nil
		case "tools/call":
			var p struct {
				Meta struct{ ProgressToken json.RawMessage } `json:"_meta"`
			}
			_ = json.Unmarshal(r.Params, &p)
			if p.Meta.ProgressToken != nil {
				r.Write(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1.0}}`, p.Meta.ProgressToken))
			}
			return echoHandle(r)
		case "bad":
			return nil, &fake.Error{Code: -32602, Message: "bad params"}
		}
		return nil, &fake.Error{Code: -32601, Message: "method not found"}
	}}
}

func TestStateless(t *testing.T) {
	start, _ := starts(modernServer)
	r := newRegistry(t, Config{}, Server{Name: "x", Start: start})
	url := serve(t, r).URL + "/mcp/x"
	post := func(msg, method, name string) (int, string) {
		status, body, _ := do(t, "POST", url, msg, "Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", method, "Mcp-Name", name)
		return status, body
	}
	// Many clients use the same id and token at once.
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			msg := fmt.Sprintf(`{"jsonrpc":"2.0","params":{"name":"echo","arguments":{"text":"%d"},%s,"progressToken":"mine"}},"method":"tools/call","id":"same"}`, i, modernMeta)
			status, body := post(msg, "tools/call", "echo")
			got := datas(body)
			if status != 200 || len(got) != 2 || got[0] != `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"mine","progress":1.0}}` ||
				!strings.HasPrefix(got[1], `{"jsonrpc":"2.0","id":"same","result"`) || !strings.Contains(got[1], fmt.Sprintf(`{\"text\":\"%d\"}`, i)) {
				t.Errorf("%d %s", status, body)
			}
		})
	}
	wg.Wait()
	for _, tt := range []struct {
		name, msg, method, tool string
		status                  int
		want                    string
	}{
		{"discover", `{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{` + modernMeta + `}}}`, "server/discover", "", 200, `"supportedVersions"`},
		{"no method", `{"jsonrpc":"2.0","id":1,"method":"none","params":{` + modernMeta + `}}}`, "none", "", 404, `-32601`},
		{"bad params", `{"jsonrpc":"2.0","id":1,"method":"bad","params":{` + modernMeta + `}}}`, "bad", "", 400, `bad params`},
		{"other method", `{"jsonrpc":"2.0","id":1,"method":"bad","params":{` + modernMeta + `}}}`, "good", "", 400, `-32020`},
		{"other tool", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo",` + modernMeta + `}}}`, "tools/call", "other", 400, `-32020`},
		{"encoded tool", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"x"},` + modernMeta + `}}}`, "tools/call", "=?base64?ZWNobw==?=", 200, `"result"`},
		{"no version", `{"jsonrpc":"2.0","id":1,"method":"bad"}`, "bad", "", 400, `-32602`},
	} {
		if status, body := post(tt.msg, tt.method, tt.tool); status != tt.status || !strings.Contains(body, tt.want) {
			t.Errorf("%s: %d %s, want %d with %s", tt.name, status, body, tt.status, tt.want)
		}
	}
	if status, body, _ := do(t, "POST", url, `{"jsonrpc":"2.0","id":"q","method":"ping"}`, "Mcp-Protocol-Version", "2099-01-01"); status != 400 ||
		!strings.Contains(body, `"id":"q","error":{"code":-32022`) || !strings.Contains(body, `"2026-07-28"`) {
		t.Errorf("an unknown version: %d %s", status, body)
	}
}

// A server of the older era sends a new client to the older protocol.
func TestStatelessFallsBack(t *testing.T) {
	start, _ := starts(echoServer)
	r := newRegistry(t, Config{}, Server{Name: "x", Start: start, Required: true})
	url := serve(t, r).URL
	filtered := newRegistry(t, Config{}, Server{Name: "x", Start: start, Required: true, ToolsAllowlist: []string{"echo"}})
	for _, path := range []string{url + "/mcp/x", serve(t, filtered).URL + "/mcp/x"} {
		status, body, _ := do(t, "POST", path, `{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{`+modernMeta+`}}}`,
			"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "server/discover")
		if status != 400 || !strings.Contains(body, `"code":-32022`) || !strings.Contains(body, `"2025-11-25"`) {
			t.Errorf("%s: %d %s", path, status, body)
		}
		cs := connect(t, path, nil)
		if list, err := cs.ListTools(t.Context(), &mcp.ListToolsParams{}); err != nil || len(list.Tools) != 1 {
			t.Errorf("%s: %+v, %v", path, list, err)
		}
	}
}

// Closing the response cancels the request at the server.
func TestStatelessCancel(t *testing.T) {
	got := make(chan string, 4)
	start, _ := starts(func() *fake.Server {
		s := modernServer()
		plain := s.Handle
		s.Handle = func(r *fake.Request) (json.RawMessage, *fake.Error) {
			switch r.Method {
			case "hang":
				got <- "hang"
				return nil, nil
			case "notifications/cancelled":
				got <- string(r.Params)
			}
			return plain(r)
		}
		return s
	})
	r := newRegistry(t, Config{}, Server{Name: "x", Start: start})
	url := serve(t, r).URL + "/mcp/x"
	req, err := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader(`{"jsonrpc":"2.0","id":77,"method":"hang","params":{`+modernMeta+`}}}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Mcp-Protocol-Version", "2026-07-28")
	req.Header.Set("Mcp-Method", "hang")
	hc := &http.Client{Timeout: 300 * time.Millisecond, Transport: &http.Transport{}}
	defer hc.CloseIdleConnections()
	if res, err := hc.Do(req); err == nil {
		_ = res.Body.Close()
		t.Error("a request that hangs was answered")
	}
	if a, b := <-got, <-got; a != "hang" || b != `{"requestId":2}` {
		t.Errorf("server saw %s, then %s", a, b)
	}
}
