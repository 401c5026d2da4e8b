package remote

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sandboxd/sandboxd/mcpbridge/client"
)

// forgetful is a server that forgets its session when it is told to.
type forgetful struct {
	mu       sync.Mutex
	session  int
	said     []string // methods, with the session
	answer   func(n int) string
	lastInit string
}

func (f *forgetful) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	var m message
	b, _ := io.ReadAll(r.Body)
	_ = json.Unmarshal(b, &m)
	f.said = append(f.said, m.Method+" "+r.Header.Get(sessionHeader))
	if m.Method == "initialize" {
		f.session++
		f.lastInit = string(b)
		w.Header().Set(sessionHeader, fmt.Sprint("s-", f.session))
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, f.answer(f.session))
		return
	}
	switch {
	case r.Header.Get(sessionHeader) != fmt.Sprint("s-", f.session):
		w.WriteHeader(http.StatusNotFound)
	case m.ID == nil:
		w.WriteHeader(http.StatusAccepted)
	default:
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"in":%d}}`, m.ID, f.session)
	}
}

func (f *forgetful) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.session++
	f.said = nil
}

const helloAgain = `{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true}}}`

func TestAForgottenSessionIsBegunAgain(t *testing.T) {
	f := &forgetful{answer: func(int) string { return helloAgain }}
	notes := make(chan string, 10)
	s, err := start(t, Config{URL: serve(t, f.ServeHTTP)})
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.Connect(t.Context(), s, client.Options{Notify: func(method string, _ json.RawMessage) { notes <- method }})
	if err != nil {
		t.Fatal(err)
	}
	for method, params := range map[string]string{"logging/setLevel": `{"level":"info"}`, "resources/subscribe": `{"uri":"a:b"}`} {
		if _, err := c.Call(t.Context(), method, []byte(params), nil); err != nil {
			t.Fatal(err)
		}
	}
	f.forget()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if res, err := c.Call(t.Context(), "any", nil, nil); err != nil || string(res) != `{"in":3}` {
				t.Errorf("%s, %v", res, err)
			}
		})
	}
	wg.Wait()
	if got := <-notes; got != "notifications/tools/list_changed" {
		t.Errorf("notified of %s", got)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	count := func(what string) (n int) {
		for _, s := range f.said {
			if s == what {
				n++
			}
		}
		return n
	}
	if count("initialize ") != 1 || count("notifications/initialized s-3") != 1 || count("logging/setLevel s-3") != 1 || count("resources/subscribe s-3") != 1 {
		t.Errorf("the server heard %q", f.said)
	}
	if i, j := slices.Index(f.said, "initialize "), slices.Index(f.said, "any s-3"); i < 0 || j < i {
		t.Errorf("the server heard %q", f.said)
	}
}

// A server that comes back with other abilities is not the one that the client
// agreed with.
func TestASessionThatCameBackDifferentEnds(t *testing.T) {
	f := &forgetful{answer: func(n int) string {
		if n > 1 {
			return strings.Replace(helloAgain, `"subscribe":true`, "", 1)
		}
		return helloAgain
	}}
	c, err := connect(t, Config{URL: serve(t, f.ServeHTTP)})
	if err != nil {
		t.Fatal(err)
	}
	f.forget()
	if _, err := c.Call(t.Context(), "any", nil, nil); err == nil || !strings.Contains(err.Error(), "came back as another") {
		t.Errorf("got %v", err)
	}
	if exit := c.Exit(); !strings.Contains(exit.Detail, "came back as another") {
		t.Errorf("%+v", exit)
	}
}

// A session that is lost while nobody calls is begun again by the stream for
// what is unasked.
func TestTheListenerBeginsAgain(t *testing.T) {
	var mu sync.Mutex
	session, streams := 0, 0
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		var m message
		if r.Method == http.MethodPost {
			b, _ := io.ReadAll(r.Body)
			_ = json.Unmarshal(b, &m)
		}
		own := r.Header.Get(sessionHeader) == fmt.Sprint("s-", session)
		switch {
		case m.Method == "initialize":
			session++
			w.Header().Set(sessionHeader, fmt.Sprint("s-", session))
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, helloAgain)
		case !own:
			w.WriteHeader(http.StatusNotFound)
		case r.Method == http.MethodGet:
			streams++
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprintf(w, "retry: 1\nid: 7\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x%d\"}\n\n", streams)
			if streams == 1 {
				session = 100 // forgotten; the stream ends
			}
		default:
			w.WriteHeader(http.StatusAccepted)
		}
	})
	s, err := start(t, Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	notes := make(chan string, 10)
	if _, err := client.Connect(t.Context(), s, client.Options{Notify: func(method string, _ json.RawMessage) { notes <- method }}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"notifications/x1", "notifications/tools/list_changed", "notifications/x2"} {
		if got := <-notes; got != want {
			t.Errorf("heard %s, want %s", got, want)
		}
	}
}
