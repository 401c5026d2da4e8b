//go:build linux

package container

import (
	"context"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

// bombs are what a guest can spend. Each goes off under high but finite
// limits, and meets the low ones.
var bombs = map[string]struct {
	op        string
	args      []string
	high, low sandbox.Limits
}{
	"fork":   {"fork", []string{"200"}, sandbox.Limits{PIDs: 1000}, sandbox.Limits{PIDs: 64}},
	"memory": {"eat", []string{"200"}, sandbox.Limits{MemoryBytes: 512 << 20}, sandbox.Limits{MemoryBytes: 128 << 20}},
	"disk":   {"fill", []string{"/tmp/fill", "64"}, sandbox.Limits{TmpBytes: 128 << 20}, sandbox.Limits{TmpBytes: 8 << 20}},
	// gVisor counts no inodes: there, their memory is the bound.
	"inodes": {"inodes", []string{"/tmp", strconv.Itoa(tmpInodes + 1000)}, sandbox.Limits{}, sandbox.Limits{MemoryBytes: 160 << 20}},
}

// TestBombs: what goes off under high limits meets the low ones, in both tiers.
func TestBombs(t *testing.T) {
	h := newHost(t)
	weak := weakHost(t, func(s *specs.Spec) { // inodes are no limit of the request
		for i, m := range s.Mounts {
			s.Mounts[i].Options = slices.DeleteFunc(slices.Clone(m.Options), func(o string) bool { return strings.HasPrefix(o, "nr_inodes=") })
		}
	})
	for name, bomb := range bombs {
		t.Run(name, func(t *testing.T) {
			req := request()
			req.Spec.Limits = bomb.high
			start(t, weak, req).must(bomb.op, bomb.args...)
			eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
				req := request()
				req.Spec.Isolation, req.Spec.Limits = tier, bomb.low
				req.Spec.Limits.StopGrace = 100 * time.Millisecond
				g := start(t, h, req)
				g.send(bomb.op, bomb.args...)
				reply, err := g.out.ReadString('\n')
				if err == nil && strings.Contains(reply, `"Err":""`) && (tier != sandbox.GVisor || name != "fork") {
					t.Errorf("it went off: %s", reply)
				}
				if err := g.box.Stop(t.Context()); err != nil {
					t.Fatal(err)
				}
				e := g.exit()
				t.Logf("%s %v, exit %+v", strings.TrimSpace(reply), err, e)
				pids := bomb.low.WithDefaults().PIDs
				if tier == sandbox.GVisor {
					pids += gvisorPIDs // the host counts gVisor's own with them
				}
				// The kernel charges memory some pages at a time.
				if e.PeakPIDs > pids || e.PeakMemoryBytes > bomb.low.WithDefaults().MemoryBytes+1<<20 {
					t.Errorf("it had more than it may: %+v", e)
				}
			})
		})
	}
}

// TestFloodsAreHeld: what a guest writes and nobody reads costs the host a
// pipe's buffer, a line without an end like any other.
func TestFloodsAreHeld(t *testing.T) {
	h := newHost(t)
	for _, to := range []string{"out", "err"} {
		t.Run(to, func(t *testing.T) {
			eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
				req := request("flood", to)
				req.Spec.Isolation = tier
				g := start(t, h, req)
				f := g.files.Stdout
				if to == "err" {
					f = g.files.Stderr
				}
				// It goes on for as long as somebody reads.
				if _, err := io.CopyN(io.Discard, f, 8<<20); err != nil {
					t.Fatal(err)
				}
				waiting := pending(t, f)
				for range 20 { // until it has filled all that it can
					time.Sleep(10 * time.Millisecond)
					waiting = max(waiting, pending(t, f))
				}
				if waiting > 1<<20 {
					t.Errorf("%d bytes wait for a reader", waiting)
				}
				began := time.Now()
				if err := g.box.Stop(t.Context()); err != nil {
					t.Error(err)
				}
				if d := time.Since(began); d > 5*time.Second {
					t.Errorf("stop took %s", d)
				}
			})
		})
	}
}

