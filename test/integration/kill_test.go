package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandboxd/sandboxd/test/integration/lab"
)

const everything = "@modelcontextprotocol/server-everything"

// user is a program at work with a client that calls it without a pause.
type user struct {
	*running
	calls  atomic.Int64 // answered so far
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// startUser starts run or serve for the tier and its client. It waits for
// nothing, so that the kill may come at any moment.
func startUser(t *testing.T, e *engine, command, tier string) *user {
	t.Helper()
	home := lab.UserDir(t)
	args := []string{"run", "--isolation", tier, "--", "npx", "-y", everything}
	if command == "serve" {
		config := fmt.Sprintf("mcp_servers:\n  - {id: everything, command: npx, args: [-y, %q], isolation: %s}\n", everything, tier)
		args = []string{"serve", "--listen", "127.0.0.1:0", "--config", homeFile(t, home, "servers.yaml", config)}
	}
	u := &user{running: startProgram(t, home, e.env(), args...)}
	ctx, cancel := context.WithCancel(context.Background())
	u.cancel = cancel
	call := u.callRun
	if command == "serve" {
		call = u.callServe
	}
	u.wg.Go(func() { call(ctx) })
	t.Cleanup(u.leave)
	return u
}

// leave ends the client, as a program that crashed would.
func (u *user) leave() {
	u.cancel()
	_, _ = u.stdin.Close(), u.stdout.Close()
	u.wg.Wait()
}

func (u *user) callRun(ctx context.Context) {
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	session, err := client.Connect(ctx, &mcp.IOTransport{Reader: u.stdout, Writer: u.stdin}, nil)
	if err != nil {
		return // it was killed before
	}
	for ctx.Err() == nil {
		_, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"message": "again"}})
		if err != nil {
			return
		}
		u.calls.Add(1)
	}
}

func (u *user) callServe(ctx context.Context) {
	for ; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		_, rest, _ := strings.Cut(u.stderr.String(), "server(s) at ")
		base, _, whole := strings.Cut(rest, "\n")
		if !whole {
			continue
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/api/v1/automation/connectors/everything/actions/echo", strings.NewReader(`{"message":"again"}`))
		if err != nil {
			return
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			continue
		}
		if res.StatusCode == http.StatusOK {
			u.calls.Add(1)
		}
		_ = res.Body.Close()
	}
}

// serves shows that the engine still starts what it should, and returns how
// long that took to answer its first call.
func (e *engine) serves(t *testing.T, tier string) time.Duration {
	t.Helper()
	began := time.Now()
	u := startUser(t, e, "run", tier)
	until(t, "a new run answers", 4*time.Minute, func() bool {
		select {
		case <-u.done:
			t.Fatalf("a new run ended:\n%s\n%s", u.stderr, ending(e.log.String()))
		default:
		}
		return u.calls.Load() > 0
	})
	took := time.Since(began)
	seen := e.traces() // the count must be able to find something
	for _, kind := range []string{"processes", "mounts", "cgroups", "files", "containers", "descriptors"} {
		if len(seen[kind]) == 0 {
			t.Errorf("a running sandbox shows no %s: %s", kind, seen)
		}
	}
	u.leave()
	u.status(t, time.Minute)
	return took
}

// removeImages makes the next start hand the image over again.
func (e *engine) removeImages(t *testing.T) {
	t.Helper()
	cl, ctx, done := e.containerd()
	defer done()
	list, err := cl.ImageService().List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, img := range list {
		if err := cl.ImageService().Delete(ctx, img.Name, images.SynchronousDelete()); err != nil {
			t.Fatal(err)
		}
	}
}

// killRound is who is killed, what for and when.
type killRound struct {
	victim, command, tier string
	handOver              bool // the image is not there yet
	after                 time.Duration
}

// newKillRound draws a moment from before the program has said hello to well
// into its calls, whose first takes
// the tier's usual time to be answered. Victims and tiers take turns.
func newKillRound(i int, rng *rand.Rand, usual map[string]time.Duration) killRound {
	k := killRound{
		victim: []string{"run", "serve", "engine", "containerd"}[i%4], tier: containerTiers[(i%4+i/4)%2],
		handOver: i%12 < 4,
	}
	span := 3 * usual[k.tier]
	if k.handOver {
		span = 12 * time.Second
	}
	k.after = time.Duration(rng.Int64N(int64(span)))
	if k.command = k.victim; i%4 > 1 {
		k.command = []string{"run", "serve"}[rng.IntN(2)]
	}
	return k
}

