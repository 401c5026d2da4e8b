package outbound_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandboxd/sandboxd/mcpbridge/outbound"
)

// deploy has a human gate in the middle.
func deploy() outbound.Workflow {
	return outbound.Workflow{
		ID: "deploy", Title: "Deploy", Description: "Brings a version out",
		Inputs: []outbound.Input{
			{Name: "version", Description: "which", Required: true},
			{Name: "size", Type: "integer", Default: json.RawMessage(`1`)},
		},
		OutputSchema: json.RawMessage(`{"type":"object","required":["deployed"],"properties":{"deployed":{"type":"string"}}}`),
		Runner: outbound.RunnerFunc(func(ctx context.Context, inputs json.RawMessage, caller outbound.Caller) (json.RawMessage, error) {
			var in struct{ Version string }
			if err := json.Unmarshal(inputs, &in); err != nil {
				return nil, err
			}
			caller.Progress(outbound.Progress{Done: 1, Total: 3, Message: "built"})
			a, err := caller.Ask(ctx, outbound.Question{
				Message: "Bring out " + in.Version + "?",
				Schema:  json.RawMessage(`{"type":"object","required":["where"],"properties":{"where":{"type":"string","maxLength":9}}}`),
			})
			switch {
			case err != nil:
				return nil, err
			case a.Action != outbound.Accept:
				return nil, fmt.Errorf("somebody chose %s", a.Action)
			}
			caller.Progress(outbound.Progress{Done: 2, Total: 3, Message: "asked"})
			var where struct{ Where string }
			if err := json.Unmarshal(a.Content, &where); err != nil {
				return nil, err
			}
			return fmt.Appendf(nil, "{\"deployed\":\n\"%s at %s\", \"big\":90071992547409931}", in.Version, where.Where), nil
		}),
	}
}

