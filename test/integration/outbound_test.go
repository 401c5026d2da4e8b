package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/test/integration/lab"
)

// flowEngine is an engine whose one workflow asks before it ends.
type flowEngine struct{ answers chan string }

func (e *flowEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || r.Header.Get("Authorization") != "Bearer "+envSecret {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if r.URL.Path == "/runs/1" {
		e.answers <- string(body)
		w.WriteHeader(http.StatusNoContent)
		return
	}
	say := func(format string, args ...any) {
		fmt.Fprintf(w, format+"\n", args...)
		_ = http.NewResponseController(w).Flush()
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	say(`{"type":"run","url":"/runs/1"}`)
	say(`{"type":"progress","message":"built"}`)
	say(`{"type":"ask","id":"q","message":"Bring it out?","schema":{"type":"object","required":["where"],"properties":{"where":{"type":"string"}}}}`)
	select {
	case a := <-e.answers:
		say(`{"type":"done","outputs":{"answer":%s}}`, a)
	case <-r.Context().Done():
	}
}

// TestPublishedWorkflows: the built program publishes an engine's workflow, and
// the official TypeScript client uses it over each transport.
func TestPublishedWorkflows(t *testing.T) {
	command := inspector(t) // which brings the client and a node
	node, modules := command[0], strings.SplitAfter(command[1], "node_modules")[0]
	l := lab.New(t)
	ln := l.Listen("127.0.0.1:0")
	srv := &http.Server{Handler: &flowEngine{answers: make(chan string, 1)}, ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	t.Cleanup(func() { _ = srv.Close(); <-done })
	config := l.WriteFile("outbound.yaml", fmt.Sprintf(`
outbound:
  workflows:
    - id: deploy
      url: http://%s/start
      allow_local_endpoint: true
      headers: {Authorization: "Bearer {{secrets.engine}}"}
      inputs: {version: {required: true}}
      output_schema: {type: object, required: [answer]}
`, ln.Addr()))
	env := []string{"SANDBOXD_SECRET_ENGINE=" + envSecret}
	records := filepath.Join(l.Home, "records.jsonl")
	s := startServe(t, l, env, "--verbose", "--config", config, "--records", records)

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	client, err := os.ReadFile("testdata/outbound.mjs")
	if err != nil {
		t.Fatal(err)
	}
	script := l.WriteFile("client.mjs", string(client))
	cmd := l.Command(ctx, node, script, modules, s.base+"/mcp-outbound", program, "publish", "--config", config)
	cmd.Env = append(cmd.Env, env...)
	status, stdout, stderr := finish(t, cmd)
	if status != 0 {
		t.Fatalf("status %d\n%s%s\n%s", status, stdout, stderr, s.stderr)
	}
	type use struct {
		Tools, Asked, Steps []string
		Outputs             any
		Failed              bool
	}
	var got map[string]use
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	one := use{
		Tools: []string{"relavium_deploy"}, Asked: []string{"Bring it out?"}, Steps: []string{"built"},
		Outputs: map[string]any{"answer": map[string]any{"id": "q", "action": "accept", "content": map[string]any{"where": "home"}}},
	}
	if diff := cmp.Diff(map[string]use{"http": one, "websocket": one, "stdio": one}, got); diff != "" {
		t.Error(diff)
	}
	if strings.Contains(s.stderr.String()+stderr, envSecret) {
		t.Error("the secret was written down")
	}
	list := l.Command(ctx, program, "publish", "--config", config, "--list", "--json")
	list.Env = append(list.Env, env...)
	if status, stdout, stderr := finish(t, list); status != 0 || !strings.Contains(stdout, `"relavium_deploy"`) {
		t.Errorf("--list: %d\n%s%s", status, stdout, stderr)
	}
}
