// Command fetch is the MCP server that sandboxd ships as its example: an
// ordinary Go program with a tool that fetches a URL. It shows what a guest can
// do and, with a policy, what it cannot.
//
// Build it with
//
//	sandboxd build -o fetch.wasm ./images/wasm/fetch
//
// It keeps no state, reads no files and starts nothing. What it may connect to
// is decided outside.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	defaultBytes = 64 << 10
	mostBytes    = 4 << 20
	fetchTimeout = 60 * time.Second
)

type fetchInput struct {
	URL      string `json:"url" jsonschema:"the http or https URL to fetch"`
	MaxBytes int    `json:"max_bytes,omitempty" jsonschema:"cut the body after this many bytes (65536 by default, at most 4194304)"`
}

type fetchOutput struct {
	Status    int               `json:"status"`
	URL       string            `json:"url" jsonschema:"the URL after redirects"`
	Headers   map[string]string `json:"headers"`
	Text      string            `json:"text"`
	Truncated bool              `json:"truncated"`
}

type echoInput struct {
	Text string `json:"text" jsonschema:"what to send back"`
}

type empty struct{}

func main() {
	log.SetOutput(os.Stderr)
	log.SetFlags(0)
	client := &http.Client{Timeout: fetchTimeout}
	server := mcp.NewServer(&mcp.Implementation{Name: "sandboxd-example", Version: "1.0.0"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "fetch", Description: "Fetches a URL and returns its status, headers and text."},
		func(ctx context.Context, _ *mcp.CallToolRequest, in fetchInput) (*mcp.CallToolResult, fetchOutput, error) {
			out, err := fetch(ctx, client, in)
			return nil, out, err
		})
	mcp.AddTool(server, &mcp.Tool{Name: "echo", Description: "Sends a text back."},
		func(_ context.Context, _ *mcp.CallToolRequest, in echoInput) (*mcp.CallToolResult, any, error) {
			return text(in.Text), nil, nil
		})
	mcp.AddTool(server, &mcp.Tool{Name: "time", Description: "Tells the sandbox's time in UTC."},
		func(context.Context, *mcp.CallToolRequest, empty) (*mcp.CallToolResult, any, error) {
			return text(time.Now().UTC().Format(time.RFC3339Nano)), nil, nil
		})
	mcp.AddTool(server, &mcp.Tool{Name: "env_keys", Description: "Lists the names of the sandbox's environment variables, without their values."},
		func(context.Context, *mcp.CallToolRequest, empty) (*mcp.CallToolResult, any, error) {
			return text(strings.Join(envKeys(), "\n")), nil, nil
		})
	if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil && !errors.Is(err, io.EOF) {
		log.Fatal(err)
	}
}

func text(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}

func envKeys() []string {
	var keys []string
	for _, kv := range os.Environ() {
		k, _, _ := strings.Cut(kv, "=")
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

func fetch(ctx context.Context, client *http.Client, in fetchInput) (fetchOutput, error) {
	u, err := url.Parse(in.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fetchOutput{}, fmt.Errorf("url must be an absolute http or https URL")
	}
	limit := in.MaxBytes
	if limit <= 0 {
		limit = defaultBytes
	}
	limit = min(limit, mostBytes)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return fetchOutput{}, err
	}
	req.Header.Set("User-Agent", "sandboxd-example/1.0")
	res, err := client.Do(req)
	if err != nil {
		return fetchOutput{}, err
	}
	defer res.Body.Close() //nolint:errcheck // only read from
	body, err := io.ReadAll(io.LimitReader(res.Body, int64(limit)+1))
	if err != nil {
		return fetchOutput{}, fmt.Errorf("reading the body: %w", err)
	}
	out := fetchOutput{Status: res.StatusCode, URL: res.Request.URL.String(), Headers: map[string]string{}}
	if out.Truncated = len(body) > limit; out.Truncated {
		body = body[:limit]
	}
	out.Text = strings.ToValidUTF8(string(body), "\uFFFD")
	for k, v := range res.Header {
		out.Headers[k] = strings.Join(v, ", ")
	}
	return out, nil
}