func TestWorkflowsAreTools(t *testing.T) {
	var mu sync.Mutex
	var steps []string
	answer := map[string]any{"where": "home"}
	action := "accept"
	opts := func() *mcp.ClientOptions {
		return &mcp.ClientOptions{
			ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				if r.Params.Mode != "form" || r.Params.Message != "Bring out v2?" {
					t.Errorf("asked %+v", r.Params)
				}
				mu.Lock()
				defer mu.Unlock()
				if action != "accept" {
					return &mcp.ElicitResult{Action: action}, nil
				}
				return &mcp.ElicitResult{Action: action, Content: answer}, nil
			},
			ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
				mu.Lock()
				defer mu.Unlock()
				steps = append(steps, fmt.Sprintf("%v %v/%v %s", r.Params.ProgressToken, r.Params.Progress, r.Params.Total, r.Params.Message))
			},
		}
	}
	eachClient(t, outbound.Config{}, []outbound.Workflow{deploy()}, opts, func(t *testing.T, cs *mcp.ClientSession, _ *outbound.Publisher) {
		list, err := cs.ListTools(t.Context(), nil)
		if err != nil || len(list.Tools) != 1 {
			t.Fatalf("%+v, %v", list, err)
		}
		tool := list.Tools[0]
		schema, err := json.Marshal(tool.InputSchema)
		if err != nil || tool.Name != "relavium_deploy" || tool.Title != "Deploy" || tool.Description != "Brings a version out" || tool.OutputSchema == nil ||
			!strings.Contains(string(schema), `"required":["version"]`) || !strings.Contains(string(schema), `"default":1`) {
			t.Errorf("%+v %s %v", tool, schema, err)
		}
		call := func(token string, args map[string]any) *mcp.CallToolResult {
			t.Helper()
			params := &mcp.CallToolParams{Name: "relavium_deploy", Arguments: args}
			if token != "" {
				params.SetProgressToken(token)
			}
			res, err := cs.CallTool(t.Context(), params)
			if err != nil {
				t.Fatal(err)
			}
			return res
		}
		mu.Lock()
		action, steps = "accept", nil
		mu.Unlock()
		res := call("tok", map[string]any{"version": "v2"})
		got, err := json.Marshal(res.StructuredContent)
		if err != nil || res.IsError || !strings.Contains(string(got), `"deployed":"v2 at home"`) || !strings.Contains(text(t, res), `90071992547409931`) {
			t.Errorf("%s %s %v", text(t, res), got, err)
		}
		// go-sdk hands notifications to their handler beside the answer.
		until(t, "two steps", func() bool { mu.Lock(); defer mu.Unlock(); return len(steps) >= 2 })
		mu.Lock()
		if diff := cmp.Diff([]string{"tok 1/3 built", "tok 2/3 asked"}, steps); diff != "" {
			t.Error(diff)
		}
		steps = nil
		mu.Unlock()
		for _, a := range []string{"decline", "cancel"} {
			mu.Lock()
			action = a
			mu.Unlock()
			if res := call("", map[string]any{"version": "v2"}); !res.IsError || text(t, res) != "the run failed: somebody chose "+a {
				t.Errorf("%s: %+v %s", a, res, text(t, res))
			}
		}
		for _, args := range []map[string]any{{}, {"version": 2}, {"version": "v2", "more": true}, {"version": "v2", "size": 1.5}} {
			if res := call("", args); !res.IsError || !strings.Contains(text(t, res), "invalid arguments") {
				t.Errorf("%v: %s", args, text(t, res))
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if len(steps) > 0 {
			t.Errorf("progress that nobody asked for: %v", steps)
		}
	})
}

func TestAClientThatCannotBeAsked(t *testing.T) {
	page := outbound.Workflow{ID: "page", Runner: outbound.RunnerFunc(func(ctx context.Context, _ json.RawMessage, caller outbound.Caller) (json.RawMessage, error) {
		a, err := caller.Ask(ctx, outbound.Question{Message: "Sign in", URL: "https://id.example.com/x"})
		return json.RawMessage(`{"did":"` + string(a.Action) + `"}`), err
	})}
	none := func() *mcp.ClientOptions { return &mcp.ClientOptions{} }
	eachClient(t, outbound.Config{}, []outbound.Workflow{deploy(), page}, none, func(t *testing.T, cs *mcp.ClientSession, _ *outbound.Publisher) {
		for name, args := range map[string]any{"relavium_deploy": map[string]any{"version": "v2"}, "relavium_page": map[string]any{}} {
			res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: args})
			if err != nil || !res.IsError || !strings.Contains(text(t, res), "elicitation") {
				t.Errorf("%s: %+v, %v", name, res, err)
			}
		}
	})
	asked := func() *mcp.ClientOptions {
		return &mcp.ClientOptions{
			Capabilities: &mcp.ClientCapabilities{Elicitation: &mcp.ElicitationCapabilities{URL: &mcp.URLElicitationCapabilities{}}},
			ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				if r.Params.Mode != "url" || r.Params.URL != "https://id.example.com/x" || r.Params.ElicitationID == "" {
					t.Errorf("asked %+v", r.Params)
				}
				return &mcp.ElicitResult{Action: "accept"}, nil
			},
		}
	}
	p := newPublisher(t, outbound.Config{}, page)
	for _, version := range []string{"2025-11-25", "2026-07-28"} {
		cs := connect(t, transports(t, p)["http"], version, asked())
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "relavium_page"})
		if err != nil || res.IsError || text(t, res) != `{"did":"accept"}` {
			t.Errorf("%s: %+v, %v", version, res, err)
		}
	}
}

// waits is a workflow whose runs end when they are told to.
func waits(begun chan<- struct{}, ended chan<- error) outbound.Workflow {
	return outbound.Workflow{ID: "wait", Runner: outbound.RunnerFunc(func(ctx context.Context, _ json.RawMessage, _ outbound.Caller) (json.RawMessage, error) {
		begun <- struct{}{}
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return nil, ctx.Err()
	})}
}

func TestCancellationReachesTheRun(t *testing.T) {
	begun, ended := make(chan struct{}, 1), make(chan error, 1)
	none := func() *mcp.ClientOptions { return nil }
	within := func(t *testing.T, what string) {
		t.Helper()
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("%s: the run ended without a cause", what)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("%s: the run goes on", what)
		}
	}
	eachClient(t, outbound.Config{}, []outbound.Workflow{waits(begun, ended)}, none, func(t *testing.T, cs *mcp.ClientSession, _ *outbound.Publisher) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		call := func(ctx context.Context) {
			_, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "relavium_wait"})
			done <- err
		}
		go call(ctx)
		<-begun
		cancel()
		within(t, "cancelled")
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("the client got %v", err)
		}
	})
	const call = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"relavium_wait"}}`
	p := newPublisher(t, outbound.Config{}, waits(begun, ended))
	url := serve(t, p)
	// A client that is gone without a word.
	k := dial(t, url)
	k.send(call)
	<-begun
	_ = k.conn.CloseNow()
	within(t, "socket lost")
	in, out := io.Pipe()
	served := make(chan error, 1)
	go func() { served <- p.ServeStdio(t.Context(), in, io.Discard) }()
	fmt.Fprintln(out, call)
	<-begun
	_ = out.Close()
	within(t, "stdin closed")
	if err := <-served; err != nil {
		t.Error(err)
	}
	// A session that is deleted, and a publisher that is stopped.
	for _, end := range []func(session string){
		func(session string) { post(t, "DELETE", url, "", "Mcp-Session-Id", session) },
		func(string) {
			if err := p.Close(t.Context()); err != nil {
				t.Error(err)
			}
		},
	} {
		_, _, h := post(t, "POST", url, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`)
		session := h.Get("Mcp-Session-Id")
		answered := make(chan struct{})
		go func() { defer close(answered); post(t, "POST", url, call, "Mcp-Session-Id", session) }()
		<-begun
		end(session)
		within(t, "session ended")
		<-answered
	}
}

