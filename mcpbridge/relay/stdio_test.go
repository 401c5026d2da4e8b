package relay_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/mcpbridge/internal/fake"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/sandbox"
)

// cat gives back each line as it came.
func cat(in io.Reader, out, _ io.Writer) sandbox.Exit {
	_, _ = io.Copy(out, in)
	return sandbox.Exit{Cause: sandbox.Exited, Code: 7}
}

func TestRelayStdioIsByteFaithful(t *testing.T) {
	in := strings.Join([]string{
		`{"jsonrpc":"2.0","id":9007199254740993,"result":{"z":1.50,"a":1e400,"unknown":"\u00e9"},"x-envelope":[1]}`,
		" {\t\"id\" : \"a\" , \"jsonrpc\":\"2.0\", \"result\":null}\r",
		`{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"x"}}`,
		`[{"jsonrpc":"2.0","method":"a"},{"jsonrpc":"2.0","method":"b"}]`,
		"{\"jsonrpc\":\"2.0\",\"method\":\"invalid utf-8 \xff\"}",
		`{"jsonrpc":"2.0","method":"` + strings.Repeat("long ", 50_000) + `"}`,
		`{"jsonrpc":"2.0","method":"without a newline"}`,
	}, "\n")
	var out bytes.Buffer
	exit, err := relay.RelayStdio(t.Context(), strings.NewReader(in), &out, fake.Start(cat), relay.StdioOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(in, out.String()); diff != "" {
		t.Error(diff)
	}
	if exit.Cause == 0 {
		t.Errorf("exit %+v", exit)
	}
}

func TestRelayStdioKeepsStrayLinesOut(t *testing.T) {
	guest := func(in io.Reader, out, errs io.Writer) sandbox.Exit {
		_, _ = io.WriteString(errs, "log\n"+strings.Repeat("e", 100)+"\n")
		_, _ = io.WriteString(out, "Server running on stdio\n\n{\"level\":\"info\"}\n[INFO] x\n{\"jsonrpc\":\"2.0\",\"method\":\"ok\"}\nhalf a li")
		_, _ = io.Copy(io.Discard, in)
		return sandbox.Exit{Cause: sandbox.Exited}
	}
	var out, errs bytes.Buffer
	var stray []string
	_, err := relay.RelayStdio(t.Context(), strings.NewReader(""), &out, fake.Start(guest), relay.StdioOptions{
		Stderr: &errs, MaxStderrLine: 10, Stray: func(l []byte) { stray = append(stray, string(l)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := "{\"jsonrpc\":\"2.0\",\"method\":\"ok\"}\n"; out.String() != want {
		t.Errorf("client got %q", out.String())
	}
	if diff := cmp.Diff([]string{"Server running on stdio", `{"level":"info"}`, "[INFO] x", "half a li"}, stray); diff != "" {
		t.Error(diff)
	}
	if errs.String() != "log\neeeeeeeeee\n" {
		t.Errorf("stderr %q", errs.String())
	}
}

func TestRelayStdioWaitsForPendingCalls(t *testing.T) {
	release := make(chan struct{})
	guest := func(in io.Reader, out, _ io.Writer) sandbox.Exit {
		b, _ := io.ReadAll(in) // stdin was closed
		<-release
		_, _ = fmt.Fprintf(out, "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":%d}\n", len(b))
		return sandbox.Exit{Cause: sandbox.Exited}
	}
	var out bytes.Buffer
	time.AfterFunc(20*time.Millisecond, func() { close(release) })
	if _, err := relay.RelayStdio(t.Context(), strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"m"}`+"\n"), &out, fake.Start(guest), relay.StdioOptions{}); err != nil {
		t.Fatal(err)
	}
	if want := "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":38}\n"; out.String() != want {
		t.Errorf("got %q", out.String())
	}
}

func TestRelayStdioFailsPendingCalls(t *testing.T) {
	guest := func(in io.Reader, out, _ io.Writer) sandbox.Exit {
		lines := bufio.NewScanner(in)
		for range 3 {
			lines.Scan()
		}
		_, _ = io.WriteString(out, "{\"jsonrpc\":\"2.0\",\"id\":1.0,\"result\":{}}\n")
		return sandbox.Exit{Cause: sandbox.OOM, Code: 137, Signal: 9, Detail: "memory limit of 64 MiB"}
	}
	in, w := io.Pipe()
	var out bytes.Buffer
	go func() {
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"method":"a"}`+"\n"+`{"jsonrpc":"2.0","id":"two","method":"b"}`+"\n"+`{"jsonrpc":"2.0","method":"n"}`+"\n")
	}()
	exit, err := relay.RelayStdio(t.Context(), in, &out, fake.Start(guest), relay.StdioOptions{})
	_ = w.Close()
	if err != nil || exit.Cause != sandbox.OOM {
		t.Fatalf("%+v, %v", exit, err)
	}
	want := "{\"jsonrpc\":\"2.0\",\"id\":1.0,\"result\":{}}\n" +
		`{"jsonrpc":"2.0","id":"two","error":{"code":-32000,"message":"server ended: oom by signal 9 (memory limit of 64 MiB)"}}` + "\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestRelayStdioOversizeLines(t *testing.T) {
	big := strings.Repeat("x", 2000)
	guest := func(in io.Reader, out, _ io.Writer) sandbox.Exit {
		lines := bufio.NewScanner(in)
		lines.Scan()
		_, _ = io.WriteString(out, `{"result":{"content":"`+big+`"},"jsonrpc":"2.0","id":5}`+"\n"+`{"jsonrpc":"2.0","id":6,"result":{}}`+"\n")
		_, _ = io.Copy(io.Discard, in)
		return sandbox.Exit{Cause: sandbox.Exited}
	}
	in := `{"jsonrpc":"2.0","id":5,"method":"a"}` + "\n" + `{"method":"b","params":"` + big + `","id":"z","jsonrpc":"2.0"}` + "\n"
	var out bytes.Buffer
	if _, err := relay.RelayStdio(t.Context(), strings.NewReader(in), &out, fake.Start(guest), relay.StdioOptions{MaxLine: 1000}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`{"jsonrpc":"2.0","id":5,"error":{"code":-32001,"message":"result of 2048 bytes is over the limit of 1000"}}`,
		`{"jsonrpc":"2.0","id":"z","error":{"code":-32600,"message":"message of 2051 bytes is over the limit of 1000"}}`,
	} {
		if !strings.Contains(out.String(), want+"\n") {
			t.Errorf("%q lacks %s", out.String(), want)
		}
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestRelayStdioEndsWithItsClientOrContext(t *testing.T) {
	chatty := func(in io.Reader, out, _ io.Writer) sandbox.Exit {
		for {
			if _, err := io.WriteString(out, "{\"jsonrpc\":\"2.0\",\"method\":\"m\"}\n"); err != nil {
				return sandbox.Exit{Cause: sandbox.Exited}
			}
		}
	}
	in, w := io.Pipe()
	defer w.Close()
	sb := fake.Start(chatty)
	if _, err := relay.RelayStdio(t.Context(), in, failing{}, sb, relay.StdioOptions{}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("client gone: %v", err)
	}
	if !sb.Closed.Load() {
		t.Error("the sandbox was left running")
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	in2, w2 := io.Pipe()
	defer w2.Close()
	if _, err := relay.RelayStdio(ctx, in2, io.Discard, fake.Start(chatty), relay.StdioOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("context ended: %v", err)
	}
}

// A slow client holds the server back instead of filling memory.
func TestRelayStdioBackPressure(t *testing.T) {
	wrote := make(chan int, 1<<16)
	line := `{"jsonrpc":"2.0","method":"` + strings.Repeat("x", 1000) + `"}` + "\n"
	guest := func(in io.Reader, out, _ io.Writer) sandbox.Exit {
		for range 10_000 {
			if _, err := io.WriteString(out, line); err != nil {
				break
			}
			wrote <- 1
		}
		return sandbox.Exit{Cause: sandbox.Exited}
	}
	in, w := io.Pipe()
	outR, outW := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := relay.RelayStdio(t.Context(), in, outW, fake.Start(guest), relay.StdioOptions{})
		_ = outW.Close()
		done <- err
	}()
	buf := make([]byte, len(line))
	if _, err := io.ReadFull(outR, buf); err != nil {
		t.Fatal(err)
	}
	// Nothing more is read: at most what the buffers hold can have been written.
	if n := len(wrote); n > 200 {
		t.Errorf("%d lines were taken from a server whose client reads none", n)
	}
	if n, err := io.Copy(io.Discard, outR); err != nil || n != int64(9_999*len(line)) {
		t.Errorf("the rest: %d bytes, %v", n, err)
	}
	_ = w.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
