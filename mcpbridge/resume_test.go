package mcpbridge

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/internal/fake"
)

// event is one server-sent event.
type event struct{ id, data string }

// stream sends a request and gives its events as they come.
func stream(t *testing.T, method, url, body string, header map[string]string) (int, <-chan event, func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	for k, v := range header {
		req.Header.Set(k, v)
	}
	hc := &http.Client{Transport: &http.Transport{}}
	res, err := hc.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	events := make(chan event, 1024)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(events)
		var ev event
		lines := bufio.NewScanner(res.Body)
		lines.Buffer(nil, 4<<20)
		for lines.Scan() {
			key, value, _ := strings.Cut(lines.Text(), ": ")
			switch key {
			case "id":
				ev.id = value
			case "data":
				ev.data = value
			case "":
				if ev != (event{}) {
					events <- ev
				}
				ev = event{}
			}
		}
	}()
	end := func() { cancel(); _ = res.Body.Close(); <-done; hc.CloseIdleConnections() }
	t.Cleanup(end)
	return res.StatusCode, events, end
}

// A client that loses its connection in the middle of a call gets the rest, at
// both endpoints.
func TestResumption(t *testing.T) {
	release := make(chan string)
	start, _ := starts(func() *fake.Server {
		return &fake.Server{Tools: echoTools, Concurrent: true, Handle: func(r *fake.Request) (json.RawMessage, *fake.Error) {
			if r.Method != "tools/call" {
				return nil, nil
			}
			var p struct {
				Meta struct{ ProgressToken json.RawMessage } `json:"_meta"`
			}
			_ = json.Unmarshal(r.Params, &p)
			say := func(n int) {
				r.Write(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d}}`, p.Meta.ProgressToken, n))
			}
			say(1)
			text := <-release
			say(2)
			return json.RawMessage(`{"content":[{"type":"text","text":"` + text + `"}]}`), nil
		}}
	})
	r := newRegistry(t, Config{}, Server{Name: "x", Start: start, Required: true})
	base := serve(t, r).URL
	for path, tool := range map[string]string{"/mcp": "mcp_x_echo", "/mcp/x": "echo"} {
		t.Run(path, func(t *testing.T) {
			_, _, header := do(t, "POST", base+path, initLine)
			session := map[string]string{"Mcp-Session-Id": header.Get("Mcp-Session-Id"), "Mcp-Protocol-Version": "2025-11-25"}
			with := func(last string) map[string]string {
				return map[string]string{"Mcp-Session-Id": session["Mcp-Session-Id"], "Mcp-Protocol-Version": "2025-11-25", "Last-Event-ID": last}
			}
			call := `{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"` + tool + `","arguments":{"text":"x"},"_meta":{"progressToken":"p"}}}`
			_, events, cut := stream(t, "POST", base+path, call, session)
			first := receive(t, "the event that primes", events)
			one := receive(t, "progress", events)
			if first.id == "" || first.data != "" || !strings.Contains(one.data, `"progress":1`) {
				t.Fatalf("%+v, %+v", first, one)
			}
			if status, body, _ := do(t, "GET", base+path, "", "Accept", "text/event-stream", "Mcp-Session-Id", session["Mcp-Session-Id"], "Last-Event-ID", one.id); status != 409 {
				t.Errorf("a stream that is read was taken up: %d %s", status, body)
			}
			cut()
			// The server goes on once nobody listens.
			for until := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
				status, more, end := stream(t, "GET", base+path, "", with(first.id))
				if status == 409 && time.Now().Before(until) {
					end()
					continue // the server has not noticed yet
				}
				if status != 200 {
					t.Fatalf("status %d", status)
				}
				if again := receive(t, "progress again", more); again != one {
					t.Errorf("again came %+v, not %+v", again, one)
				}
				end()
				break
			}
			release <- "late"
			var got []event
			for until := time.Now().Add(20 * time.Second); len(got) == 0; time.Sleep(time.Millisecond) {
				status, more, end := stream(t, "GET", base+path, "", with(one.id))
				if status == 409 && time.Now().Before(until) {
					end()
					continue
				}
				for ev := range more {
					got = append(got, ev)
				}
			}
			if len(got) != 2 || !strings.Contains(got[0].data, `"progress":2`) || !strings.HasPrefix(got[1].data, `{"jsonrpc":"2.0","id":"c","result":`) || !strings.Contains(got[1].data, "late") {
				t.Fatalf("after the cut came %+v", got)
			}
			// The answer can be asked for again, and nothing after it.
			_, more, _ := stream(t, "GET", base+path, "", with(got[0].id))
			if again := receive(t, "the answer again", more); again != got[1] {
				t.Errorf("again came %+v", again)
			}
			for _, bad := range []string{"1-99", "99-1", "x", "1-", "-1-1", "1--1", "9223372036854775808-1"} {
				if status, _, _ := do(t, "GET", base+path, "", "Accept", "text/event-stream", "Mcp-Session-Id", session["Mcp-Session-Id"], "Last-Event-ID", bad); status != 400 {
					t.Errorf("the id %s: %d", bad, status)
				}
			}
		})
	}
}
