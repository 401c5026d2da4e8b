package mcpbridge

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/mcpbridge/internal/fake"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/sandbox"
)

// fastEcho answers as fast as a guest can: it looks at nothing but the id.
func fastEcho(result string) fake.Guest {
	return func(in io.Reader, out, _ io.Writer) sandbox.Exit {
		lines := relay.NewReader(in, 64<<20)
		var buf []byte
		for {
			l, err := lines.Next()
			if err != nil {
				return sandbox.Exit{Cause: sandbox.Exited}
			}
			m, err := relay.Peek(l.Text)
			if err != nil || m.Kind != relay.Request {
				continue
			}
			res := result
			switch m.Method {
			case "initialize":
				res = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"f","version":"1"}}`
			case "tools/list":
				res = `{"tools":` + echoTools + `}`
			}
			buf = append(append(append(append(buf[:0], `{"jsonrpc":"2.0","id":`...), m.ID.Of(l.Text)...), `,"result":`...), res...)
			if _, err := out.Write(append(buf, "}\n"...)); err != nil {
				return sandbox.Exit{Cause: sandbox.Exited}
			}
		}
	}
}

const smallResult = `{"content":[{"type":"text","text":"hello"}]}`

func benchRegistry(b *testing.B, result string) *Registry {
	return newRegistry(b, Config{}, Server{Name: "x", Required: true, Start: func(context.Context) (sandbox.Sandbox, error) {
		return fake.Start(fastEcho(result)), nil
	}})
}

// BenchmarkDirect is the pipe alone: one request, one answer.
func BenchmarkDirect(b *testing.B) {
	sb := fake.Start(fastEcho(smallResult))
	lines := relay.NewReader(sb.Stdio().Out, 0)
	go io.Copy(io.Discard, sb.Stdio().Err)
	msg := []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hello"}}}` + "\n")
	for b.Loop() {
		if _, err := sb.Stdio().In.Write(msg); err != nil {
			b.Fatal(err)
		}
		if _, err := lines.Next(); err != nil {
			b.Fatal(err)
		}
	}
	_ = sb.Close(context.Background())
}

// BenchmarkCall is the same through the bridge, one call at a time.
func BenchmarkCall(b *testing.B) {
	r := benchRegistry(b, smallResult)
	args := json.RawMessage(`{"text":"hello"}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Call(context.Background(), "x", "echo", args); err != nil {
			b.Fatal(err)
		}
	}
}

func parallel(b *testing.B, callers int, call func() error) {
	work := make(chan struct{}, callers)
	done := make(chan error, callers)
	for range callers {
		go func() {
			var err error
			for range work {
				if err == nil {
					err = call()
				}
			}
			done <- err
		}()
	}
	for b.Loop() {
		work <- struct{}{}
	}
	close(work)
	for range callers {
		if err := <-done; err != nil {
			b.Error(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
}

// BenchmarkCall64 is the bridge alone with 64 callers at once.
func BenchmarkCall64(b *testing.B) {
	r := benchRegistry(b, smallResult)
	args := json.RawMessage(`{"text":"hello"}`)
	parallel(b, 64, func() error {
		_, err := r.Call(context.Background(), "x", "echo", args)
		return err
	})
}

// BenchmarkHTTP64 is the connector API over HTTP with 64 callers at once,
// client included.
func BenchmarkHTTP64(b *testing.B) {
	url := serve(b, benchRegistry(b, smallResult)).URL + "/api/v1/automation/connectors/x/actions/echo"
	tr := &http.Transport{MaxIdleConnsPerHost: 64}
	defer tr.CloseIdleConnections()
	hc := &http.Client{Transport: tr}
	parallel(b, 64, func() error {
		req, err := http.NewRequestWithContext(context.Background(), "POST", url, strings.NewReader(`{"text":"hello"}`))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := hc.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if b, err := io.ReadAll(res.Body); err != nil || !bytes.Contains(b, []byte(`"ok":true`)) {
			return fmt.Errorf("%s, %w", b, err)
		}
		return nil
	})
}

// BenchmarkResult10MiB passes a large result through the bridge and out of the
// HTTP handler. B/op over 10 MiB is the number of copies the bridge makes.
func BenchmarkResult10MiB(b *testing.B) {
	for _, mib := range []int{1, 5, 10} {
		b.Run(fmt.Sprintf("%dMiB", mib), func(b *testing.B) {
			text := strings.Repeat("x", mib<<20)
			reg := benchRegistry(b, `{"content":[{"type":"text","text":"`+text+`"}]}`)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				res, err := reg.Call(context.Background(), "x", "echo", json.RawMessage(`{"text":"x"}`))
				if err != nil {
					b.Fatal(err)
				}
				if err := res.WriteJSON(io.Discard); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
