package mcpbridge

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/sandboxd/sandboxd/mcpbridge/internal/fake"
)

// gate is a server whose calls wait until they are let go, in the order in
// which they came.
type gate struct {
	came chan string
	let  chan struct{}
}

func (g *gate) server() *fake.Server {
	return &fake.Server{Tools: echoTools, Concurrent: true, Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
		if r.Method == "tools/call" {
			_, args := r.Tool()
			g.came <- string(args)
			<-g.let
		}
		return echoHandle(r)
	}}
}

// TestCallersTakeTurns has one caller fill a server's queue before another
// asks once: the other waits for one call, not for all.
func TestCallersTakeTurns(t *testing.T) {
	g := &gate{came: make(chan string, 64), let: make(chan struct{})}
	start, _ := starts(g.server)
	r := newRegistry(t, Config{}, Server{Name: "x", Start: start, Required: true, Limits: Limits{InFlight: 1, Queue: 16}})
	e := r.entry("x")
	var wg sync.WaitGroup
	call := func(who, text string) {
		wg.Go(func() {
			if _, err := r.Call(WithCaller(t.Context(), who), "x", "echo", json.RawMessage(`{"text":"`+text+`"}`)); err != nil {
				t.Errorf("%s: %v", text, err)
			}
		})
	}
	waiting := func(n int) {
		for e.places.Waiting() < n {
			// Entering the queue tells nobody.
			if t.Context().Err() != nil {
				t.Fatal("nobody waits")
			}
		}
	}
	call("greedy", "greedy")
	first := <-g.came
	for i := range 10 {
		call("greedy", "greedy")
		waiting(i + 1)
	}
	call("modest", "modest")
	waiting(11)
	order := []string{first}
	for range 11 {
		g.let <- struct{}{}
		order = append(order, <-g.came)
	}
	close(g.let)
	wg.Wait()
	if !strings.Contains(strings.Join(order[:3], " "), "modest") {
		t.Errorf("served in the order %v", order)
	}
}

// TestStalledServersLeaveRoom fills every place of the registry with calls to
// servers that do not answer: another server's calls are served all the same.
func TestStalledServersLeaveRoom(t *testing.T) {
	g := &gate{came: make(chan string, 64), let: make(chan struct{})}
	stalled, _ := starts(g.server)
	quick, _ := starts(echoServer)
	r := newRegistry(t, Config{MaxCalls: 4}, Server{Name: "a", Start: stalled, Required: true}, Server{Name: "b", Start: stalled, Required: true},
		Server{Name: "quick", Start: quick, Required: true})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(g.let)
	for i := range 8 {
		wg.Go(func() { _, _ = r.Call(t.Context(), []string{"a", "b"}[i%2], "echo", json.RawMessage(`{"text":"x"}`)) })
	}
	for range 4 {
		<-g.came
	}
	for r.places.Waiting() < 4 {
		if t.Context().Err() != nil {
			t.Fatal("nobody waits")
		}
	}
	for range 50 {
		if _, err := r.Call(t.Context(), "quick", "echo", json.RawMessage(`{"text":"x"}`)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-g.came:
		t.Error("more calls are under way than MaxCalls allows")
	default:
	}
}

func TestEventStreamsAreBounded(t *testing.T) {
	r := newRegistry(t, Config{MaxEventStreams: 1})
	url := serve(t, r).URL + "/api/v1/events"
	open := func() *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	first := open()
	defer first.Body.Close()
	second := open()
	defer second.Body.Close()
	if first.StatusCode != http.StatusOK || second.StatusCode != http.StatusTooManyRequests {
		t.Errorf("status %d, then %d", first.StatusCode, second.StatusCode)
	}
}
