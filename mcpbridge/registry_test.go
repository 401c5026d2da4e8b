package mcpbridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/mcpbridge/internal/fake"
	"github.com/sandboxd/sandboxd/sandbox"
)

const echoTools = `[{"name":"echo","description":"says it again","inputSchema":{"type":"object","properties":{"text":{"type":"string"},"n":{"type":"integer"}},"required":["text"]},"execution":{"taskSupport":"forbidden"},"x-unknown":12345678901234567890}]`

func echoHandle(r *fake.Request) (json.RawMessage, *fake.Error) {
	if r.Method != "tools/call" {
		return nil, &fake.Error{Code: -32601, Message: "method not found"}
	}
	_, args := r.Tool()
	return json.RawMessage(fmt.Sprintf(`{"content":[{"type":"text","text":%q}],"_meta":{"big":9007199254740993,"f":1.50}}`, args)), nil
}

func echoServer() *fake.Server { return &fake.Server{Tools: echoTools, Handle: echoHandle} }

// starts makes a Start function that runs a new fake each time, and remembers
// the newest.
func starts(newServer func() *fake.Server) (func(context.Context) (sandbox.Sandbox, error), *atomic.Pointer[fake.Sandbox]) {
	var last atomic.Pointer[fake.Sandbox]
	return func(context.Context) (sandbox.Sandbox, error) {
		sb := fake.Start(newServer().Guest)
		last.Store(sb)
		return sb, nil
	}, &last
}

func newRegistry(t testing.TB, cfg Config, servers ...Server) *Registry {
	t.Helper()
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.backoff = func(int) time.Duration { return time.Millisecond }
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := r.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := r.Add(ctx, servers...); err != nil {
		t.Fatal(err)
	}
	return r
}

func echoRegistry(t testing.TB, cfg Config) *Registry {
	start, _ := starts(echoServer)
	return newRegistry(t, cfg, Server{Name: "My Echo", Start: start, Required: true})
}

func TestConnector(t *testing.T) {
	r := echoRegistry(t, Config{})
	c := r.Connectors()[0]
	got, err := json.Marshal(c.Descriptor())
	if err != nil {
		t.Fatal(err)
	}
	want := `{"name":"my_echo","label":"My Echo","type":"api","actions":[{"key":"echo","label":"echo","description":"says it again","inputSchema":{"type":"object","properties":{"text":{"type":"string"},"n":{"type":"integer"}},"required":["text"]}}]}`
	if string(got) != want {
		t.Errorf("descriptor\n got %s\nwant %s", got, want)
	}
	res, err := c.Call(t.Context(), "echo", json.RawMessage(`{"text":"hi","n":12345678901234567890}`))
	if err != nil {
		t.Fatal(err)
	}
	if want := `[{"type":"text","text":"{\"text\":\"hi\",\"n\":12345678901234567890}"}]`; string(res.Content) != want || !res.OK {
		t.Errorf("content %s, want %s", res.Content, want)
	}
}

func TestCallErrors(t *testing.T) {
	r := echoRegistry(t, Config{})
	for _, tt := range []struct {
		name, action, args string
		code               Code
		path               string
	}{
		{"nobody", "echo", `{}`, CodeUnknownConnector, ""},
		{"my_echo", "nothing", `{}`, CodeUnknownAction, ""},
		{"my_echo", "echo", `{}`, CodeInvalidArguments, ""},
		{"my_echo", "echo", `{"text":1}`, CodeInvalidArguments, "/text"},
		{"my_echo", "echo", `[]`, CodeInvalidArguments, ""},
		{"my_echo", "echo", `{"text":"x","n":1.5}`, CodeInvalidArguments, "/n"},
		{"my_echo", "echo", `{"text":"x"`, CodeInvalidArguments, ""},
	} {
		_, err := r.Call(t.Context(), tt.name, tt.action, json.RawMessage(tt.args))
		var e *Error
		if !errors.As(err, &e) || e.Code != tt.code || e.Path != tt.path {
			t.Errorf("%s %s %s: got %v (path %q), want %s at %q", tt.name, tt.action, tt.args, err, e.Path, tt.code, tt.path)
		}
	}
}