func pending(t *testing.T, f *os.File) int {
	t.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var n int
	var ierr error
	if err := raw.Control(func(fd uintptr) { n, ierr = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); err != nil || ierr != nil {
		t.Fatal(err, ierr)
	}
	return n
}

// TestGuestClosesStdin: a caller that writes to a guest that has closed its
// input is told so, and is not held up.
func TestGuestClosesStdin(t *testing.T) {
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) {
		req := request()
		req.Spec.Isolation = tier
		g := start(t, newHost(t), req)
		g.must("close stdin")
		if err := g.files.Stdin.SetWriteDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		var err error
		for range 64 {
			if _, err = g.files.Stdin.Write(make([]byte, 1<<16)); err != nil {
				break
			}
		}
		if err == nil || os.IsTimeout(err) {
			t.Errorf("writing to a closed input: %v", err)
		}
	})
}

// TestNeighbourUnderBombs: while guests beside it spend all that they may, a
// sandbox loses no call.
func TestNeighbourUnderBombs(t *testing.T) {
	h := newHost(t)
	eachTier(t, func(t *testing.T, tier sandbox.Isolation) { besideBombs(t, h, tier) })
}

func besideBombs(t *testing.T, h *host, tier sandbox.Isolation) {
	req := request()
	req.Spec.Isolation = tier
	neighbour := start(t, h, req)
	const calls = 300
	quiet := latencies(neighbour, calls)

	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, b := range []struct {
		limits sandbox.Limits
		op     string
		args   []string
	}{
		{sandbox.Limits{PIDs: 128}, "fork", []string{"1000"}},
		{sandbox.Limits{MemoryBytes: 128 << 20}, "eat", []string{"1024"}},
		{sandbox.Limits{TmpBytes: 64 << 20}, "fill", []string{"/tmp/fill", "1024"}},
		{sandbox.Limits{}, "flood", nil},
	} {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := explode(ctx, h, b.limits, b.op, b.args); err != nil {
					t.Errorf("%s: %v", b.op, err)
					return
				}
			}
		})
	}
	loud := latencies(neighbour, calls)
	cancel()
	wg.Wait()
	for name, l := range map[string][]time.Duration{"quiet": quiet, "under bombs": loud} {
		t.Logf("%-12s %d calls, none lost: median %s, p99 %s, longest %s", name, len(l), l[len(l)/2], l[len(l)*99/100], l[len(l)-1])
	}
	t.Logf("ratio of medians %.2f", float64(loud[len(loud)/2])/float64(quiet[len(quiet)/2]))
}

// latencies makes calls, none of which may fail, and sorts how long they took.
func latencies(g *guest, calls int) []time.Duration {
	g.t.Helper()
	var out []time.Duration
	for range calls {
		began := time.Now()
		g.must("ids")
		out = append(out, time.Since(began))
		time.Sleep(2 * time.Millisecond) // a caller's own pace
	}
	slices.Sort(out)
	return out
}

// explode sets one bomb off until it has spent itself or ctx ends.
func explode(ctx context.Context, h *host, limits sandbox.Limits, op string, args []string) (err error) {
	req := request()
	if op == "flood" {
		req = request("flood", "out")
	}
	req.Spec.Image.Digest, req.Spec.Limits = lab.digest, limits
	req.Spec.Limits.StopGrace = 100 * time.Millisecond
	b, f, err := h.Start(context.WithoutCancel(ctx), req)
	if err != nil {
		return err
	}
	drained := make(chan struct{})
	go func() { defer close(drained); _, _ = io.Copy(io.Discard, f.Stdout) }()
	if op != "flood" {
		line := `{"Op":"` + op + `","Args":["` + strings.Join(args, `","`) + `"]}` + "\n"
		for ctx.Err() == nil { // until it is dead
			if _, err := io.WriteString(f.Stdin, line); err != nil {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
	} else {
		<-ctx.Done()
	}
	err = b.Stop(context.WithoutCancel(ctx))
	<-drained
	_ = closeFiles(f)
	return err
}
