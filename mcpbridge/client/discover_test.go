package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/sandboxd/sandboxd/mcpbridge/client"
	"github.com/sandboxd/sandboxd/mcpbridge/internal/fake"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/sandbox"
)

// modern is a server that knows the revision 2026-07-28 alone: rest handles
// what is not server/discover.
func modern(rest func(*fake.Request, map[string]json.RawMessage) (json.RawMessage, *fake.Error)) *fake.Server {
	return &fake.Server{NoInitialize: true, Concurrent: true, Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
		var p struct {
			Meta map[string]json.RawMessage `json:"_meta"`
		}
		_ = json.Unmarshal(r.Params, &p)
		switch {
		case r.ID == nil:
			return rest(r, nil)
		case string(p.Meta["io.modelcontextprotocol/protocolVersion"]) != `"2026-07-28"`:
			return nil, &fake.Error{Code: -32022, Message: "unsupported protocol version"}
		case r.Method == "server/discover":
			return json.RawMessage(`{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true}},"instructions":"i"}`), nil
		}
		return rest(r, p.Meta)
	}}
}

func connectModern(t *testing.T, s *fake.Server, opts client.Options) *client.Client {
	t.Helper()
	c, err := client.Connect(t.Context(), fake.Start(s.Guest), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestModernServer(t *testing.T) {
	for _, first := range []bool{false, true} {
		s := modern(func(r *fake.Request, meta map[string]json.RawMessage) (json.RawMessage, *fake.Error) {
			if r.ID == nil {
				return nil, nil
			}
			if string(meta["io.modelcontextprotocol/clientCapabilities"]) != `{"roots":{}}` || string(meta["x"]) != `1` {
				return nil, &fake.Error{Code: 1, Message: string(r.Params)}
			}
			return r.Params, nil
		})
		c := connectModern(t, s, client.Options{Discover: first})
		if v := c.Init(); v.ProtocolVersion != client.Stateless || !strings.Contains(string(v.Raw), `"instructions":"i"`) {
			t.Errorf("negotiated %+v", v)
		}
		got, err := c.Call(t.Context(), "tools/call", []byte(`{"_meta":{"x":1,"io.modelcontextprotocol/protocolVersion":"1"},"n":9007199254740993,"f":1.50}`), nil)
		if err != nil || !strings.HasSuffix(string(got), `,"n":9007199254740993,"f":1.50}`) || strings.Contains(string(got), `:"1"`) {
			t.Errorf("%s, %v", got, err)
		}
		if got, err := c.Call(t.Context(), "ping", nil, nil); err != nil || string(got) != `{}` {
			t.Errorf("ping: %s, %v", got, err)
		}
	}
}

// A server of the older era that ends of a request it does not know never sees
// one.
func TestProbeIsHarmless(t *testing.T) {
	old := &fake.Server{Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
		if r.Method == "server/discover" {
			t.Error("server/discover was asked of a process that answered initialize")
		}
		return nil, nil
	}}
	c := connectModern(t, old, client.Options{})
	if v := c.Init().ProtocolVersion; v != "2025-11-25" {
		t.Errorf("negotiated %s", v)
	}
	// One that refuses both says its own words.
	refuses := &fake.Server{NoInitialize: true, Handle: func(*fake.Request) (json.RawMessage, *fake.Error) {
		return nil, &fake.Error{Code: -32000, Message: "no key"}
	}}
	if _, err := client.Connect(t.Context(), fake.Start(refuses.Guest), client.Options{}); err == nil || !strings.Contains(err.Error(), "initialize") || !strings.Contains(err.Error(), "no key") {
		t.Errorf("a server that refuses everything: %v", err)
	}
	exits := func(in io.Reader, _, _ io.Writer) sandbox.Exit {
		_, _ = relay.NewReader(in, 1<<20).Next()
		return sandbox.Exit{Cause: sandbox.Exited, Code: 3}
	}
	var exit *relay.ExitError
	if _, err := client.Connect(t.Context(), fake.Start(exits), client.Options{Discover: true}); !errors.As(err, &exit) {
		t.Errorf("a server that ended: %v", err)
	}
}

func TestInputRounds(t *testing.T) {
	var mu sync.Mutex
	ids := map[string]bool{}
	s := modern(func(r *fake.Request, meta map[string]json.RawMessage) (json.RawMessage, *fake.Error) {
		var p struct {
			Name           string
			RequestState   *string
			InputResponses map[string]json.RawMessage
		}
		_ = json.Unmarshal(r.Params, &p)
		mu.Lock()
		if r.ID != nil && ids[string(r.ID)] {
			t.Errorf("id %s came twice", r.ID)
		}
		ids[string(r.ID)] = true
		mu.Unlock()
		tok := meta["progressToken"]
		if r.ID != nil && tok != nil {
			r.Write(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1}}`, tok))
		}
		switch {
		case p.Name == "endless":
			return json.RawMessage(`{"resultType":"input_required","requestState":"s","inputRequests":{"a":{"method":"roots/list"}}}`), nil
		case p.Name == "busy" && p.RequestState == nil:
			return json.RawMessage(`{"resultType":"input_required","requestState":"later"}`), nil
		case p.Name == "stateless" && p.InputResponses != nil && p.RequestState != nil:
			return nil, &fake.Error{Code: 1, Message: "a state that was never given"}
		case p.Name == "many":
			var all []string
			for i := range 100 {
				all = append(all, fmt.Sprintf(`"k%d":{"method":"roots/list"}`, i))
			}
			return json.RawMessage(`{"resultType":"input_required","inputRequests":{` + strings.Join(all, ",") + `}}`), nil
		case p.Name == "unmarked":
			return json.RawMessage(`{"content":[],"inputRequests":{"a":{"method":"roots/list"}}}`), nil
		case p.InputResponses == nil && p.Name != "busy":
			state := `"requestState":"opaque \u0041",`
			if p.Name == "stateless" {
				state = ""
			}
			return json.RawMessage(`{"resultType":"input_required",` + state + `"inputRequests":{"who":{"method":"elicitation/create","params":{"message":"?"}},"r":{"method":"roots/list"}}}`), nil
		}
		return json.RawMessage(fmt.Sprintf(`{"answers":%d,"who":%s,"state":%q}`, len(p.InputResponses), or(p.InputResponses["who"], "null"), deref(p.RequestState))), nil
	})
	c := connectModern(t, s, client.Options{Request: func(c *client.Client, method string, id, params json.RawMessage) bool {
		if method != "elicitation/create" {
			return false
		}
		return c.Respond(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","n":9007199254740993}}`, id))
	}})
	call := func(name string) (string, error) {
		raw, err := c.Call(t.Context(), "tools/call", fmt.Appendf(nil, `{"name":%q}`, name), nil)
		return string(raw), err
	}
	for name, want := range map[string]string{
		"ask":       `{"answers":2,"who":{"action":"accept","n":9007199254740993},"state":"opaque A"}`,
		"stateless": `{"answers":2,"who":{"action":"accept","n":9007199254740993},"state":""}`,
		"busy":      `{"answers":0,"who":null,"state":"later"}`,
		"unmarked":  `{"content":[],"inputRequests":{"a":{"method":"roots/list"}}}`,
	} {
		if got, err := call(name); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", name, got, err, want)
		}
	}
	for _, name := range []string{"endless", "many"} {
		if _, err := call(name); !errors.Is(err, client.ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Whoever cannot be asked is told so, and the caller's own answer counts.
	var rpc *client.RPCError
	no := client.Caller{Request: func(*client.Client, string, json.RawMessage, json.RawMessage) bool { return false }}
	if _, err := c.CallFor(t.Context(), no, "tools/call", []byte(`{"name":"ask"}`), nil); !errors.As(err, &rpc) || rpc.Code != -32021 {
		t.Errorf("a caller that cannot be asked: %v", err)
	}
	// Progress goes on under each round's own token.
	progress := make(chan string, 8)
	p := c.NewProgress(func(params json.RawMessage) { progress <- string(params) })
	if _, err := c.Call(t.Context(), "tools/call", fmt.Appendf(nil, `{"name":"ask","_meta":{"progressToken":%s}}`, p.Token()), p); err != nil {
		t.Error(err)
	}
	if a, b := <-progress, <-progress; a == b {
		t.Errorf("one token for two requests: %s", a)
	}
}

func or(raw json.RawMessage, d string) string {
	if raw == nil {
		return d
	}
	return string(raw)
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func TestModernSubscriptions(t *testing.T) {
	ended := make(chan string, 4)
	s := modern(func(r *fake.Request, meta map[string]json.RawMessage) (json.RawMessage, *fake.Error) {
		switch {
		case r.Method == "notifications/cancelled":
			ended <- string(r.Params)
		case r.Method != "subscriptions/listen":
		case strings.Contains(string(r.Params), "refused"):
			return nil, &fake.Error{Code: -32002, Message: "no such resource"}
		default:
			what := `tools/list_changed","params":{`
			if strings.Contains(string(r.Params), `["test://a"]`) {
				what = `resources/updated","params":{"uri":"test://a",`
			}
			m := fmt.Sprintf(`"_meta":{"io.modelcontextprotocol/subscriptionId":%s}}}`, r.ID)
			r.Write(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":{},` + m)
			r.Write(`{"jsonrpc":"2.0","method":"notifications/` + what + m)
		}
		return nil, nil
	})
	heard := make(chan string, 8)
	c := connectModern(t, s, client.Options{Notify: func(method string, params json.RawMessage) { heard <- method + string(params) }})
	if got := <-heard; got != "notifications/tools/list_changed" {
		t.Errorf("heard %s", got)
	}
	if _, err := c.Call(t.Context(), "resources/subscribe", []byte(`{"uri":"test://a"}`), nil); err != nil {
		t.Fatal(err)
	}
	if got := <-heard; got != `notifications/resources/updated{"uri":"test://a"}` {
		t.Errorf("heard %s", got)
	}
	var rpc *client.RPCError
	if _, err := c.Call(t.Context(), "resources/subscribe", []byte(`{"uri":"refused"}`), nil); !errors.As(err, &rpc) || rpc.Code != -32002 {
		t.Errorf("a refused subscription: %v", err)
	}
	if _, err := c.Call(t.Context(), "resources/unsubscribe", []byte(`{"uri":"test://a"}`), nil); err != nil {
		t.Fatal(err)
	}
	if got := <-ended; !strings.Contains(got, "requestId") {
		t.Errorf("the server was told %s", got)
	}
}
