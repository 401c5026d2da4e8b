package mcpbridge

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/sandboxd/sandboxd/mcpbridge/internal/fake"
	"github.com/sandboxd/sandboxd/sandbox"
)

// syncBuffer is a log that is read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestCauseIsShown: a server that ends again and again is given up, and the
// log, the events and the status say how it ended, what it used and what it
// wrote last: bounded, quoted, and without its secrets.
func TestCauseIsShown(t *testing.T) {
	const token, pem = "s3cr3t-token", "-----KEY-----\nAAAABBBB\nx"
	guest := func(_ io.Reader, _, errs io.Writer) sandbox.Exit {
		for i := range 40 {
			fmt.Fprintf(errs, "line %d\n", i)
		}
		fmt.Fprintf(errs, "%s\n\n   \nwith %s and AAAABBBB\x1b[31m\n", strings.Repeat("long", 5000), token)
		return sandbox.Exit{Cause: sandbox.OOM, Code: 137, Signal: 9, Detail: "it used all of its 64 MiB of memory", PeakMemoryBytes: 64 << 20, PeakPIDs: 7, PeakTmpBytes: 1 << 10}
	}
	var log syncBuffer
	var mu sync.Mutex
	var events []Event
	cfg := Config{Secrets: []string{token, pem, "line"}, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})), OnEvent: func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, e)
	}}
	r := newRegistry(t, cfg, Server{
		Name: "x", Limits: Limits{Restarts: 1},
		Start: func(context.Context) (sandbox.Sandbox, error) { return fake.Start(guest), nil },
	})
	waitState(t, r, "x", StateFailed)
	st := r.Status()[0]
	const reason = "server ended: oom by signal 9 (it used all of its 64 MiB of memory); it used at most 64 MiB of memory, 7 processes and threads, 1 KiB of temporary files"
	if st.Reason != reason || st.Starts != 2 {
		t.Errorf("status %+v", st)
	}
	mu.Lock()
	failed := events[len(events)-1]
	mu.Unlock()
	if failed.Type != EventFailed || failed.Reason != reason {
		t.Errorf("event %+v", failed)
	}
	for what, said := range map[string]string{"status": st.Stderr, "event": failed.Stderr} {
		if !strings.HasPrefix(said, `"line 37" "line 38" "line 39" "longlong`) || !strings.HasSuffix(said, `" "with [secret] and [secret]\x1b[31m"`) || len(said) > 2000 {
			t.Errorf("%s: %s", what, said)
		}
	}
	for _, want := range []string{"failed too often", "64 MiB of memory, 7 processes", "line 39"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q", want)
		}
	}
	for _, secret := range []string{token, "AAAABBBB", "\x1b"} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log holds %q", secret)
		}
	}
}
