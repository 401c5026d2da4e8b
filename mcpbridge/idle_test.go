package mcpbridge

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandboxd/sandboxd/mcpbridge/internal/fake"
	"github.com/sandboxd/sandboxd/sandbox"
)

// counted is a server whose starts are counted and whose list is cached.
func counted(n *atomic.Int64, key *string, guest func() fake.Guest) Server {
	return Server{
		Name: "x", CacheKey: func(context.Context) (string, error) { return *key, nil },
		Start: func(context.Context) (sandbox.Sandbox, error) {
			n.Add(1)
			return fake.Start(guest()), nil
		},
	}
}

func echoGuest() fake.Guest { return echoServer().Guest }

func registryOn(t *testing.T, dir string, s Server) *Registry {
	t.Helper()
	r := newRegistry(t, Config{StateDir: dir}, s)
	if err := r.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestCachedListNeedsNoStart(t *testing.T) {
	dir, key := t.TempDir(), "digest a"
	var n atomic.Int64
	r := registryOn(t, dir, counted(&n, &key, echoGuest))
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.Store(0)
	r = registryOn(t, dir, counted(&n, &key, echoGuest))
	if keys(r) != "echo" || n.Load() != 0 || r.Status()[0].State != StateIdle {
		t.Errorf("listed %q with %d starts, %s", keys(r), n.Load(), r.Status()[0].State)
	}
	cs := connect(t, serve(t, r).URL+"/mcp", nil)
	if list, err := cs.ListTools(t.Context(), nil); err != nil || len(list.Tools) != 1 || n.Load() != 0 {
		t.Errorf("%+v, %v, %d starts", list, err, n.Load())
	}
	if list, err := cs.ListPrompts(t.Context(), nil); err != nil || len(list.Prompts) != 0 || n.Load() != 0 {
		t.Errorf("a server without prompts was started for their list: %+v, %v, %d starts", list, err, n.Load())
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := r.Call(t.Context(), "x", "echo", []byte(`{"text":"hi"}`)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n.Load() != 1 {
		t.Errorf("8 calls started %d sandboxes", n.Load())
	}
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	key = "digest b"
	n.Store(0)
	registryOn(t, dir, counted(&n, &key, echoGuest))
	if n.Load() != 1 {
		t.Errorf("another image's list was used: %d starts", n.Load())
	}
}

func TestDamagedCacheIsNone(t *testing.T) {
	dir, key := t.TempDir(), "k"
	var n atomic.Int64
	if err := os.MkdirAll(listsDir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	for i, bad := range []string{``, `{`, `[]`, `{"version":1,"key":"other","tools":[]}`, `{"version":2,"key":"k","tools":[]}`} {
		if err := os.WriteFile(filepath.Join(listsDir(dir), cacheName(key)+".json"), []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		r := registryOn(t, dir, counted(&n, &key, echoGuest))
		if keys(r) != "echo" || n.Load() != int64(i+1) {
			t.Errorf("with %q: %s, %d starts", bad, keys(r), n.Load())
		}
	}
}

func TestIdleStop(t *testing.T) {
	key := ""
	var n atomic.Int64
	s := counted(&n, &key, func() fake.Guest { return sdkServer })
	s.IdleStop, s.Required, s.CacheKey = 20*time.Millisecond, true, nil
	r := newRegistry(t, Config{}, s)
	idle := func() {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); r.Status()[0].State != StateIdle; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the server was not stopped")
			}
		}
	}
	idle()
	url := serve(t, r).URL
	cs := connect(t, url+"/mcp", nil)
	if status, _, _ := do(t, "GET", url+"/healthz", ""); status != 200 {
		t.Errorf("health of an idle server: %d", status)
	}
	if list, err := cs.ListPrompts(t.Context(), nil); err != nil || len(list.Prompts) != 1 {
		t.Errorf("prompts of an idle server: %+v, %v", list, err)
	}
	for i := range 5 { // calls that race with the stop never fail
		if _, err := r.Call(t.Context(), "x", "work", nil); err != nil {
			t.Errorf("call %d: %v", i, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	idle()
	before := n.Load()
	if list, err := cs.ListPrompts(t.Context(), nil); err != nil || len(list.Prompts) != 1 || n.Load() != before {
		t.Errorf("a list that is known started the server: %+v, %v", list, err)
	}
	if err := cs.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "mcp-x+test://a"}); err != nil {
		t.Fatal(err)
	}
	before = n.Load()
	time.Sleep(100 * time.Millisecond) // five times what makes it idle
	if st := r.Status()[0]; st.State != StateReady || n.Load() != before {
		t.Errorf("a server with a subscription is %s", st.State)
	}
}

// A start that a call asked for and that fails tells the call why.
func TestStartOnDemandFails(t *testing.T) {
	dir, key := t.TempDir(), "k"
	var n atomic.Int64
	guest := echoGuest
	s := counted(&n, &key, func() fake.Guest { return guest() })
	r := registryOn(t, dir, s)
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	guest = func() fake.Guest { return (&fake.Server{Version: "1.0"}).Guest }
	r = registryOn(t, dir, s)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := r.Call(ctx, "x", "echo", []byte(`{"text":"hi"}`))
	if e := asError(err); err == nil || e.Code != CodeServerDown {
		t.Errorf("got %v", err)
	}
}

func TestSharingCall(t *testing.T) {
	key := ""
	var n atomic.Int64
	s := counted(&n, &key, echoGuest)
	s.Sharing, s.Required, s.CacheKey = SharingCall, true, nil
	r := newRegistry(t, Config{}, s)
	url := serve(t, r).URL
	agg, raw := connect(t, url+"/mcp", nil), connect(t, url+"/mcp/x", nil)
	before := n.Load()
	args := map[string]any{"text": "hi"}
	if _, err := agg.CallTool(t.Context(), &mcp.CallToolParams{Name: "mcp_x_echo", Arguments: args}); err != nil {
		t.Error(err)
	}
	if _, err := raw.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo", Arguments: args}); err != nil {
		t.Error(err)
	}
	if _, err := r.Call(t.Context(), "x", "echo", []byte(`{"text":"hi"}`)); err != nil {
		t.Error(err)
	}
	if got := n.Load() - before; got != 3 {
		t.Errorf("3 calls started %d sandboxes", got)
	}
}

func TestSharingSessionKeepsClientsApart(t *testing.T) {
	key := ""
	var n atomic.Int64
	s := counted(&n, &key, echoGuest)
	s.Sharing, s.Required, s.CacheKey, s.Limits.Sessions = SharingSession, true, nil, 2
	r := newRegistry(t, Config{}, s)
	url := serve(t, r).URL + "/mcp"
	before := n.Load()
	call := func(cs *mcp.ClientSession) error {
		_, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "mcp_x_echo", Arguments: map[string]any{"text": "hi"}})
		return err
	}
	one, two, three := connectAs(t, url, nil, "2025-11-25"), connectAs(t, url, nil, "2025-11-25"), connectAs(t, url, nil, "2025-11-25")
	for _, cs := range []*mcp.ClientSession{one, two, one, two} {
		if err := call(cs); err != nil {
			t.Error(err)
		}
	}
	if got := n.Load() - before; got != 2 {
		t.Errorf("2 sessions started %d sandboxes", got)
	}
	if err := call(three); err == nil {
		t.Error("a third session got a sandbox beyond the limit of 2")
	}
}
