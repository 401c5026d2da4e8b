package integration

import (
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/test/integration/lab"
)

// started and ended count what the engine says of its sandboxes.
func (e *engine) started() int { return strings.Count(e.log.String(), `msg="sandbox started"`) }
func (e *engine) ended() int   { return strings.Count(e.log.String(), `msg="sandbox ended"`) }

// TestWarmSandboxes: a sandbox that was kept ready serves one call, another
// takes its place, and none is left behind.
func TestWarmSandboxes(t *testing.T) {
	e := startEngine(t)
	const pkg = "npm:@modelcontextprotocol/server-memory"
	buildImage(t, pkg)
	l := lab.New(t)
	file := l.WriteFile("warm.yaml", `
mcp_servers:
- {id: memory, command: npx, args: [-y, "@modelcontextprotocol/server-memory"], isolation: container, sharing: call, warm: 2, required: true, env: {MEMORY_FILE_PATH: /tmp/graph.jsonl}}
`)
	s := startServe(t, l, e.env(), "--config", file)
	// The shared one, and two that wait.
	until(t, "the pool is full", time.Minute, func() bool { return e.started()-e.ended() == 3 })
	before := e.started()
	status, r := s.call(t, "memory", "create_entities", `{"entities":[{"name":"n","entityType":"t","observations":["seen"]}]}`)
	if status != http.StatusOK || !r.OK {
		t.Fatalf("the first call: %d %+v", status, r)
	}
	until(t, "the pool is full again", time.Minute, func() bool { return e.started() > before && e.started()-e.ended() == 3 })
	for range 3 { // two that waited, and perhaps one that did not
		if status, r := s.call(t, "memory", "read_graph", `{}`); status != http.StatusOK || strings.Contains(r.text(), "seen") {
			t.Fatalf("a later call: %d %+v", status, r)
		}
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	<-s.done
	until(t, "nothing is left", time.Minute, func() bool { return e.started() == e.ended() })
}
