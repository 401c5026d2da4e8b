// Command bridgeclient lets the official conformance suite try the bridge's
// own client: the server whose URL is the argument becomes a remote server of
// a registry, and the scenario (MCP_CONFORMANCE_SCENARIO) is driven through the
// connector API, or by a client of /mcp where it asks for more than tools. It
// is for tests alone and may never be shipped: it dials without a guard.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandboxd/sandboxd/mcpbridge"
	"github.com/sandboxd/sandboxd/mcpbridge/client"
	"github.com/sandboxd/sandboxd/mcpbridge/remote"
	"github.com/sandboxd/sandboxd/sandbox"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 25*time.Second)
	defer cancel()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bridgeclient:", err)
		os.Exit(1) //nolint:gocritic // the deferred cancel has nothing left to do
	}
}

// toolCall is one that a scenario wants made.
type toolCall struct {
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

func run(ctx context.Context) error {
	if len(os.Args) != 2 {
		return errors.New("usage: bridgeclient URL")
	}
	var given struct {
		ToolCalls []toolCall `json:"toolCalls"`
	}
	if text := os.Getenv("MCP_CONFORMANCE_CONTEXT"); text != "" {
		if err := json.Unmarshal([]byte(text), &given); err != nil {
			return err
		}
	}
	registry, err := mcpbridge.New(mcpbridge.Config{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		return err
	}
	scenario := os.Getenv("MCP_CONFORMANCE_SCENARIO")
	if strings.HasPrefix(scenario, "auth/") {
		return authorized(ctx)
	}
	if scenario == "http-custom-headers" {
		return direct(ctx, given.ToolCalls)
	}
	return errors.Join(drive(ctx, registry, scenario), registry.Close(context.WithoutCancel(ctx)))
}

// starter begins sessions with the server under test.
func starter(credentials remote.Credentials) func(context.Context) (sandbox.Sandbox, error) {
	return func(ctx context.Context) (sandbox.Sandbox, error) {
		s, err := remote.Start(ctx, remote.Config{URL: os.Args[1], Credentials: credentials, Client: &http.Client{Transport: &http.Transport{}}})
		if err != nil {
			return nil, err
		}
		return s, nil
	}
}

// direct calls tools by the client below admission, which refuses arguments
// that are against their schema, as some of this scenario's are.
func direct(ctx context.Context, calls []toolCall) error {
	sb, err := starter(nil)(ctx)
	if err != nil {
		return err
	}
	cl, err := client.Connect(ctx, sb, client.Options{Discover: true})
	if err != nil {
		return err
	}
	_, _, err = cl.List(ctx, "tools/list", "tools", client.ListBounds{})
	for _, c := range calls {
		params, merr := json.Marshal(c)
		if merr == nil {
			_, merr = cl.Call(ctx, "tools/call", params, nil)
		}
		err = errors.Join(err, merr)
	}
	return errors.Join(err, cl.Close(context.WithoutCancel(ctx)))
}

func drive(ctx context.Context, registry *mcpbridge.Registry, scenario string) error {
	if err := registry.Add(ctx, mcpbridge.Server{Name: "x", Required: true, Start: starter(nil)}); err != nil {
		return err
	}
	switch scenario {
	case "tools_call":
		return call(ctx, registry, toolCall{"add_numbers", json.RawMessage(`{"a":5,"b":3}`)})
	case "sse-retry":
		return call(ctx, registry, toolCall{"test_reconnection", nil})
	case "json-schema-2020-12-preservation":
		return preserve(ctx, registry)
	case "http-invalid-tool-headers":
		for _, c := range registry.Connectors() {
			for _, a := range c.Descriptor().Actions {
				logged(call(ctx, registry, toolCall{a.Key, json.RawMessage(`{"region":"us-west1"}`)}))
			}
		}
	case "elicitation-sep1034-client-defaults":
		return asked(ctx, registry, map[string]any{}, "test_client_elicitation_defaults")
	case "sep-2322-client-request-state":
		return asked(ctx, registry, map[string]any{"confirmed": true}, "test_mrtr_echo_state", "test_mrtr_no_state", "test_mrtr_unrelated", "test_mrtr_no_result_type")
	case "http-standard-headers":
		return everything(ctx, registry)
	}
	return nil // to list the tools was all
}

func logged(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

func call(ctx context.Context, registry *mcpbridge.Registry, c toolCall) error {
	res, err := registry.Call(ctx, "x", c.Name, c.Arguments)
	if err == nil && !res.OK {
		err = res.Error
	}
	return err
}

// preserve sends a schema back as it reached the descriptor.
func preserve(ctx context.Context, registry *mcpbridge.Registry) error {
	for _, c := range registry.Connectors() {
		for _, a := range c.Descriptor().Actions {
			if a.Key == "json_schema_2020_12_tool" {
				return call(ctx, registry, toolCall{"json_schema_echo", fmt.Appendf(nil, `{"schema":%s}`, a.InputSchema)})
			}
		}
	}
	return errors.New("the tool with the schema was not admitted")
}

// session opens a session of the aggregated endpoint that answers what it is
// asked.
func session(ctx context.Context, registry *mcpbridge.Registry, answer map[string]any) (*mcp.ClientSession, func(), error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	srv := &http.Server{Handler: registry.Handler(), ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	c := mcp.NewClient(&mcp.Implementation{Name: "bridgeclient", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: answer}, nil
		},
	})
	cs, err := c.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: "http://" + ln.Addr().String() + "/mcp"},
		&mcp.ClientSessionOptions{ProtocolVersion: os.Getenv("MCP_CONFORMANCE_PROTOCOL_VERSION")})
	end := func() { _ = srv.Close(); <-done }
	if err != nil {
		end()
		return nil, nil, err
	}
	return cs, func() { _ = cs.Close(); end() }, nil
}

// asked calls tools that ask their client something.
func asked(ctx context.Context, registry *mcpbridge.Registry, answer map[string]any, tools ...string) error {
	cs, end, err := session(ctx, registry, answer)
	if err != nil {
		return err
	}
	defer end()
	for _, name := range tools {
		_, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: mcpbridge.AggregateName("x", name), Arguments: map[string]any{}})
		logged(err)
	}
	return nil
}

// everything uses a tool, a resource and a prompt.
func everything(ctx context.Context, registry *mcpbridge.Registry) error {
	cs, end, err := session(ctx, registry, nil)
	if err != nil {
		return err
	}
	defer end()
	if list, err := cs.ListTools(ctx, nil); err == nil && len(list.Tools) > 0 {
		_, err = cs.CallTool(ctx, &mcp.CallToolParams{Name: list.Tools[0].Name, Arguments: map[string]any{}})
		logged(err)
	}
	if list, err := cs.ListResources(ctx, nil); err == nil && len(list.Resources) > 0 {
		_, err = cs.ReadResource(ctx, &mcp.ReadResourceParams{URI: list.Resources[0].URI})
		logged(err)
	}
	if list, err := cs.ListPrompts(ctx, nil); err == nil && len(list.Prompts) > 0 {
		_, err = cs.GetPrompt(ctx, &mcp.GetPromptParams{Name: list.Prompts[0].Name})
		logged(err)
	}
	return nil
}
