package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandboxd/sandboxd/mcpbridge/client"
	"github.com/sandboxd/sandboxd/mcpbridge/internal/fake"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func connect(t *testing.T, handle func(*fake.Request) (json.RawMessage, *fake.Error), opts client.Options) (*client.Client, *fake.Sandbox) {
	t.Helper()
	sb := fake.Start((&fake.Server{Handle: handle, Concurrent: true}).Guest)
	c, err := client.Connect(t.Context(), sb, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c, sb
}

func TestResultsAreRaw(t *testing.T) {
	const want = `{"z":1.50,"a":9007199254740993,"nested":{"b":1,"a":2}}`
	c, _ := connect(t, func(*fake.Request) (json.RawMessage, *fake.Error) { return json.RawMessage(want), nil }, client.Options{})
	got, err := c.Call(t.Context(), "any/method", nil, nil)
	if err != nil || string(got) != want {
		t.Errorf("%s, %v", got, err)
	}
	if v := c.Init().ProtocolVersion; v != "2025-11-25" {
		t.Errorf("negotiated %s", v)
	}
}

func TestAnswersFindTheirCalls(t *testing.T) {
	c, _ := connect(t, func(r *fake.Request) (json.RawMessage, *fake.Error) { return r.Params, nil }, client.Options{})
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			want := fmt.Sprintf(`{"n":%d}`, i)
			if got, err := c.Call(t.Context(), "m", []byte(want), nil); err != nil || string(got) != want {
				t.Errorf("%s, %v, want %s", got, err, want)
			}
		})
	}
	wg.Wait()
}

func TestServerRequestsAreAnswered(t *testing.T) {
	answers := make(chan string, 3)
	c, _ := connect(t, func(r *fake.Request) (json.RawMessage, *fake.Error) {
		switch r.Method {
		case "go":
			r.Write(`{"jsonrpc":"2.0","id":"p","method":"ping"}`)
			r.Write(`{"jsonrpc":"2.0","id":12345678901234567890,"method":"roots/list"}`)
			r.Write(`{"jsonrpc":"2.0","id":"s","method":"sampling/createMessage","params":{}}`)
		case "":
			answers <- string(r.Raw)
			return nil, nil
		}
		return json.RawMessage(`{}`), nil
	}, client.Options{})
	if _, err := c.Call(t.Context(), "go", nil, nil); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{<-answers: true, <-answers: true, <-answers: true}
	for _, want := range []string{
		`{"jsonrpc":"2.0","id":"p","result":{}}`, `{"jsonrpc":"2.0","id":12345678901234567890,"result":{"roots":[]}}`,
		`{"jsonrpc":"2.0","id":"s","error":{"code":-32601,"message":"method not found"}}`,
	} {
		if !got[want] {
			t.Errorf("%v lacks %s", got, want)
		}
	}
}

func TestCallEnds(t *testing.T) {
	c, sb := connect(t, func(r *fake.Request) (json.RawMessage, *fake.Error) {
		if r.Method == "fail" {
			return nil, &fake.Error{Code: -32042, Message: "bad\u202e"}
		}
		return nil, nil
	}, client.Options{})
	var rpc *client.RPCError
	if _, err := c.Call(t.Context(), "fail", nil, nil); !errors.As(err, &rpc) || rpc.Code != -32042 || strings.Contains(err.Error(), "\u202e") {
		t.Errorf("a JSON-RPC error: %q", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := c.Call(ctx, "hang", nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a deadline: %v", err)
	}
	time.AfterFunc(10*time.Millisecond, sb.Kill)
	var exit *relay.ExitError
	if _, err := c.Call(t.Context(), "hang", nil, nil); !errors.As(err, &exit) || exit.Exit.Cause != sandbox.Killed {
		t.Errorf("a dead server: %v", err)
	}
	if _, err := c.Call(t.Context(), "late", nil, nil); !errors.As(err, &exit) {
		t.Errorf("after its death: %v", err)
	}
}

func TestConnectFailsCleanly(t *testing.T) {
	exits := func(io.Reader, io.Writer, io.Writer) sandbox.Exit {
		return sandbox.Exit{Cause: sandbox.Exited, Code: 3}
	}
	var exit *relay.ExitError
	for name, tt := range map[string]struct {
		guest fake.Guest
		is    func(error) bool
	}{
		"wrong version": {(&fake.Server{Version: "1.0"}).Guest, func(err error) bool { return errors.Is(err, client.ErrProtocol) }},
		"exits":         {exits, func(err error) bool { return errors.As(err, &exit) && exit.Exit.Code == 3 }},
	} {
		sb := fake.Start(tt.guest)
		if _, err := client.Connect(t.Context(), sb, client.Options{}); !tt.is(err) {
			t.Errorf("%s: %v", name, err)
		}
		if !sb.Closed.Load() {
			t.Errorf("%s: the sandbox was left running", name)
		}
	}
}
