package mcpbridge

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"

	"github.com/sandboxd/sandboxd/mcpbridge/internal/fake"
)

// contract is the served description, ready to hold answers against.
type contract struct {
	Paths map[string]map[string]json.RawMessage
	defs  string
	body  map[string]any
}

func readContract(t *testing.T, raw string) *contract {
	t.Helper()
	// jsonschema-go knows $defs alone.
	raw = strings.ReplaceAll(raw, "#/components/schemas/", "#/$defs/")
	c := &contract{}
	if err := json.Unmarshal([]byte(raw), c); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(raw), &c.body); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *contract) at(t *testing.T, path ...string) map[string]any {
	t.Helper()
	m := c.body
	for _, p := range path {
		next, ok := m[p].(map[string]any)
		if !ok {
			return nil
		}
		m = next
	}
	return m
}

// schema is that of an operation's answer with a status.
func (c *contract) schema(t *testing.T, path, method string, status int, mediaType string) *jsonschema.Resolved {
	t.Helper()
	responses := c.at(t, "paths", path, method, "responses")
	res, ok := responses[strconv.Itoa(status)].(map[string]any)
	if !ok {
		res, ok = responses["default"].(map[string]any)
	}
	if !ok {
		t.Fatalf("%s %s: status %d is not described", method, path, status)
	}
	if ref, ok := res["$ref"].(string); ok {
		res = c.at(t, strings.Split(strings.TrimPrefix(ref, "#/"), "/")...)
	}
	content, _ := res["content"].(map[string]any)
	media, ok := content[mediaType].(map[string]any)
	if !ok {
		t.Fatalf("%s %s: %d with %s is not described", method, path, status, mediaType)
	}
	raw, err := json.Marshal(map[string]any{"allOf": []any{media["schema"]}, "$defs": c.at(t, "components", "schemas")})
	if err != nil {
		t.Fatal(err)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (c *contract) check(t *testing.T, path, method string, status int, mediaType, body string) {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatalf("%s %s: %v: %s", method, path, err, body)
	}
	if err := c.schema(t, path, method, status, mediaType).Validate(v); err != nil {
		t.Errorf("%s %s answered %d against its description: %v\n%s", method, path, status, err, body)
	}
}

func TestOpenAPIHoldsWhatIsServed(t *testing.T) {
	start, _ := starts(func() *fake.Server {
		return &fake.Server{
			Tools: `[` + strings.Trim(echoTools, "[]") + `,{"name":"out","inputSchema":{},"outputSchema":{"type":"object"}},{"name":"b ad"}]`,
			Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
				name, args := r.Tool()
				switch {
				case name == "out":
					return json.RawMessage(`{"content":[],"structuredContent":{"a":1}}`), nil
				case strings.Contains(string(args), "fail"):
					return json.RawMessage(`{"content":[],"isError":true}`), nil
				case strings.Contains(string(args), "rpc"):
					return nil, &fake.Error{Code: 1, Message: "no"}
				case strings.Contains(string(args), "hang"):
					return nil, nil
				}
				return echoHandle(r)
			},
		}
	})
	broken, _ := starts(func() *fake.Server { return &fake.Server{Version: "1.0"} })
	r := newRegistry(t, Config{MaxBody: 500, Authorize: func(req *http.Request) (*Scope, error) {
		if req.Header.Get("X-Refuse") != "" {
			return nil, context.Canceled
		}
		return nil, nil
	}},
		Server{Name: "x", Start: start, Required: true, CallTimeout: 50 * time.Millisecond},
		Server{Name: "y", Start: broken, Limits: Limits{Restarts: 1}})
	if err := r.Ready(t.Context(), "y"); err == nil {
		t.Error("a broken server is ready")
	}
	url := serve(t, r).URL
	_, raw, _ := do(t, "GET", url+"/api/v1/openapi.json", "")
	c := readContract(t, raw)

	const conns = "/api/v1/automation/connectors"
	act := conns + "/{name}/actions/{key}"
	seen := map[string]bool{}
	for _, tt := range []struct {
		method, path, url, body string
		status                  int
		header                  []string
	}{
		{"get", "/healthz", "/healthz", "", 200, nil},
		{"get", "/api/v1/openapi.json", "/api/v1/openapi.json", "", 200, nil},
		{"get", "/api/v1/openapi.json", "/api/v1/openapi.json", "", 401, []string{"X-Refuse", "1"}},
		{"get", conns, conns, "", 200, nil},
		{"get", conns, conns, "", 403, []string{"Origin", "https://evil.example"}},
		{"get", conns + "/{name}", conns + "/x", "", 200, nil},
		{"get", conns + "/{name}", conns + "/z", "", 404, nil},
		{"post", act, conns + "/x/actions/echo", `{"text":"hi"}`, 200, nil},
		{"post", act, conns + "/x/actions/out", ``, 200, nil},
		{"post", act, conns + "/x/actions/echo", `{"text":"fail"}`, 200, nil},
		{"post", act, conns + "/x/actions/echo", `{"text":"rpc"}`, 502, nil},
		{"post", act, conns + "/x/actions/echo", `{"text":"hang"}`, 504, nil},
		{"post", act, conns + "/x/actions/echo", `{"text":1}`, 422, nil},
		{"post", act, conns + "/x/actions/echo", `{`, 400, nil},
		{"post", act, conns + "/x/actions/echo", `{"text":"` + strings.Repeat("x", 600) + `"}`, 413, nil},
		{"post", act, conns + "/x/actions/nothing", `{}`, 404, nil},
		{"post", act, conns + "/y/actions/a", `{}`, 503, nil},
		{"get", "/api/v1/servers", "/api/v1/servers", "", 200, nil},
	} {
		status, body, header := do(t, strings.ToUpper(tt.method), url+tt.url, tt.body, tt.header...)
		if status != tt.status {
			t.Errorf("%s %s: %d, want %d: %s", tt.method, tt.url, status, tt.status, body)
		}
		c.check(t, tt.path, tt.method, status, header.Get("Content-Type"), body)
		seen[strings.ToUpper(tt.method)+" "+tt.path] = true
	}
	events(t, c, r, url)
	seen["GET /api/v1/events"] = true

	var served, described []string
	for _, route := range r.routes() {
		if method, path, ok := strings.Cut(route.pattern, " "); ok {
			served = append(served, method+" "+path)
		} else if path = route.pattern; !strings.HasSuffix(path, "}/mcp") { // the same again
			served = append(served, "DELETE "+path, "GET "+path, "POST "+path)
		}
	}
	for path, methods := range c.Paths {
		for method := range methods {
			if m := strings.ToUpper(method); slices.Contains([]string{"GET", "POST", "DELETE", "PUT", "PATCH"}, m) {
				described = append(described, m+" "+path)
				if !seen[m+" "+path] && !strings.HasPrefix(path, "/mcp") {
					t.Errorf("%s %s is described and was not tried", m, path)
				}
			}
		}
	}
	slices.Sort(served)
	slices.Sort(described)
	if diff := cmp.Diff(served, described); diff != "" {
		t.Errorf("served and described: %s", diff)
	}
}

// events reads one call's event from the stream.
func events(t *testing.T, c *contract, r *Registry, url string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", url+"/api/v1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Scan() // subscribed
	if _, err := r.Call(ctx, "x", "echo", json.RawMessage(`{"text":"hi"}`)); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			c.check(t, "/api/v1/events", "get", 200, res.Header.Get("Content-Type"), data)
			if strings.Contains(data, "call.finished") {
				return
			}
		}
	}
	t.Errorf("no event came: %v", lines.Err())
}
