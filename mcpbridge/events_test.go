package mcpbridge

import (
	"bufio"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

func TestEventStream(t *testing.T) {
	r := echoRegistry(t, Config{})
	req, err := http.NewRequestWithContext(t.Context(), "GET", serve(t, r).URL+"/api/v1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Scan() // subscribed
	if _, err := r.Call(t.Context(), "my_echo", "echo", json.RawMessage(`{"text":"a secret"}`)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Call(t.Context(), "my_echo", "nothing", nil); err == nil {
		t.Fatal("an unknown action was called")
	}
	var got []Event
	for len(got) < 2 && lines.Scan() {
		if d, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			var ev Event
			if err := json.Unmarshal([]byte(d), &ev); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(d, "secret") {
				t.Errorf("an event holds an argument: %s", d)
			}
			got = append(got, ev)
		}
	}
	if got[0].Type != EventCall || !got[0].OK || got[0].Action != "echo" || got[0].Bytes == 0 {
		t.Errorf("%+v", got[0])
	}
	if got[1].OK || got[1].Code != CodeUnknownAction {
		t.Errorf("%+v", got[1])
	}
}
