package integration

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"sync"
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

// BenchmarkPool compares a first call that takes a sandbox from the pool with
// one that starts it, and with the start of the bare server. Two tenants call
// at the same time, and each round waits for what refills the pools.
func BenchmarkPool(b *testing.B) {
	const pkg = "@modelcontextprotocol/server-everything"
	e := startEngine(b)
	buildImage(b, "npm:"+pkg)
	bare := extractImage(b, "npm:"+pkg)
	l := lab.New(b)
	var tenants []*serving
	for _, tenant := range []string{"a", "b"} {
		file := l.WriteFile(tenant+".yaml", fmt.Sprintf(`
tenant: %s
mcp_servers:
- {id: cold, command: npx, args: [-y, %q], isolation: container, sharing: call, required: true}
- {id: warm, command: npx, args: [-y, %q], isolation: container, sharing: call, required: true, warm: 1}
`, tenant, pkg, pkg))
		tenants = append(tenants, startServe(b, l, e.env(), "--config", file))
	}
	took := map[string][]float64{}
	first := func(server string) {
		var wg sync.WaitGroup
		var own time.Duration
		for i, s := range tenants {
			wg.Go(func() {
				began := time.Now()
				if status, r := s.call(b, server, "echo", `{"message":"x"}`); status != http.StatusOK {
					b.Errorf("%s: %d %+v", server, status, r)
				}
				if i == 0 {
					own = time.Since(began)
				}
			})
		}
		wg.Wait()
		took[server] = append(took[server], ms(own))
	}
	// Two that are shared, and one that waits, for each tenant; a guest that
	// was started still loads for a while.
	full := func() {
		until(b, "the pools are full", time.Minute, func() bool { return e.started()-e.ended() == 3*len(tenants) })
		time.Sleep(3 * time.Second)
	}
	const rounds = 7
	for range b.N {
		for range rounds {
			full()
			first("warm")
			full()
			first("cold")
			full()
			s, _ := measure(b, func(ctx context.Context) *exec.Cmd {
				return exec.CommandContext(ctx, "unshare", append([]string{"-n", "--"}, bare...)...)
			})
			took["bare"] = append(took["bare"], s)
		}
	}
	for name, v := range took {
		b.ReportMetric(median(v), name+"-ms")
		b.ReportMetric(median(v)/median(took["bare"]), name+"-ratio")
	}
}
