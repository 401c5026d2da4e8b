package callback_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"

	"github.com/sandboxd/sandboxd/mcpbridge/outbound"
	"github.com/sandboxd/sandboxd/mcpbridge/outbound/callback"
)

// engine is an HTTP engine whose runs a test writes.
type engine struct {
	t       testing.TB
	url     string
	run     func(w http.ResponseWriter, r *http.Request, say func(string))
	answer  func(body string) int
	mu      sync.Mutex
	seen    []string // method, path and body of each request
	deleted chan struct{}
}

func newEngine(t testing.TB, run func(w http.ResponseWriter, r *http.Request, say func(string))) *engine {
	t.Helper()
	e := &engine{t: t, run: run, answer: func(string) int { return 204 }, deleted: make(chan struct{}, 8)}
	srv := httptest.NewServer(e)
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	e.url = srv.URL
	return e
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		e.t.Error(err)
	}
	if got := r.Header.Get("Authorization"); got != "Bearer hunter2" {
		e.t.Errorf("%s %s came with %q", r.Method, r.URL, got)
	}
	e.mu.Lock()
	e.seen = append(e.seen, strings.TrimSpace(r.Method+" "+r.URL.Path+" "+string(b)))
	e.mu.Unlock()
	switch {
	case r.Method == http.MethodDelete:
		w.WriteHeader(http.StatusNoContent)
		e.deleted <- struct{}{}
	case strings.HasPrefix(r.URL.Path, "/runs/"):
		conforms(e.t, "answer", string(b))
		w.WriteHeader(e.answer(string(b)))
	default:
		conforms(e.t, "run", string(b))
		w.Header().Set("Content-Type", callback.ContentType)
		e.run(w, r, func(line string) {
			_, _ = io.WriteString(w, line) // the other side may be gone
			_ = http.NewResponseController(w).Flush()
		})
	}
}

func (e *engine) requests() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.seen...)
}

// conforms holds a message against the published schema.
func conforms(t testing.TB, def, message string) {
	t.Helper()
	raw, err := os.ReadFile("../../../docs/outbound.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Fatal(err)
	}
	s.Ref = "#/$defs/" + def
	resolved, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal([]byte(message), &v); err != nil {
		t.Errorf("%s: %v", message, err)
	} else if err := resolved.Validate(v); err != nil {
		t.Errorf("%.200s is no %s: %v", message, def, err)
	}
}

// caller is a client with a user.
type caller struct {
	mu    sync.Mutex
	steps []string
	ask   func(ctx context.Context, q outbound.Question) (outbound.Answer, error)
}

func (c *caller) Progress(p outbound.Progress) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.steps = append(c.steps, fmt.Sprintf("%v/%v %s", p.Done, p.Total, p.Message))
}

func (c *caller) Ask(ctx context.Context, q outbound.Question) (outbound.Answer, error) {
	return c.ask(ctx, q)
}

