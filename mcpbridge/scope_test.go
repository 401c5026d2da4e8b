package mcpbridge

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandboxd/sandboxd/mcpbridge/internal/fake"
)

const twoTools = `[{"name":"read_a","inputSchema":{"type":"object"}},{"name":"write_a","inputSchema":{"type":"object"}}]`

// scoped serves two servers for three clients, whose names are their tokens.
func scoped(t *testing.T) (*Registry, string) {
	t.Helper()
	clients := map[string]*Scope{
		"reader": {Name: "reader", Servers: []string{"My One"}, Tools: []string{"read_*", "two:*"}},
		"both":   {Name: "both", Servers: []string{"*"}, Tools: []string{"my_one:write_?", "two:read_[ab]"}},
		"none":   {Name: "none"},
		"whole":  {Name: "whole", Servers: []string{"*"}},
	}
	start := func() func() *fake.Server {
		return func() *fake.Server {
			return &fake.Server{Tools: twoTools, Concurrent: true, Capabilities: `{"tools":{"listChanged":true},"resources":{}}`, Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
				switch r.Method {
				case "resources/list":
					return json.RawMessage(`{"resources":[{"uri":"test://a","name":"a"}]}`), nil
				case "resources/read":
					return json.RawMessage(`{"contents":[]}`), nil
				case "tools/call":
					return json.RawMessage(`{"content":[{"type":"text","text":"called"}]}`), nil
				}
				return nil, nil
			}}
		}
	}
	one, _ := starts(start())
	two, _ := starts(start())
	other := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	r := newRegistry(t, Config{Handlers: map[string]http.Handler{"/other": other}, Authorize: func(req *http.Request) (*Scope, error) {
		if s := clients[strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer ")]; s != nil {
			return s, nil
		}
		return nil, errors.New("unknown")
	}}, Server{Name: "my one", Start: one, Required: true}, Server{Name: "two", Start: two, Required: true, Sharing: SharingTenant})
	return r, serve(t, r).URL
}

type bearer struct{ token string }

func (b bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+b.token)
	return http.DefaultTransport.RoundTrip(req)
}

func TestScopes(t *testing.T) {
	_, url := scoped(t)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	for _, tt := range []struct {
		token            string
		tools, resources []string
		connectors       string
	}{
		{"reader", []string{"mcp_my_one_read_a"}, []string{"mcp-my-one+test://a"}, "my_one read_a"},
		{"both", []string{"mcp_my_one_write_a", "mcp_two_read_a"}, []string{"mcp-my-one+test://a", "mcp-two+test://a"}, "my_one write_a two read_a"},
		{"none", nil, nil, ""},
	} {
		for _, version := range []string{"2025-11-25", "2026-07-28"} {
			c := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, nil)
			cs, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url + "/mcp", HTTPClient: &http.Client{Transport: bearer{tt.token}}, MaxRetries: -1}, &mcp.ClientSessionOptions{ProtocolVersion: version})
			if err != nil {
				t.Fatal(err)
			}
			var tools, resources []string
			for tool, err := range cs.Tools(t.Context(), nil) {
				if err != nil {
					t.Fatal(err)
				}
				tools = append(tools, tool.Name)
			}
			for res, err := range cs.Resources(t.Context(), nil) {
				if err != nil {
					t.Fatal(err)
				}
				resources = append(resources, res.URI)
			}
			if diff := cmp.Diff([][]string{tt.tools, tt.resources}, [][]string{tools, resources}); diff != "" {
				t.Errorf("%s %s: %s", tt.token, version, diff)
			}
			for _, name := range []string{"mcp_my_one_read_a", "mcp_my_one_write_a", "mcp_two_read_a", "mcp_two_write_a"} {
				_, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: map[string]any{}})
				if want := strings.Contains(strings.Join(tt.tools, " "), name); (err == nil) != want {
					t.Errorf("%s %s: call of %s: %v", tt.token, version, name, err)
				}
			}
			_, err = cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "mcp-two+test://a"})
			if want := len(tt.resources) == 2; (err == nil) != want {
				t.Errorf("%s %s: reading of two's: %v", tt.token, version, err)
			}
			_ = cs.Close()
		}
		auth := []string{"Authorization", "Bearer " + tt.token}
		_, body, _ := do(t, "GET", url+"/api/v1/automation/connectors", "", auth...)
		var list []Descriptor
		if err := json.Unmarshal([]byte(body), &list); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, d := range list {
			got = append(got, d.Name)
			for _, a := range d.Actions {
				got = append(got, a.Key)
			}
		}
		if strings.Join(got, " ") != tt.connectors {
			t.Errorf("%s: connectors %v", tt.token, got)
		}
		for _, server := range []string{"my_one", "two"} {
			seen := strings.Contains(tt.connectors, server)
			for _, path := range []string{"/api/v1/automation/connectors/" + server, "/mcp/" + server} {
				status, body, _ := do(t, "GET", url+path, "", auth...)
				if (status != 404) != seen {
					t.Errorf("%s %s: %d %s", tt.token, path, status, body)
				}
			}
			for _, key := range []string{"read_a", "write_a"} {
				may := strings.Contains(strings.Join(tt.tools, " "), "mcp_"+server+"_"+key)
				status, body, _ := do(t, "POST", url+"/api/v1/automation/connectors/"+server+"/actions/"+key, `{}`, auth...)
				if (status == 200) != may {
					t.Errorf("%s invokes %s %s: %d %s", tt.token, server, key, status, body)
				}
			}
		}
		if _, body, _ := do(t, "GET", url+"/api/v1/servers", "", auth...); strings.Contains(body, `"two"`) != strings.Contains(tt.connectors, "two") {
			t.Errorf("%s: servers %s", tt.token, body)
		}
	}
	for token, want := range map[string]int{"whole": 204, "both": 404, "reader": 404, "none": 404, "guess": 401} {
		if status, _, _ := do(t, "GET", url+"/other", "", "Authorization", "Bearer "+token); status != want {
			t.Errorf("%s at another handler: %d, want %d", token, status, want)
		}
	}
	if status, _, _ := do(t, "GET", url+"/api/v1/servers", "", "Authorization", "Bearer guess"); status != 401 {
		t.Errorf("an unknown token: %d", status)
	}
}