func TestRunsAreBounded(t *testing.T) {
	begun, ended := make(chan struct{}, 1), make(chan error, 1)
	w := waits(begun, ended)
	slow := w
	slow.ID, slow.Timeout = "slow", 20*time.Millisecond
	big := outbound.Workflow{ID: "big", Runner: outbound.RunnerFunc(func(context.Context, json.RawMessage, outbound.Caller) (json.RawMessage, error) {
		return json.RawMessage(`{"x":"` + strings.Repeat("x", 2000) + `"}`), nil
	})}
	p := newPublisher(t, outbound.Config{MaxCalls: 1, MaxOutput: 1000}, w, slow, big)
	cs := connect(t, transports(t, p)["stdio"], "2025-11-25", nil)
	res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "relavium_slow"})
	if err != nil || !res.IsError || !strings.Contains(text(t, res), "did not end within 20ms") {
		t.Errorf("%+v, %v", res, err)
	}
	<-begun
	<-ended
	// The place is free once the run itself has ended.
	until(t, "the place is free again", func() bool {
		res, err = cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "relavium_big"})
		return err == nil
	})
	if !res.IsError || !strings.Contains(text(t, res), "2008 bytes") {
		t.Errorf("%+v, %v", res, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _, _ = cs.CallTool(ctx, &mcp.CallToolParams{Name: "relavium_wait"}) }()
	<-begun
	if _, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "relavium_wait"}); err == nil || !strings.Contains(err.Error(), "too many runs") {
		t.Errorf("a second run: %v", err)
	}
	cancel()
	<-ended
}

// A person may take longer than the run may.
func TestTheClockStandsStillWhileAPersonIsAsked(t *testing.T) {
	release := make(chan struct{})
	w := deploy()
	w.Timeout = 700 * time.Millisecond
	p := newPublisher(t, outbound.Config{}, w)
	cs := connect(t, transports(t, p)["websocket"], "2025-11-25", &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			<-release
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"where": "home"}}, nil
		},
	})
	time.AfterFunc(1500*time.Millisecond, func() { close(release) }) // twice the bound
	res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "relavium_deploy", Arguments: map[string]any{"version": "v2"}})
	if err != nil || res.IsError {
		t.Errorf("%+v, %v", res, err)
	}
	p2 := newPublisher(t, outbound.Config{AskTimeout: 20 * time.Millisecond}, deploy())
	withdrawn := make(chan struct{})
	cs = connect(t, transports(t, p2)["stdio"], "2025-11-25", &mcp.ClientOptions{
		ElicitationHandler: func(ctx context.Context, _ *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			<-ctx.Done()
			close(withdrawn)
			return nil, ctx.Err()
		},
	})
	res, err = cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "relavium_deploy", Arguments: map[string]any{"version": "v2"}})
	if err != nil || !res.IsError || !strings.Contains(text(t, res), "in time") {
		t.Errorf("%+v, %v", res, err)
	}
	<-withdrawn
}