func (k killRound) run(t *testing.T, e *engine) {
	if k.handOver {
		e.removeImages(t)
	}
	u := startUser(t, e, k.command, k.tier)
	select {
	case <-time.After(k.after):
	case <-u.done:
		t.Errorf("it ended before it was killed:\n%s\n%s", u.stderr, ending(e.log.String()))
	}
	switch k.victim {
	case "run", "serve":
		u.kill()
	case "engine":
		e.kill()
	case "containerd":
		e.killContainerd(t)
	}
	if k.victim == "engine" || k.victim == "containerd" {
		// A run that had a sandbox, or was about to, has nothing left to do;
		// serve waits for a new one. One that waits for an image may outlive it.
		if k.command == "run" && k.victim == "engine" {
			if got := u.status(t, time.Minute); got != failure {
				t.Errorf("without its engine it ended with status %d:\n%s", got, u.stderr)
			}
		}
		if k.victim == "engine" {
			e.start()
		}
		_ = u.cmd.Process.Signal(syscall.SIGTERM)
		u.status(t, time.Minute)
	}
	u.leave()
	t.Logf("%+v: %d calls had been answered", k, u.calls.Load())
	e.leavesNothing(t, fmt.Sprintf("%+v", k))
	if t.Failed() {
		t.Logf("it said:\n%s", ending(u.stderr.String()))
	}
}

// killContainerd ends the engine's own containerd as a crash would, and waits
// until another one answers.
func (e *engine) killContainerd(t *testing.T) {
	t.Helper()
	pid := e.containerdPID()
	if pid == 0 {
		t.Fatal("the engine has no containerd")
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			t.Logf("killed %d, now %d; the engine says:\n%s", pid, e.containerdPID(), ending(e.log.String()))
		}
	}()
	until(t, "there is another containerd", time.Minute, func() bool {
		if now := e.containerdPID(); now == 0 || now == pid {
			return false
		}
		cl, ctx, done := e.containerd()
		defer done()
		serving, err := cl.IsServing(ctx)
		return err == nil && serving
	})
}

// TestKill ends the program, the engine or its containerd as a crash would, at random moments.
// What they had is gone soon after, or once the engine has started again, and
// the engine serves on. At last the engine ends for want of work, and nothing
// at all is left.
func TestKill(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("SANDBOXD_SEED"); s != "" {
		if _, err := fmt.Sscan(s, &seed); err != nil {
			t.Fatal(err)
		}
	}
	rounds, soak := 8, os.Getenv("SANDBOXD_SOAK") != ""
	if soak {
		rounds = 100
		if n, err := strconv.Atoi(os.Getenv("SANDBOXD_SOAK")); err == nil && n > 1 {
			rounds = n // as many as it says
		}
	}
	t.Logf("SANDBOXD_SEED=%d, %d rounds", seed, rounds)
	rng := rand.New(rand.NewPCG(seed, 0))
	e := startEngine(t)
	buildImage(t, "npm:"+everything)
	usual := map[string]time.Duration{}
	for i := range rounds {
		k := newKillRound(i, rng, usual)
		if !t.Run(fmt.Sprintf("%d-%s-%s", i, k.victim, k.tier), func(t *testing.T) {
			k.run(t, e)
			if soak {
				e.serves(t, k.tier)
			}
		}) {
			return // its remains would show up in all that follow
		}
		if i == 3 {
			e.serves(t, "container") // takes the image in
			for _, tier := range containerTiers {
				usual[tier] = e.serves(t, tier)
			}
		}
	}
	e.stop()
	e.leavesNothing(t, "stop")
	e.start("--idle", "1s")
	for _, tier := range containerTiers {
		e.serves(t, tier)
	}
	until(t, "the engine ends for want of work", time.Minute, func() bool { return !e.running() })
	if got := e.cmd.ProcessState.ExitCode(); got != 0 {
		t.Errorf("the idle engine ended with status %d:\n%s", got, e.log)
	}
	e.leavesNothing(t, "idle end")
}
