package mcpbridge

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/mcpbridge/internal/fake"
	"github.com/sandboxd/sandboxd/sandbox"
)

// byName tells clients apart by a header, and lets all of them see everything.
func byName(req *http.Request) (*Scope, error) {
	return &Scope{Name: req.Header.Get("X-Client"), Servers: []string{"*"}}, nil
}

// TestClientsLeaveRoomForOthers has one client take every session and every
// stream of events that there is: another gets one of each all the same, and the
// first none any more.
func TestClientsLeaveRoomForOthers(t *testing.T) {
	start, _ := starts(echoServer)
	r := newRegistry(t, Config{MaxSessions: 2, MaxEventStreams: 1, Authorize: byName}, Server{Name: "x", Start: start, Required: true})
	url := serve(t, r).URL
	streams := func(who string) int {
		req, err := http.NewRequestWithContext(t.Context(), "GET", url+"/api/v1/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Client", who)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = res.Body.Close() })
		return res.StatusCode
	}
	for _, path := range []string{"/mcp", "/mcp/x"} {
		var got []int
		for _, who := range []string{"greedy", "greedy", "greedy", "modest", "modest"} {
			status, _, _ := do(t, "POST", url+path, initLine, "X-Client", who)
			got = append(got, status)
		}
		if want := []int{200, 200, 503, 200, 503}; !slices.Equal(got, want) {
			t.Errorf("sessions of %s: %v, want %v", path, got, want)
		}
	}
	if got, want := []int{streams("greedy"), streams("greedy"), streams("modest"), streams("modest")}, []int{200, 429, 200, 429}; !slices.Equal(got, want) {
		t.Errorf("streams of events: %v, want %v", got, want)
	}
}

// TestAStartHoldsUpItsClientAlone has the first client's backend of the revision
// without sessions never come up: another's does, and a client that gives up says
// nothing about the server.
func TestAStartHoldsUpItsClientAlone(t *testing.T) {
	began := make(chan struct{}, 8)
	silent := func(context.Context) (sandbox.Sandbox, error) {
		return fake.Start((&fake.Server{Handle: func(*fake.Request) (json.RawMessage, *fake.Error) {
			began <- struct{}{}
			return nil, nil
		}}).Guest), nil
	}
	good, _ := starts(modernServer)
	first := make(chan struct{}, 1)
	first <- struct{}{}
	r := newRegistry(t, Config{Authorize: byName}, Server{Name: "x", Sharing: SharingSession, IdleStop: 1, Start: func(ctx context.Context) (sandbox.Sandbox, error) {
		if ctx.Value(scopeKey{}) != nil { // a client's, not the registry's own
			select {
			case <-first:
				return silent(ctx)
			default:
			}
		}
		return good(ctx)
	}})
	url := serve(t, r).URL + "/mcp/x"
	const msg = `{"jsonrpc":"2.0","params":{"name":"echo","arguments":{"text":"a"},` + modernMeta + `}},"method":"tools/call","id":1}`
	header := []string{"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "echo"}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	left := make(chan error, 1)
	go func() {
		req, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(msg))
		if err == nil {
			for i := 0; i < len(header); i += 2 {
				req.Header.Set(header[i], header[i+1])
			}
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("X-Client", "first")
			var res *http.Response
			if res, err = http.DefaultClient.Do(req); err == nil {
				_ = res.Body.Close()
			}
		}
		left <- err
	}()
	<-began
	for _, who := range []string{"second", "first"} {
		if who == "first" {
			leave()
			if err := <-left; err == nil {
				t.Error("a server that says nothing answered")
			}
		}
		if status, body, _ := do(t, "POST", url, msg, append(header, "X-Client", who)...); status != 200 {
			t.Errorf("%s: %d %s", who, status, body)
		}
	}
}