func TestOutputsAreChecked(t *testing.T) {
	var give atomic.Pointer[string]
	w := outbound.Workflow{
		ID: "out", OutputSchema: json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}}}`),
		Runner: outbound.RunnerFunc(func(context.Context, json.RawMessage, outbound.Caller) (json.RawMessage, error) {
			return json.RawMessage(*give.Load()), nil
		}),
	}
	p := newPublisher(t, outbound.Config{}, w)
	cs := connect(t, transports(t, p)["http"], "2025-11-25", nil)
	for outputs, want := range map[string]string{
		`{"n":1}`: "", `{"n":"x"}`: "/n", `[1]`: "no JSON object", `null`: "no JSON object", ``: "they are", `{"n":`: "they are",
		"{\"s\":\"\xff\"}": "UTF-8", strings.Repeat(`{"a":`, 200) + `1` + strings.Repeat(`}`, 200): "levels",
	} {
		give.Store(&outputs)
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "relavium_out"})
		if err != nil || res.IsError != (want != "") || !strings.Contains(text(t, res), want) || want != "" && res.StructuredContent != nil {
			t.Errorf("%.40q: %+v %v, want %q", outputs, res, err, want)
		}
	}
}

func TestNothingIsPublishedByMistake(t *testing.T) {
	run := outbound.RunnerFunc(func(context.Context, json.RawMessage, outbound.Caller) (json.RawMessage, error) { return nil, nil })
	long := strings.Repeat("long", 30)
	p, err := outbound.New(outbound.Config{Prefix: "wf-"})
	if err != nil {
		t.Fatal(err)
	}
	left := p.Publish(
		outbound.Workflow{ID: "a.b", Runner: run}, outbound.Workflow{ID: "a_b", Runner: run}, outbound.Workflow{ID: "twice", Runner: run},
		outbound.Workflow{ID: "twice", Runner: run}, outbound.Workflow{ID: "none"}, outbound.Workflow{ID: "", Runner: run},
		outbound.Workflow{ID: "net", Runner: run, InputSchema: json.RawMessage(`{"type":"object","$ref":"http://x.example/y"}`)},
		outbound.Workflow{ID: "both", Runner: run, Inputs: []outbound.Input{{Name: "a"}}, InputSchema: json.RawMessage(`{"type":"object"}`)},
		outbound.Workflow{ID: "list", Runner: run, OutputSchema: json.RawMessage(`{"type":"array"}`)},
		outbound.Workflow{ID: "rootless", Runner: run, InputSchema: json.RawMessage(`{"properties":{}}`)},
		outbound.Workflow{ID: "bad input", Runner: run, Inputs: []outbound.Input{{Name: "a", Type: "text"}}},
		outbound.Workflow{ID: long, Runner: run}, outbound.Workflow{ID: "Größe/\u202e", Runner: run},
	)
	var names, out []string
	for _, raw := range p.Tools() {
		var d struct{ Name string }
		if err := json.Unmarshal(raw, &d); err != nil {
			t.Fatal(err)
		}
		names = append(names, d.Name)
	}
	for _, l := range left {
		out = append(out, l.ID)
	}
	if diff := cmp.Diff([]string{"wf-longlonglonglonglonglonglonglonglonglonglonglonglong_" + "9bd9d5a3", "wf-Gr__e__"}, names, cmp.Comparer(func(a, b string) bool {
		// The hash's value is no one's business; that there is one is.
		return a == b || len(a) == 64 && len(b) == 64 && a[:56] == b[:56]
	})); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"a.b", "a_b", "twice", "twice", "none", "", "net", "both", "list", "rootless", "bad input"}, out); diff != "" {
		t.Error(diff)
	}
	for _, cfg := range []outbound.Config{{Prefix: "no spaces"}, {Prefix: strings.Repeat("x", 33)}, {MaxCalls: -1}} {
		if _, err := outbound.New(cfg); err == nil {
			t.Errorf("%+v was taken", cfg)
		}
	}
}

type engine []outbound.Workflow

func (e engine) List(context.Context) ([]outbound.Workflow, error) { return e, nil }

func TestSelectTakesTheNamedAlone(t *testing.T) {
	e := engine{{ID: "a"}, {ID: "b"}, {ID: "c"}}
	got, err := outbound.Select(t.Context(), e, "c", "a")
	if err != nil || len(got) != 2 || got[0].ID != "c" || got[1].ID != "a" {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := outbound.Select(t.Context(), e); err != nil || len(got) != 0 {
		t.Errorf("nothing was named: %+v, %v", got, err)
	}
	if _, err := outbound.Select(t.Context(), e, "d"); err == nil {
		t.Error("an unknown id was taken")
	}
}

// What is published can change; clients with a session are told.
func TestPublishAgain(t *testing.T) {
	changed := make(chan struct{}, 8)
	p := newPublisher(t, outbound.Config{}, deploy())
	cs := connect(t, transports(t, p)["http"], "2025-11-25", &mcp.ClientOptions{
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} },
	})
	if _, err := cs.ListTools(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	p.Publish()
	<-changed
	if list, err := cs.ListTools(t.Context(), nil); err != nil || len(list.Tools) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "relavium_deploy"}); err == nil || !strings.Contains(err.Error(), "unknown tool") {
		t.Errorf("a withdrawn workflow: %v", err)
	}
}

func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}
