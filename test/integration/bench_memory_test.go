package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandboxd/sandboxd/test/integration/lab"
)

// BenchmarkMemory measures what one container costs beyond its server's own
// processes, as the kernel shares it out (PSS): its shim, its init, and what
// the engine and containerd grow by. Apart from that: the client that one
// `sandboxd run` is, and the kernel's own memory charged to the container, the
// server's part of it included.
func BenchmarkMemory(b *testing.B) {
	const boxes = 4
	for range b.N {
		e := startEngine(b)
		buildImage(b, "npm:"+everything)
		one := runEverything(b, e) // what the first start opens for good
		one.close()
		until(b, "the first is gone", time.Minute, func() bool { return e.started() == e.ended() })
		before := e.memory(b)
		var all []*ran
		for range boxes {
			all = append(all, runEverything(b, e))
		}
		after := e.memory(b)
		client := 0.0
		for _, r := range all {
			client += pss(b, r.pid)
			defer r.close()
		}
		b.ReportMetric((after.host-before.host)/boxes, "engine+containerd-MB")
		b.ReportMetric(after.shims/boxes, "shim-MB")
		b.ReportMetric(after.inits/boxes, "init-MB")
		b.ReportMetric((after.host-before.host+after.shims+after.inits)/boxes, "beyond-its-own-MB")
		b.ReportMetric(after.kernel/boxes, "kernel-MB")
		b.ReportMetric(client/boxes, "run-client-MB")
	}
}

// ran is one `sandboxd run` with an initialized server.
type ran struct {
	pid     int
	session *mcp.ClientSession
}

func runEverything(b *testing.B, e *engine) *ran {
	b.Helper()
	cmd := lab.UserCommand(context.Background(), lab.UserDir(b), program, "run", "--isolation", "container", "--", "npx", "-y", everything)
	cmd.Env = append(cmd.Env, e.env()...)
	session, err := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil).Connect(b.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := session.ListTools(b.Context(), nil); err != nil {
		b.Fatal(err)
	}
	return &ran{cmd.Process.Pid, session} // setpriv has become sandboxd
}

// close ends it; on a busy machine the client may have to signal it.
func (r *ran) close() { _ = r.session.Close() }

// memory is what an engine's processes take, in MB.
type memory struct{ host, shims, inits, kernel float64 }

func (e *engine) memory(b *testing.B) (m memory) {
	b.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		b.Fatal(err)
	}
	instance := "sandboxd-" + filepath.Base(strings.ToLower(e.dir))
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		line, err := os.ReadFile(dir + "/cmdline")
		group, gerr := os.ReadFile(dir + "/cgroup")
		if err != nil || gerr != nil {
			continue // it has ended
		}
		args := strings.Split(string(line), "\x00")
		switch {
		case strings.Contains(string(group), instance+"/"):
			if args[0] == "/dev/init" {
				m.inits += pss(b, pid)
			}
		case !strings.Contains(string(line), e.dir):
		case strings.HasPrefix(filepath.Base(args[0]), "containerd-shim-"):
			m.shims += pss(b, pid)
		case strings.Contains(args[0], "setpriv") || len(args) > 1 && args[1] == "run":
		default: // the engine, its keeper and its containerd: their own pages,
			// since the engine's program is that of `sandboxd run`, too
			m.host += share(b, pid, "Pss_Anon")
		}
	}
	files, err := filepath.Glob("/sys/fs/cgroup/memory/" + instance + "/*/memory.kmem.usage_in_bytes")
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range files {
		var n int64
		if raw, err := os.ReadFile(f); err == nil {
			if _, err := fmt.Sscan(string(raw), &n); err != nil {
				b.Fatal(err)
			}
		}
		m.kernel += float64(n) / (1 << 20)
	}
	return m
}

// pss is a process's proportional share of memory, in MB; 0 where it has ended.
func pss(b *testing.B, pid int) float64 { return share(b, pid, "Pss") }

// share is one of the sums of a process's memory that the kernel knows.
func share(b *testing.B, pid int, what string) float64 {
	b.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(raw), "\n"+what+":")
	var kb float64
	if _, err := fmt.Sscan(rest, &kb); err != nil {
		b.Fatal(err)
	}
	return kb / 1024
}