func workflow(t testing.TB, e *engine) *callback.Workflow {
	t.Helper()
	hc := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(hc.CloseIdleConnections)
	w, err := callback.New(callback.Config{
		ID: "deploy", URL: e.url + "/start", Client: hc, Header: http.Header{"Authorization": {"Bearer hunter2"}},
		MaxEvent: 64 << 10, MaxStream: 1 << 20,
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestARunOverHTTP(t *testing.T) {
	answered := make(chan string, 1)
	e := newEngine(t, func(_ http.ResponseWriter, _ *http.Request, say func(string)) {
		for _, ev := range []string{
			`{"type":"run","url":"/runs/7"}`, `{"type":"progress","done":1,"total":3,"message":"built","unknown":[]}`,
			`{"type":"ask","id":"q1","message":"Go on?","schema":{"type":"object","properties":{"where":{"type":"string"}}}}`,
		} {
			conforms(t, "event", ev)
			say(ev + "\n\n")
		}
		got := <-answered
		ev := `{"type":"done","outputs":` + got + `}`
		conforms(t, "event", ev)
		say(ev)
	})
	e.answer = func(body string) int { answered <- body; return 200 }
	c := &caller{ask: func(_ context.Context, q outbound.Question) (outbound.Answer, error) {
		if q.Message != "Go on?" || !strings.Contains(string(q.Schema), "where") {
			t.Errorf("asked %+v", q)
		}
		return outbound.Answer{Action: outbound.Accept, Content: json.RawMessage(`{"where":"home","n":90071992547409931}`)}, nil
	}}
	out, err := workflow(t, e).Run(t.Context(), json.RawMessage(`{"n":90071992547409931}`), c)
	const answer = `{"id":"q1","action":"accept","content":{"where":"home","n":90071992547409931}}`
	if err != nil || string(out) != answer {
		t.Errorf("%s, %v", out, err)
	}
	want := []string{`POST /start {"inputs":{"n":90071992547409931},"workflow":"deploy"}`, "POST /runs/7 " + answer}
	if diff := cmp.Diff(want, e.requests()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"1/3 built"}, c.steps); diff != "" {
		t.Error(diff)
	}
}

func TestCancellationIsToldToTheEngine(t *testing.T) {
	gone := make(chan struct{})
	e := newEngine(t, func(_ http.ResponseWriter, r *http.Request, say func(string)) {
		say(`{"type":"run","url":"/runs/7"}` + "\n" + `{"type":"ask","id":"q","message":"m"}` + "\n")
		<-r.Context().Done()
		close(gone)
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the client has gone")
	_, err := workflow(t, e).Run(ctx, json.RawMessage(`{}`), &caller{ask: func(ctx context.Context, _ outbound.Question) (outbound.Answer, error) {
		cancel(why)
		<-ctx.Done()
		return outbound.Answer{}, ctx.Err()
	}})
	if !errors.Is(err, why) {
		t.Errorf("%v, want %v", err, why)
	}
	<-gone
	<-e.deleted
}

// What the engine may do wrong, with what is said of it. The engine is told
// that the run is over wherever it has named an address.
func TestHostileEngines(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("another origin was reached: %s %v", r.URL, r.Header)
	}))
	t.Cleanup(elsewhere.Close)
	const named = `{"type":"run","url":"/runs/7"}` + "\n"
	yes := func(context.Context, outbound.Question) (outbound.Answer, error) {
		return outbound.Answer{Action: outbound.Accept}, nil
	}
	for name, tt := range map[string]struct {
		say, want string
		status    int
		told      bool // of the end, by DELETE
	}{
		"another origin":           {say: `{"type":"run","url":"` + elsewhere.URL + `/x"}`, want: "not its own"},
		"another origin, unnamed":  {say: `{"type":"run","url":"//127.0.0.1:1/x"}`, want: "not its own"},
		"another scheme":           {say: `{"type":"run","url":"file:///etc/passwd"}`, want: "not its own"},
		"an address twice":         {say: named + named, want: "twice", told: true},
		"a question too early":     {say: `{"type":"ask","id":"q","message":"m"}`, want: "before it named"},
		"a question twice":         {say: named + strings.Repeat(`{"type":"ask","id":"q","message":"m"}`+"\n", 2), want: "under one id", told: true},
		"no message":               {say: named + `{"type":"ask","id":"q"}`, want: "lacks message", told: true},
		"no id":                    {say: named + `{"type":"ask","id":"","message":"m"}`, want: "1 to 256", told: true},
		"a wrong id":               {say: named + `{"type":"ask","id":7,"message":"m"}`, want: "id has another type", told: true},
		"an unknown event":         {say: `{"type":"reboot"}`, want: "unknown type"},
		"no event":                 {say: `[1]`, want: "cannot be read"},
		"no JSON":                  {say: "hello\n", want: "cannot be read"},
		"a member twice":           {say: `{"type":"done","outputs":{},"outputs":{"a":1}}`, want: "twice"},
		"a name in another case":   {say: `{"TYPE":"done","outputs":{}}`, want: "unknown type"},
		"no UTF-8":                 {say: "{\"type\":\"error\",\"message\":\"\xff\"}", want: "UTF-8"},
		"a huge event":             {say: `{"type":"done","outputs":{"x":"` + strings.Repeat("x", 70<<10) + `"}}`, want: "at most 65536"},
		"a line without an end":    {say: strings.Repeat("x", 2<<20), want: "does not end"},
		"an endless stream":        {say: strings.Repeat(`{"type":"progress","message":"again"}`+"\n", 40_000), want: "does not end"},
		"an end without a result":  {say: named + `{"type":"progress"}` + "\n", want: "ended before the run did", told: true},
		"a failure":                {say: named + `{"type":"error","message":"it broke"}`, want: "it broke"},
		"no outputs":               {say: `{"type":"done"}`, want: "lacks outputs"},
		"a redirect elsewhere":     {status: 307, want: "status 307"},
		"a refusal":                {status: 503, want: "status 503"},
		"a refusal with words":     {status: 429, say: `{"type":"error","message":"later"}`, want: "later"},
		"an answer without taking": {say: named + `{"type":"ask","id":"q","message":"m"}` + "\n", want: "did not take the answer: status 404", told: true},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, func(w http.ResponseWriter, r *http.Request, say func(string)) {
				if tt.status != 0 {
					w.Header().Set("Location", elsewhere.URL)
					w.WriteHeader(tt.status)
				}
				say(tt.say)
				if strings.Contains(tt.want, "404") {
					<-r.Context().Done()
				}
			})
			e.answer = func(string) int { return 404 }
			out, err := workflow(t, e).Run(t.Context(), json.RawMessage(`{}`), &caller{ask: yes})
			if err == nil || out != nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), e.url) {
				t.Errorf("%s, %v, want %q", out, err, tt.want)
			}
			told := false
			for _, r := range e.requests() {
				told = told || r == "DELETE /runs/7"
			}
			if told != tt.told {
				t.Errorf("told of the end: %v, want %v (%v)", told, tt.told, e.requests())
			}
		})
	}
}

