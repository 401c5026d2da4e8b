package remote

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// go-sdk's server of the stateless revision refuses calls whose headers are
// not as the tools' schemas want them.
func TestStatelessParams(t *testing.T) {
	server := mcp.NewServer(&mcp.Implementation{Name: "far", Version: "1"}, nil)
	server.AddTool(&mcp.Tool{Name: "query", InputSchema: json.RawMessage(`{"type":"object","properties":{
		"region":{"type":"string","x-mcp-header":"Region"},"deep":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"Count"},"b":{"type":"boolean","x-mcp-header":"Flag"}}},"free":{"type":"string"}}}`)},
		func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			h := req.Extra.Header
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf("%s|%s|%s|%s", h.Get("Mcp-Param-Region"), h.Get("Mcp-Param-Count"), h.Get("Mcp-Param-Flag"), h.Get("Mcp-Param-Free"))}}}, nil
		})
	h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{Stateless: true})
	meta := `"_meta":{"` + metaVersion + `":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	list := `{"jsonrpc":"2.0","id":%d,"method":"tools/list","params":{` + meta + `}}`
	call := `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"query","arguments":{"region":"Zürich","deep":{"n":42,"b":true},"free":"x"},` + meta + `}}`
	for name, lines := range map[string][]string{"listed before": {list, call, call}, "not listed": {call, call}} {
		t.Run(name, func(t *testing.T) {
			s, err := start(t, Config{URL: serve(t, h.ServeHTTP)})
			if err != nil {
				t.Fatal(err)
			}
			go io.Copy(io.Discard, s.Stdio().Err)
			out := bufio.NewReader(s.Stdio().Out)
			for i, line := range lines {
				if _, err := fmt.Fprintf(s.Stdio().In, line+"\n", i); err != nil {
					t.Fatal(err)
				}
				got, err := out.ReadString('\n')
				if err != nil {
					t.Fatal(err)
				}
				if line == call && !strings.Contains(got, "=?base64?WsO8cmljaA==?=|42|true|\"") || !strings.Contains(got, fmt.Sprintf(`"id":%d`, i)) {
					t.Errorf("%d: %s", i, got)
				}
			}
		})
	}
}

func TestParamsAreBounded(t *testing.T) {
	var p params
	deep := strings.Repeat(`{"properties":{"a":`, 200) + `{"x-mcp-header":"Deep"}` + strings.Repeat(`}}`, 200)
	wide := make([]string, 100)
	for i := range wide {
		wide[i] = fmt.Sprintf(`"p%d":{"x-mcp-header":"H%d"}`, i, i)
	}
	p.learn([]byte(`{"result":{"tools":[{"name":"deep","inputSchema":` + deep + `},{"name":"wide","inputSchema":{"properties":{` + strings.Join(wide, ",") +
		`}}},{"name":"bad","inputSchema":{"properties":{"a":{"x-mcp-header":"A: b\r\nX"},"b":{"x-mcp-header":7},"c":{"x-mcp-header":""}}}}]}}`))
	if len(p.tools["deep"]) != 0 || len(p.tools["wide"]) != maxParams || len(p.tools["bad"]) != 0 {
		t.Errorf("%d %d %v", len(p.tools["deep"]), len(p.tools["wide"]), p.tools["bad"])
	}
	h := http.Header{}
	p.tools["x"] = []param{{[]string{"a"}, "A"}, {[]string{"b", "c"}, "B"}, {[]string{"f"}, "F"}, {[]string{"n"}, "N"}}
	p.set(h, "x", []byte(`{"arguments":{"a":{"no":"primitive"},"b":7,"f":1.5,"n":9007199254740993}}`))
	p.set(h, "x", []byte(`{}`))
	if len(h) != 0 {
		t.Errorf("%v", h)
	}
}
