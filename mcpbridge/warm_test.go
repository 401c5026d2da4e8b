package mcpbridge

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/internal/fake"
	"github.com/sandboxd/sandboxd/sandbox"
)

// heard is what each of a server's sandboxes was told, in the order of starts.
type heard struct {
	mu  sync.Mutex
	all [][]string
	sbs []*fake.Sandbox
}

func (h *heard) start(context.Context) (sandbox.Sandbox, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.all)
	h.all = append(h.all, nil)
	srv := &fake.Server{Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
		h.mu.Lock()
		h.all[n] = append(h.all[n], r.Method)
		h.mu.Unlock()
		if r.Method == "tools/list" {
			return json.RawMessage(`{"tools":` + echoTools + `}`), nil
		}
		return echoHandle(r)
	}}
	sb := fake.Start(srv.Guest)
	h.sbs = append(h.sbs, sb)
	return sb, nil
}

// told is what sandbox n was told so far.
func (h *heard) told(n int) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n >= len(h.all) {
		return "not started"
	}
	return strings.Join(slices.DeleteFunc(slices.Clone(h.all[n]), func(m string) bool { return m == "notifications/initialized" }), " ")
}

func (h *heard) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.all)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// TestWarmCallsAreIntroduced: a sandbox that waits for a call has listed its
// tools, serves that call and no other, and leaves none behind.
func TestWarmCallsAreIntroduced(t *testing.T) {
	var h heard
	r := newRegistry(t, Config{}, Server{Name: "x", Start: h.start, Sharing: SharingCall, Warm: 1, Required: true})
	eventually(t, "a spare has listed its tools", func() bool { return h.told(1) == "tools/list" })
	for n := 1; n <= 3; n++ {
		eventually(t, "the next is ready", func() bool { return h.told(n) == "tools/list" && r.entry("x").warm.listed.Ready() == 1 })
		if res, err := r.Call(t.Context(), "x", "echo", []byte(`{"text":"hi"}`)); err != nil || !res.OK {
			t.Fatalf("%+v, %v", res, err)
		}
		if got := h.told(n); got != "tools/list tools/call" {
			t.Errorf("sandbox %d was told %q", n, got)
		}
	}
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for n, sb := range h.sbs {
		if _, err := sb.Wait(t.Context()); err != nil {
			t.Errorf("sandbox %d: %v", n, err)
		}
	}
}

// TestWarmSessionsIntroduceThemselves: a client with a sandbox of its own is
// the first that its server hears of.
func TestWarmSessionsIntroduceThemselves(t *testing.T) {
	var h heard
	r := newRegistry(t, Config{}, Server{Name: "x", Start: h.start, Warm: 2, Required: true})
	e := r.entry("x")
	eventually(t, "two wait", func() bool { return e.warm.untouched.Ready() == 2 })
	if h.count() != 3 || h.told(1) != "" || h.told(2) != "" {
		t.Errorf("%d were started; those that wait were told %q, %q", h.count(), h.told(1), h.told(2))
	}
	cs := connect(t, serve(t, r).URL+"/mcp/x", nil)
	if _, err := cs.ListTools(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	served := 0
	for n := 1; n <= 2; n++ {
		if h.told(n) == "tools/list" { // by the client, who may have probed the other
			served++
		}
	}
	if served != 1 {
		t.Errorf("%d of those that waited served the client: told %q, %q", served, h.told(1), h.told(2))
	}
	eventually(t, "two wait again", func() bool { return e.warm.untouched.Ready() == 2 })
}

func TestWarmIsBounded(t *testing.T) {
	r, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close(context.Background()) }()
	var h heard
	for _, n := range []int{-1, 17} {
		if err := r.Add(t.Context(), Server{Name: "x", Start: h.start, Warm: n}); err == nil {
			t.Errorf("%d: no error", n)
		}
	}
}
