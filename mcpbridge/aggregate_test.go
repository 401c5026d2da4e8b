package mcpbridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandboxd/sandboxd/mcpbridge/client"
	"github.com/sandboxd/sandboxd/mcpbridge/internal/fake"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/mcpbridge/remote"
	"github.com/sandboxd/sandboxd/sandbox"
)

type writeCloser struct{ io.Writer }

func (writeCloser) Close() error { return nil }

// sdkServer is a server of go-sdk's with every feature, as a guest.
func sdkServer(in io.Reader, out, _ io.Writer) sandbox.Exit {
	err := newSDKServer().Run(context.Background(), &mcp.IOTransport{Reader: io.NopCloser(in), Writer: writeCloser{out}})
	if err != nil && !errors.Is(err, io.EOF) {
		return sandbox.Exit{Cause: sandbox.Exited, Code: 1, Detail: err.Error()}
	}
	return sandbox.Exit{Cause: sandbox.Exited}
}

func newSDKServer() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "full", Version: "1"}, &mcp.ServerOptions{
		CompletionHandler: func(_ context.Context, r *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
			return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: []string{r.Params.Ref.Name + r.Params.Ref.URI + "!" + r.Params.Argument.Value}}}, nil
		},
		SubscribeHandler:   func(context.Context, *mcp.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
	})
	read := func(_ context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: r.Params.URI, Text: "text of " + r.Params.URI}}}, nil
	}
	s.AddResource(&mcp.Resource{Name: "a", URI: "test://a"}, read)
	s.AddResourceTemplate(&mcp.ResourceTemplate{Name: "t", URITemplate: "test://t/{x}"}, read)
	s.AddPrompt(&mcp.Prompt{Name: "ask", Arguments: []*mcp.PromptArgument{{Name: "q"}}}, func(_ context.Context, r *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.ResourceLink{URI: "test://a", Name: r.Params.Arguments["q"]}}}}, nil
	})
	s.AddTool(&mcp.Tool{Name: "work", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		var args struct{ Do string }
		if err := json.Unmarshal(r.Params.Arguments, &args); err != nil {
			return nil, err
		}
		text := ""
		switch args.Do {
		case "sample":
			res, err := r.Session.CreateMessage(ctx, &mcp.CreateMessageParams{MaxTokens: 1, Messages: []*mcp.SamplingMessage{}}) //nolint:staticcheck // what servers do
			if err != nil {
				return nil, err
			}
			text = res.Content.(*mcp.TextContent).Text
		case "elicit":
			res, err := r.Session.Elicit(ctx, &mcp.ElicitParams{Message: "who?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"}}}`)})
			if err != nil {
				return nil, err
			}
			text = fmt.Sprint(res.Action, res.Content["name"])
		case "roots":
			res, err := r.Session.ListRoots(ctx, nil) //nolint:staticcheck // what servers do
			if err != nil {
				return nil, err
			}
			for _, root := range res.Roots {
				text += root.URI
			}
		case "log":
			if err := r.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "warning", Logger: "db", Data: "slow"}); err != nil { //nolint:staticcheck // what servers do
				return nil, err
			}
		case "update":
			if err := s.ResourceUpdated(ctx, &mcp.ResourceUpdatedNotificationParams{URI: "test://a"}); err != nil {
				return nil, err
			}
		case "more":
			s.AddResource(&mcp.Resource{Name: "b", URI: "test://b"}, read)
			s.AddPrompt(&mcp.Prompt{Name: "other"}, nil)
		case "url":
			res, err := r.Session.Elicit(ctx, &mcp.ElicitParams{Mode: "url", Message: "go there", URL: "https://example.com/x", ElicitationID: "e1"})
			if err != nil {
				return nil, err
			}
			text = res.Action
		case "progress", "wait":
			if err := r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: 1, Message: "half"}); err != nil {
				return nil, err
			}
			if args.Do == "progress" {
				break
			}
			<-ctx.Done()
			return nil, s.ResourceUpdated(context.WithoutCancel(ctx), &mcp.ResourceUpdatedNotificationParams{URI: "test://a"})
		case "structured":
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "1.5"}}, StructuredContent: json.RawMessage(`{"n":1.50}`)}, nil
		case "tools":
			s.AddTool(&mcp.Tool{Name: "other", InputSchema: json.RawMessage(`{"type":"object"}`)}, nil)
		case "link":
			return &mcp.CallToolResult{Content: []mcp.Content{
				&mcp.ResourceLink{URI: "test://a", Name: "uri"},
				&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "test://a", Text: `"uri"`}},
			}}, nil
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil
	})
	return s
}

func sdkStart(context.Context) (sandbox.Sandbox, error) { return fake.Start(sdkServer), nil }

// receive waits for one value, so that a test that gets none says which.
func receive[T any](t testing.TB, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(20 * time.Second):
		t.Fatalf("%s did not come", what)
		panic("unreachable")
	}
}

func toolText(t testing.TB, res *mcp.CallToolResult, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if res.IsError {
		t.Fatalf("the tool failed: %s", res.Content[0].(*mcp.TextContent).Text)
	}
	return res.Content[0].(*mcp.TextContent).Text
}

func TestAggregateEveryFeature(t *testing.T) {
	for _, sharing := range []Sharing{"", SharingSession, SharingTenant} {
		for _, version := range []string{"2025-06-18", "2025-11-25", client.Stateless} {
			t.Run(string(sharing)+"/"+version, func(t *testing.T) { everyFeature(t, sdkStart, sharing, version) })
		}
	}
}

// The same of servers on the network, over both transports.
func TestAggregateEveryFeatureOfRemoteServers(t *testing.T) {
	get := func(*http.Request) *mcp.Server { return newSDKServer() }
	for transport, h := range map[remote.Transport]http.Handler{remote.StreamableHTTP: mcp.NewStreamableHTTPHandler(get, nil), remote.SSE: mcp.NewSSEHandler(get, nil)} {
		t.Run("transport "+string(transport), func(t *testing.T) {
			srv := httptest.NewServer(h)
			t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() }) // after the registry, which says goodbye
			everyFeature(t, func(ctx context.Context) (sandbox.Sandbox, error) {
				s, err := remote.Start(ctx, remote.Config{URL: srv.URL, Transport: transport, Client: &http.Client{Transport: &http.Transport{}}})
				if err != nil {
					return nil, err
				}
				return s, nil
			}, SharingSession, "2025-11-25")
		})
	}
}

func everyFeature(t *testing.T, start func(context.Context) (sandbox.Sandbox, error), sharing Sharing, version string) {
	r := newRegistry(t, Config{},
		Server{Name: "my one", Start: start, Required: true, Sharing: sharing},
		Server{Name: "two", Start: start, Required: true, Sharing: sharing})
	logs, updates := make(chan *mcp.LoggingMessageParams, 8), make(chan string, 8) //nolint:staticcheck // what clients have
	resources, prompts := make(chan struct{}, 8), make(chan struct{}, 8)
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		CreateMessageHandler: func(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) { //nolint:staticcheck // what clients have
			return &mcp.CreateMessageResult{Model: "m", Role: "assistant", Content: &mcp.TextContent{Text: "sampled"}}, nil //nolint:staticcheck // what clients have
		},
		ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": "me"}}, nil
		},
		LoggingMessageHandler:      func(_ context.Context, r *mcp.LoggingMessageRequest) { logs <- r.Params }, //nolint:staticcheck // what clients have
		ResourceUpdatedHandler:     func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) { updates <- r.Params.URI },
		ResourceListChangedHandler: func(context.Context, *mcp.ResourceListChangedRequest) { resources <- struct{}{} },
		PromptListChangedHandler:   func(context.Context, *mcp.PromptListChangedRequest) { prompts <- struct{}{} },
	})
	c.AddRoots(&mcp.Root{URI: "file:///mine"}) //nolint:staticcheck // what clients have
	hc := &http.Client{Transport: &http.Transport{}}
	defer hc.CloseIdleConnections()
	cs, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: serve(t, r).URL + "/mcp", HTTPClient: hc, MaxRetries: -1}, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	defer cs.Close()
	if got := cs.InitializeResult().ProtocolVersion; got != version {
		t.Errorf("negotiated %s, want %s", got, version)
	}
	call := func(do string) string {
		t.Helper()
		params := &mcp.CallToolParams{Name: "mcp_my_one_work", Arguments: map[string]any{"do": do}}
		if version == client.Stateless { // the level comes with each request
			params.Meta = mcp.Meta{metaLevel: "warning"}
		}
		res, err := cs.CallTool(t.Context(), params)
		return toolText(t, res, err)
	}
	for do, want := range map[string]string{"sample": "sampled", "elicit": "acceptme", "roots": "file:///mine"} {
		if got := call(do); got != want {
			t.Errorf("%s gave %q, want %q", do, got, want)
		}
	}
	var names []string
	for p, err := range cs.Prompts(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, p.Name)
	}
	for res, err := range cs.Resources(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, res.URI)
	}
	for res, err := range cs.ResourceTemplates(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, res.URITemplate)
	}
	want := []string{
		"mcp_my_one_ask", "mcp_two_ask", "mcp-my-one+test://a", "mcp-two+test://a",
		"mcp-my-one+test://t/{x}", "mcp-two+test://t/{x}",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
	for _, uri := range []string{"mcp-two+test://a", "mcp-my-one+test://t/x%20y"} {
		res, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
		_, own, _ := strings.Cut(uri, "+")
		if err != nil || res.Contents[0].URI != uri || res.Contents[0].Text != "text of "+own {
			t.Errorf("read %s: %+v, %v", uri, res, err)
		}
	}
	for _, uri := range []string{"test://a", "mcp-three+test://a", "mcp-my_one+test://a", "mcp-two"} {
		if _, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri}); err == nil {
			t.Errorf("%s was read", uri)
		}
	}
	prompt, err := cs.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "mcp_two_ask", Arguments: map[string]string{"q": "why"}})
	if err != nil || prompt.Messages[0].Content.(*mcp.ResourceLink).URI != "mcp-two+test://a" || prompt.Messages[0].Content.(*mcp.ResourceLink).Name != "why" {
		t.Errorf("prompt: %+v, %v", prompt, err)
	}
	for _, ref := range []*mcp.CompleteReference{{Type: "ref/prompt", Name: "mcp_two_ask"}, {Type: "ref/resource", URI: "mcp-two+test://t/{x}"}} {
		res, err := cs.Complete(t.Context(), &mcp.CompleteParams{Ref: ref, Argument: mcp.CompleteParamsArgument{Name: "q", Value: "v"}})
		if err != nil || !cmp.Equal(res.Completion.Values[0], map[string]string{"ref/prompt": "ask!v", "ref/resource": "test://t/{x}!v"}[ref.Type]) {
			t.Errorf("completion: %+v, %v", res, err)
		}
	}
	res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "mcp_two_work", Arguments: map[string]any{"do": "link"}})
	if err != nil {
		t.Fatal(err)
	}
	link, embedded := res.Content[0].(*mcp.ResourceLink), res.Content[1].(*mcp.EmbeddedResource)
	if link.URI != "mcp-two+test://a" || link.Name != "uri" || embedded.Resource.URI != "mcp-two+test://a" || embedded.Resource.Text != `"uri"` {
		t.Errorf("links: %+v %+v", link, embedded.Resource)
	}
	if err := cs.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "mcp-my-one+test://a"}); err != nil {
		t.Fatal(err)
	}
	if version != client.Stateless {
		if err := cs.SetLoggingLevel(t.Context(), &mcp.SetLoggingLevelParams{Level: "warning"}); err != nil { //nolint:staticcheck // what clients do
			t.Fatal(err)
		}
	}
	// Without sessions, a server of one's own lives for a request alone.
	if alone := version == client.Stateless && sharing == SharingSession; !alone {
		call("update")
		if got := receive(t, "an update", updates); got != "mcp-my-one+test://a" {
			t.Errorf("updated %s", got)
		}
	}
	call("log")
	if got := receive(t, "a log message", logs); got.Logger != "my_one/db" || got.Data != "slow" {
		t.Errorf("logged %+v", got)
	}
	call("more")
	if version != client.Stateless || sharing != SharingSession {
		receive(t, "resources/list_changed", resources)
		receive(t, "prompts/list_changed", prompts)
	}
	if err := cs.Unsubscribe(t.Context(), &mcp.UnsubscribeParams{URI: "mcp-my-one+test://a"}); err != nil {
		t.Error(err)
	}
}

// asking is a server whose one tool asks its client and answers with what
// it was told, once told to.
func asking(release <-chan struct{}) *fake.Server {
	var mu sync.Mutex
	var waiting []func(string)
	return &fake.Server{Tools: `[{"name":"a","inputSchema":{"type":"object"}}]`, Concurrent: true, Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
		if r.Method == "tools/call" {
			answer := make(chan string, 1)
			mu.Lock()
			waiting = append(waiting, func(s string) { answer <- s })
			mu.Unlock()
			<-release
			r.Write(`{"jsonrpc":"2.0","id":77,"method":"elicitation/create","params":{"message":"secret?"}}`)
			return json.RawMessage(fmt.Sprintf(`{"content":[{"type":"text","text":%q}]}`, <-answer)), nil
		}
		if r.Method == "" {
			mu.Lock()
			for _, f := range waiting {
				f(string(r.Raw))
			}
			waiting = nil
			mu.Unlock()
		}
		return nil, nil
	}}
}

// A server that two clients share may not ask one of them what the other's
// call is about.
func TestSharedServerCannotAskTheWrongClient(t *testing.T) {
	release := make(chan struct{})
	start, _ := starts(func() *fake.Server { return asking(release) })
	r := newRegistry(t, Config{}, Server{Name: "x", Start: start, Required: true})
	url := serve(t, r).URL + "/mcp"
	asked := make(chan string, 4)
	one := connect(t, url, &mcp.ClientOptions{ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		asked <- "one"
		return &mcp.ElicitResult{Action: "decline"}, nil
	}})
	var wg sync.WaitGroup
	defer wg.Wait()
	answers := make(chan string, 2)
	wg.Go(func() {
		res, err := one.CallTool(t.Context(), &mcp.CallToolParams{Name: "mcp_x_a", Arguments: map[string]any{}})
		if err != nil {
			t.Error(err)
			return
		}
		answers <- res.Content[0].(*mcp.TextContent).Text
	})
	wg.Go(func() {
		res, err := r.Call(t.Context(), "x", "a", nil)
		if err != nil {
			t.Error(err)
		}
		answers <- string(res.Content)
	})
	for e := r.entry("x"); ; time.Sleep(time.Millisecond) {
		e.flight.mu.Lock()
		n := len(e.flight.names)
		e.flight.mu.Unlock()
		if n == 2 {
			break
		}
	}
	if got := r.InFlight("x"); !cmp.Equal(got, []string{"a"}) {
		t.Errorf("in flight: %v", got)
	}
	release <- struct{}{}
	if got := receive(t, "an answer", answers); !strings.Contains(got, "-32601") {
		t.Errorf("the server got %s", got)
	}
	select {
	case who := <-asked:
		t.Errorf("client %s was asked though another call was open", who)
	default:
	}
	close(release) // what is left is one call alone
}

// The wait for a person does not count as the server's.
func TestAskingStopsTheClock(t *testing.T) {
	release := make(chan struct{})
	close(release)
	start, _ := starts(func() *fake.Server { return asking(release) })
	r := newRegistry(t, Config{}, Server{Name: "x", Start: start, Required: true, CallTimeout: time.Second})
	cs := connect(t, serve(t, r).URL+"/mcp", &mcp.ClientOptions{ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		time.Sleep(1500 * time.Millisecond) // a person: it is the time itself that is tested
		return &mcp.ElicitResult{Action: "decline"}, nil
	}})
	res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "mcp_x_a", Arguments: map[string]any{}})
	if got := toolText(t, res, err); !strings.Contains(got, "decline") {
		t.Errorf("got %s", got)
	}
}

func TestPages(t *testing.T) {
	s := &aggSession{lists: map[string]*pages{}}
	var items [][]byte
	for i := range 2*pageItems + 1 {
		items = append(items, fmt.Appendf(nil, "%d", i))
	}
	var got []int
	params := []byte(`{}`)
	for range 5 {
		line := s.page("m", "list", []byte(`1`), params, func() [][]byte { return items })
		var res struct {
			Result struct {
				List       []int
				NextCursor string
			}
		}
		if err := json.Unmarshal(line, &res); err != nil {
			t.Fatal(err)
		}
		got = append(got, res.Result.List...)
		if res.Result.NextCursor == "" {
			break
		}
		params = fmt.Appendf(nil, `{"cursor":%q}`, res.Result.NextCursor)
	}
	if len(got) != len(items) || got[len(got)-1] != len(items)-1 {
		t.Errorf("%d items came, the last %d", len(got), got[len(got)-1])
	}
	s.page("m", "list", []byte(`1`), nil, func() [][]byte { return items })
	for _, bad := range []string{`"0.1000"`, `"1"`, `"1.-1"`, `"1.99999"`, `7`, `"1.1e3"`, `"x.y"`, `""`} {
		line := s.page("m", "list", []byte(`1`), []byte(`{"cursor":`+bad+`}`), nil)
		if m, err := relay.Peek(line); err != nil || m.Error.End == 0 {
			t.Errorf("cursor %s: %s", bad, line)
		}
	}
}
