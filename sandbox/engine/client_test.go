//go:build linux

package engine

import (
	"bufio"
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/sandbox"
)

func TestStartTalksAndExits(t *testing.T) {
	e := startEngine(t, nil)
	c := dialTest(t, e)
	image := layout(t, "a")
	spec := testSpec(image, "/bin/sh", "-c", `read x; echo "got $x $FOO"; echo oops >&2; exit 7`)
	spec.Env = append(spec.Env, "FOO=b\xffr")
	sb, err := c.Start(t.Context(), spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Stdio().In.Write([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(sb.Stdio().Out)
	if err != nil || string(out) != "got hello b\xffr\n" {
		t.Errorf("stdout %q, %v", out, err)
	}
	if errOut, err := io.ReadAll(sb.Stdio().Err); err != nil || string(errOut) != "oops\n" {
		t.Errorf("stderr %q, %v", errOut, err)
	}
	exit, err := sb.Wait(t.Context())
	if want := (sandbox.Exit{Cause: sandbox.Exited, Code: 7, PeakPIDs: 1}); err != nil || exit != want {
		t.Errorf("exit %+v, %v", exit, err)
	}
	e.host.awaitEmpty(t)
	if err := sb.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := sb.Stdio().Out.Read(make([]byte, 1)); !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("read after Close: %v", err)
	}
	got := e.host.last()
	if got.Gateway || got.Owner != 0 || got.Spec.Image.Path != "" {
		t.Errorf("request %+v", got)
	}
	spec.Image.Path = ""
	spec.Limits = got.Spec.Limits
	if diff := cmp.Diff(spec, got.Spec); diff != "" {
		t.Error(diff)
	}
}

func TestImageIsHandedOverOnce(t *testing.T) {
	e := startEngine(t, nil)
	image := layout(t, "b")
	var mu sync.Mutex
	var sent, total int64
	c, err := Dial(t.Context(), ClientConfig{Socket: e.socket, Progress: func(_ string, s, n int64) {
		mu.Lock()
		defer mu.Unlock()
		sent, total = s, n
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(context.Background()) }()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			sb, err := c.Start(t.Context(), testSpec(image, "/bin/true"), nil)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := sb.Wait(t.Context()); err != nil {
				t.Error(err)
			}
			if err := sb.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	e.host.mu.Lock()
	imports := e.host.imports
	e.host.mu.Unlock()
	if imports != 1 {
		t.Errorf("%d imports, want 1", imports)
	}
	if sent != total || total < 1<<17 {
		t.Errorf("progress ended at %d of %d", sent, total)
	}
}

func TestBadImagesAreRefused(t *testing.T) {
	e := startEngine(t, nil)
	c := dialTest(t, e)
	image := layout(t, "c")
	missing := image
	missing.Digest = "sha256:" + "00" + image.Digest[len("sha256:")+2:]
	elsewhere := image
	elsewhere.Path = "/nonexistent"
	for _, im := range []sandbox.Image{missing, elsewhere} {
		if _, err := c.Start(t.Context(), testSpec(im, "/bin/true"), nil); !errors.Is(err, sandbox.ErrInvalid) {
			t.Errorf("start from %+v: %v", im, err)
		}
	}
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	if len(e.host.requests) > 0 {
		t.Error("something was started")
	}
}

func TestCloseClimbsTheLadder(t *testing.T) {
	for name, tc := range map[string]struct {
		script string
		ctx    time.Duration
		want   sandbox.Exit
	}{
		"ends with stdin": {`cat; exit 3`, time.Minute, sandbox.Exit{Cause: sandbox.Exited, Code: 3, PeakPIDs: 1}},
		"ends with TERM":  {`trap 'exit 4' TERM; echo up; while :; do sleep 0.05; done`, time.Minute, sandbox.Exit{Cause: sandbox.Exited, Code: 4, PeakPIDs: 1}},
		"ignores all":     {`trap '' TERM; echo up; while :; do sleep 0.05; done`, time.Minute, sandbox.Exit{Cause: sandbox.Killed, Signal: 9, Code: 137}},
		"killed at once":  {`trap '' TERM; echo up; while :; do sleep 0.05; done`, time.Millisecond, sandbox.Exit{Cause: sandbox.Killed, Signal: 9, Code: 137}},
	} {
		t.Run(name, func(t *testing.T) {
			e := startEngine(t, nil)
			c := dialTest(t, e)
			sb, err := c.Start(t.Context(), testSpec(layout(t, "d"), "/bin/sh", "-c", "echo up; "+tc.script), nil)
			if err != nil {
				t.Fatal(err)
			}
			out := bufio.NewReader(sb.Stdio().Out)
			if line, err := out.ReadString('\n'); err != nil || line != "up\n" {
				t.Fatal(line, err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), tc.ctx)
			defer cancel()
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					if err := sb.Close(ctx); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if exit, err := sb.Wait(t.Context()); err != nil || exit != tc.want {
				t.Errorf("exit %+v, %v; want %+v", exit, err, tc.want)
			}
			e.host.awaitEmpty(t)
		})
	}
}

func TestCloseUnblocksReads(t *testing.T) {
	e := startEngine(t, nil)
	c := dialTest(t, e)
	// The grandchild keeps stdout open beyond its parent's group.
	sb, err := c.Start(t.Context(), testSpec(layout(t, "e"), "/bin/sh", "-c", "exec sleep 600"), nil)
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		_, err := sb.Stdio().Out.Read(make([]byte, 1))
		read <- err
	}()
	if err := sb.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-read; err == nil {
		t.Error("the read gave data")
	}
}

func TestEngineDeathIsAHostFault(t *testing.T) {
	e := startEngine(t, nil)
	c := dialTest(t, e)
	image := layout(t, "f")
	var all []sandbox.Sandbox
	for range 5 {
		sb, err := c.Start(t.Context(), testSpec(image, "/bin/cat"), nil)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, sb)
	}
	reads := make(chan error, len(all))
	for _, sb := range all {
		go func() {
			_, err := sb.Stdio().Out.Read(make([]byte, 1))
			reads <- err
		}()
	}
	// The connection breaks as it would if the engine were killed.
	c.mu.Lock()
	c.session.conn.close()
	c.mu.Unlock()
	for _, sb := range all {
		exit, err := sb.Wait(t.Context())
		if err != nil || exit.Cause != sandbox.HostFault {
			t.Errorf("exit %+v, %v", exit, err)
		}
		if err := <-reads; err == nil {
			t.Error("a read gave data")
		}
		if err := sb.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	e.host.awaitEmpty(t)
	// The next start finds the engine again.
	sb, err := c.Start(t.Context(), testSpec(image, "/bin/true"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := sb.Wait(t.Context()); err != nil || exit.Cause != sandbox.Exited {
		t.Errorf("exit %+v, %v", exit, err)
	}
	if err := sb.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestStartGivenUpLeavesNothing(t *testing.T) {
	e := startEngine(t, nil)
	entered := make(chan struct{}, 1)
	e.host.onStart(func(ctx context.Context) error {
		entered <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	c := dialTest(t, e)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-entered; cancel() }()
	if _, err := c.Start(ctx, testSpec(layout(t, "g"), "/bin/cat"), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Start: %v", err)
	}
	// Started all the same: the client must have it undone.
	ctx, cancel = context.WithCancel(t.Context())
	e.host.onStart(func(hctx context.Context) error {
		cancel()
		<-hctx.Done()
		return nil
	})
	if _, err := c.Start(ctx, testSpec(layout(t, "g"), "/bin/cat"), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Start: %v", err)
	}
	e.host.awaitEmpty(t)
	if list, err := c.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("list %v, %v", list, err)
	}
}

func TestTiersAreHonest(t *testing.T) {
	e := startEngine(t, func(c *Config) { c.Tiers = []sandbox.Isolation{sandbox.Container} })
	c := dialTest(t, e)
	for _, tier := range []sandbox.Isolation{sandbox.GVisor, sandbox.Kata, sandbox.WASM} {
		spec := testSpec(layout(t, "h"), "/bin/true")
		spec.Isolation = tier
		var missing *sandbox.UnavailableError
		if _, err := c.Start(t.Context(), spec, nil); !errors.As(err, &missing) || missing.Tier != tier {
			t.Errorf("%s: %v", tier, err)
		}
	}
	info, err := c.Info(t.Context())
	if diff := cmp.Diff(Info{Version: "test", Tiers: []sandbox.Isolation{sandbox.Container}}, info); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

func TestQuotasHold(t *testing.T) {
	e := startEngine(t, func(c *Config) {
		c.Quota = Quota{UserSandboxes: 2, UserConnections: 2}
		c.Ceiling = sandbox.Limits{MemoryBytes: 256 << 20, CPUs: 2}
	})
	c := dialTest(t, e)
	image := layout(t, "i")
	var all []sandbox.Sandbox
	for range 2 {
		sb, err := c.Start(t.Context(), testSpec(image, "/bin/cat"), nil)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, sb)
	}
	if l := e.host.last().Spec.Limits; l.MemoryBytes != 256<<20 || l.CPUs != 1 {
		t.Errorf("limits %+v", l)
	}
	if _, err := c.Start(t.Context(), testSpec(image, "/bin/cat"), nil); !errors.Is(err, ErrQuota) {
		t.Errorf("third start: %v", err)
	}
	list, err := c.List(t.Context())
	if err != nil || len(list) != 2 || list[0].ID != all[0].ID() || list[1].Name != "srv" {
		t.Errorf("list %+v, %v", list, err)
	}
	if err := all[0].Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	spec := testSpec(image, "/bin/cat")
	spec.Limits.MemoryBytes = 512 << 20
	if _, err := c.Start(t.Context(), spec, nil); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("over the ceiling: %v", err)
	}
	if _, err := c.Start(t.Context(), testSpec(image, "/bin/cat"), nil); err != nil {
		t.Errorf("start after a place came free: %v", err)
	}
	dialTest(t, e)
	if _, err := Dial(t.Context(), ClientConfig{Socket: e.socket}); !errors.Is(err, ErrQuota) {
		t.Errorf("third connection: %v", err)
	}
}

func TestManyAtOnce(t *testing.T) {
	e := startEngine(t, nil)
	c := dialTest(t, e)
	image := layout(t, "j")
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			sb, err := c.Start(t.Context(), testSpec(image, "/bin/cat"), nil)
			if err != nil {
				t.Error(err)
				return
			}
			line := string(rune('a'+i%26)) + "\n"
			if _, err := io.WriteString(sb.Stdio().In, line); err != nil {
				t.Error(err)
			}
			if got, err := bufio.NewReader(sb.Stdio().Out).ReadString('\n'); err != nil || got != line {
				t.Error(got, err)
			}
			if i%2 == 0 { // the rest is left to Client.Close
				if err := sb.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	e.host.awaitEmpty(t)
	if _, err := c.Start(t.Context(), testSpec(image, "/bin/cat"), nil); !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("Start after Close: %v", err)
	}
}