// An engine that drips is bounded by the run's own time, nothing else of it.
func TestADrippingEngineIsCutOff(t *testing.T) {
	e := newEngine(t, func(_ http.ResponseWriter, r *http.Request, say func(string)) {
		for i := 0; r.Context().Err() == nil; i++ {
			say(`{"type":"progress"`[i%18 : i%18+1])
			time.Sleep(time.Millisecond)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := workflow(t, e).Run(ctx, json.RawMessage(`{}`), &caller{})
	if !errors.Is(err, context.DeadlineExceeded) && (err == nil || !strings.Contains(err.Error(), "cannot be read")) {
		t.Error(err)
	}
}

// A run that ends does not wait for its own question.
func TestAQuestionThatNobodyNeedsIsWithdrawn(t *testing.T) {
	asked := make(chan struct{})
	e := newEngine(t, func(_ http.ResponseWriter, _ *http.Request, say func(string)) {
		say(`{"type":"run","url":"/runs/7"}` + "\n" + `{"type":"ask","id":"q","message":"m"}` + "\n")
		<-asked
		say(`{"type":"done","outputs":{"a":1}}` + "\n")
	})
	out, err := workflow(t, e).Run(t.Context(), json.RawMessage(`{}`), &caller{ask: func(ctx context.Context, _ outbound.Question) (outbound.Answer, error) {
		close(asked)
		<-ctx.Done()
		return outbound.Answer{}, ctx.Err()
	}})
	if err != nil || string(out) != `{"a":1}` {
		t.Errorf("%s, %v", out, err)
	}
}

func TestNoEngine(t *testing.T) {
	w, err := callback.New(callback.Config{ID: "x", URL: "http://127.0.0.1:1/", Client: &http.Client{}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Run(t.Context(), json.RawMessage(`{}`), &caller{}); err == nil || err.Error() != "the engine cannot be reached" {
		t.Error(err)
	}
	for _, cfg := range []callback.Config{
		{},
		{ID: "x", URL: "ftp://h/", Client: &http.Client{}},
		{ID: "x", URL: "http://u:p@h/", Client: &http.Client{}},
		{ID: "x", URL: "http://h/"},
		{URL: "http://h/", Client: &http.Client{}},
	} {
		if _, err := callback.New(cfg); err == nil {
			t.Errorf("%+v was taken", cfg)
		}
	}
}