func TestRequiredServerFailsLoud(t *testing.T) {
	r := newRegistry(t, Config{})
	start, _ := starts(echoServer)
	boom := errors.New("image is missing: run make images")
	err := r.Add(t.Context(),
		Server{Name: "good", Start: start},
		Server{Name: "bad", Required: true, Start: func(context.Context) (sandbox.Sandbox, error) { return nil, boom }})
	if !errors.Is(err, boom) || !strings.Contains(err.Error(), `required server "bad"`) {
		t.Fatalf("got %v", err)
	}
	if n := len(r.list()); n != 0 {
		t.Errorf("%d servers stayed behind", n)
	}
}

func TestOptionalServerIsRetried(t *testing.T) {
	var tries atomic.Int32
	start, _ := starts(echoServer)
	r := newRegistry(t, Config{}, Server{Name: "late", Start: func(ctx context.Context) (sandbox.Sandbox, error) {
		if tries.Add(1) < 3 {
			return nil, errors.New("not yet")
		}
		return start(ctx)
	}})
	if err := r.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "not yet") {
		t.Errorf("first start: %v", err)
	}
	waitState(t, r, "late", StateReady)
	if got := tries.Load(); got != 3 {
		t.Errorf("%d tries", got)
	}
}

func waitState(t testing.TB, r *Registry, slug string, want State) {
	t.Helper()
	waitStatus(t, r, slug, func(s Status) bool { return s.State == want })
}

func waitStatus(t testing.TB, r *Registry, slug string, ok func(Status) bool) {
	t.Helper()
	events, stop := r.events.follow()
	defer stop()
	timeout := time.After(15 * time.Second)
	for {
		for _, s := range r.Status() {
			if s.Name == slug && ok(s) {
				return
			}
		}
		select {
		case <-events:
		case <-timeout:
			t.Fatalf("%s did not get there: %+v", slug, r.Status())
		}
	}
}

func TestCrashFailsPendingAndRestarts(t *testing.T) {
	called := make(chan struct{}, 8)
	start, last := starts(func() *fake.Server {
		return &fake.Server{Tools: echoTools, Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
			if _, args := r.Tool(); strings.Contains(string(args), "hang") {
				called <- struct{}{}
				return nil, nil
			}
			return echoHandle(r)
		}}
	})
	r := newRegistry(t, Config{}, Server{Name: "x", Start: start, Required: true})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			_, err := r.Call(t.Context(), "x", "echo", json.RawMessage(`{"text":"hang"}`))
			var e *Error
			if !errors.As(err, &e) || e.Code != CodeServerDown || !strings.Contains(e.Message, "killed by signal 9") {
				t.Errorf("got %v", err)
			}
		})
	}
	for range 8 {
		<-called
	}
	last.Load().Kill()
	wg.Wait()
	waitStatus(t, r, "x", func(s Status) bool { return s.State == StateReady && s.Starts == 2 })
	if _, err := r.Call(t.Context(), "x", "echo", json.RawMessage(`{"text":"again"}`)); err != nil {
		t.Errorf("after the restart: %v", err)
	}
}

func TestRestartLimitAndRetry(t *testing.T) {
	var tries atomic.Int32
	r := newRegistry(t, Config{}, Server{Name: "x", Limits: Limits{Restarts: 3}, Start: func(context.Context) (sandbox.Sandbox, error) {
		tries.Add(1)
		return nil, errors.New("broken")
	}})
	waitState(t, r, "x", StateFailed)
	if got := tries.Load(); got != 4 {
		t.Errorf("%d starts, want the first and 3 restarts", got)
	}
	_, err := r.Call(t.Context(), "x", "echo", nil)
	if e := asError(err); e.Code != CodeServerDown || !strings.Contains(e.Message, "broken") {
		t.Errorf("call: %v", err)
	}
	if err := r.Retry("x"); err != nil {
		t.Fatal(err)
	}
	waitState(t, r, "x", StateDown)
}

func TestTimeoutSendsCancelled(t *testing.T) {
	got := make(chan string, 4)
	start, _ := starts(func() *fake.Server {
		return &fake.Server{Tools: echoTools, Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
			if r.Method == "notifications/cancelled" {
				got <- string(r.Params)
			}
			return nil, nil
		}}
	})
	r := newRegistry(t, Config{}, Server{Name: "x", Start: start, Required: true, CallTimeout: 30 * time.Millisecond})
	_, err := r.Call(t.Context(), "x", "echo", json.RawMessage(`{"text":"slow"}`))
	if e := asError(err); e.Code != CodeTimeout {
		t.Fatalf("got %v", err)
	}
	if p := <-got; !strings.Contains(p, `"reason":"timed out"`) || !strings.Contains(p, `"requestId":3`) {
		t.Errorf("cancelled with %s", p)
	}
}