// A server's own endpoint keeps to the scope too, whoever shares its sandbox.
func TestScopesOfRawEndpoints(t *testing.T) {
	_, url := scoped(t)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	for server, want := range map[string]string{"my_one": "write_a", "two": "read_a"} {
		c := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, nil)
		cs, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url + "/mcp/" + server, HTTPClient: &http.Client{Transport: bearer{"both"}}, MaxRetries: -1}, nil)
		if err != nil {
			t.Fatal(err)
		}
		list, err := cs.ListTools(t.Context(), nil)
		if err != nil || len(list.Tools) != 1 || list.Tools[0].Name != want {
			t.Errorf("%s: %+v, %v", server, list, err)
		}
		for _, name := range []string{"read_a", "write_a"} {
			if _, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: map[string]any{}}); (err == nil) != (name == want) {
				t.Errorf("%s: call of %s: %v", server, name, err)
			}
		}
		// Its id is no use to another client.
		if status, body, _ := do(t, "POST", url+"/mcp/"+server, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, "Authorization", "Bearer reader", "Mcp-Session-Id", cs.ID()); status != 404 {
			t.Errorf("%s: another client used the session: %d %s", server, status, body)
		}
		_ = cs.Close()
	}
}

// A client hears of changes to what it sees, and of no other.
func TestScopesOfEvents(t *testing.T) {
	s := &Scope{Servers: []string{"a"}, Tools: []string{"read_*"}}
	for _, tt := range []struct {
		ev   Event
		seen bool
	}{
		{Event{Type: EventTools, Server: "a", Added: []string{"write_x"}}, false},
		{Event{Type: EventTools, Server: "a", Added: []string{"write_x", "read_x"}}, true},
		{Event{Type: EventTools, Server: "b", Added: []string{"read_x"}}, false},
		{Event{Type: EventCall, Server: "a", Action: "write_x"}, false},
		{Event{Type: EventCall, Server: "a", Action: "read_x"}, true},
		{Event{Type: EventReady, Server: "a", Tools: 7}, true},
		{Event{Type: EventStopped, Server: "b"}, false},
	} {
		got, seen := s.event(tt.ev)
		if seen != tt.seen || seen && (strings.Contains(strings.Join(got.Added, " "), "write") || got.Tools != 0) {
			t.Errorf("%+v: %v %+v", tt.ev, seen, got)
		}
		if _, all := (*Scope)(nil).event(tt.ev); !all {
			t.Errorf("%+v is hidden from a client without bounds", tt.ev)
		}
	}
	for _, bad := range []string{"[", "two:", "", "a:[x"} {
		if (&Scope{Tools: []string{bad}}).Validate() == nil {
			t.Errorf("the pattern %q passes", bad)
		}
	}
}