func TestListChangedIsANewAdmission(t *testing.T) {
	var list atomic.Pointer[string]
	first := echoTools
	list.Store(&first)
	start, _ := starts(func() *fake.Server {
		return &fake.Server{Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
			switch r.Method {
			case "tools/list":
				return json.RawMessage(`{"tools":` + *list.Load() + `}`), nil
			case "tools/call":
				next := `[{"name":"other","inputSchema":{"type":"object"}}]`
				list.Store(&next)
				r.Write(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
			}
			return echoHandle(r)
		}}
	})
	r := newRegistry(t, Config{}, Server{Name: "x", Start: start, Required: true})
	events, stop := r.events.follow()
	defer stop()
	if _, err := r.Call(t.Context(), "x", "echo", json.RawMessage(`{"text":"a"}`)); err != nil {
		t.Fatal(err)
	}
	for ev := range events {
		if ev.Type != EventTools {
			continue
		}
		if diff := cmp.Diff([]string{"other"}, ev.Added); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{"echo"}, ev.Removed); diff != "" {
			t.Error(diff)
		}
		break
	}
	if _, err := r.Call(t.Context(), "x", "echo", json.RawMessage(`{"text":"a"}`)); asError(err).Code != CodeUnknownAction {
		t.Errorf("the removed tool: %v", err)
	}
	if _, err := r.Call(t.Context(), "x", "other", nil); err != nil {
		t.Errorf("the added tool: %v", err)
	}
}

func TestNoHeadOfLineBlocking(t *testing.T) {
	release := make(chan struct{})
	slow, _ := starts(func() *fake.Server {
		return &fake.Server{Tools: echoTools, Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
			<-release
			return echoHandle(r)
		}}
	})
	fast, _ := starts(echoServer)
	r := newRegistry(t, Config{}, Server{Name: "fast", Start: fast, Required: true},
		Server{Name: "slow", Start: slow, Limits: Limits{InFlight: 1, Queue: 2}})
	waitSnap := func() { // its initialized notification blocks it, so that it lists nothing
		_, err := r.Call(t.Context(), "slow", "echo", json.RawMessage(`{"text":"a"}`))
		if asError(err).Code != CodeServerDown {
			t.Errorf("slow: %v", err)
		}
	}
	waitSnap()
	for range 100 {
		if _, err := r.Call(t.Context(), "fast", "echo", json.RawMessage(`{"text":"a"}`)); err != nil {
			t.Fatal(err)
		}
	}
	close(release)
}

func TestQueueIsBounded(t *testing.T) {
	release := make(chan struct{})
	in := make(chan struct{}, 8)
	start, _ := starts(func() *fake.Server {
		return &fake.Server{Tools: echoTools, Concurrent: true, Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
			if r.Method == "tools/call" {
				in <- struct{}{}
				<-release
			}
			return echoHandle(r)
		}}
	})
	r := newRegistry(t, Config{}, Server{Name: "x", Start: start, Required: true, Limits: Limits{InFlight: 2, Queue: 1}})
	var wg sync.WaitGroup
	var busy, ok atomic.Int32
	call := func() {
		_, err := r.Call(t.Context(), "x", "echo", json.RawMessage(`{"text":"a"}`))
		switch {
		case err == nil:
			ok.Add(1)
		case asError(err).Code == CodeBusy:
			busy.Add(1)
		default:
			t.Error(err)
		}
	}
	wg.Go(call)
	wg.Go(call)
	<-in
	<-in
	ready := make(chan struct{}, 5)
	for range 5 {
		wg.Go(func() { call(); ready <- struct{}{} })
	}
	for range 4 {
		<-ready // four are refused at once, one waits
	}
	close(release)
	wg.Wait()
	if busy.Load() != 4 || ok.Load() != 3 {
		t.Errorf("%d refused and %d served, want 4 and 3", busy.Load(), ok.Load())
	}
}
