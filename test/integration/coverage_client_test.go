package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"
)

// stdioClient is the least that lists a server's tools, and sees the bytes of
// their definitions: what is no JSON-RPC is passed over, as most clients do.
type stdioClient struct {
	in    io.Writer
	lines chan []byte
	next  int
}

type rpc struct {
	ID     json.RawMessage `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  json.RawMessage `json:"error,omitempty"`
}

// listTools starts cmd, lists its tools and ends it. started is how long it
// took until it had initialized.
func listTools(ctx context.Context, cmd *exec.Cmd) (defs []json.RawMessage, started time.Duration, err error) {
	var stderr syncBuffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, 0, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, 0, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its children end with it
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, 0, err
	}
	c := &stdioClient{in: stdin, lines: make(chan []byte)}
	reading := make(chan struct{})
	stop, stopReading := context.WithCancel(ctx)
	go func() { defer close(reading); c.read(stop, stdout) }()
	defer func() {
		stdin.Close()
		stopReading()
		ended := time.AfterFunc(20*time.Second, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		<-reading
		_ = cmd.Wait()
		ended.Stop()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, ending(stderr.String()))
		}
	}()
	params := `{"protocolVersion":"2025-11-25","capabilities":{"roots":{}},"clientInfo":{"name":"coverage","version":"1"}}`
	if _, err := c.call(ctx, "initialize", params); err != nil {
		return nil, 0, err
	}
	started = time.Since(start)
	if err := c.send(rpc{Method: "notifications/initialized"}); err != nil {
		return nil, 0, err
	}
	for params := `{}`; ; {
		res, err := c.call(ctx, "tools/list", params)
		if err != nil {
			return nil, 0, err
		}
		var page struct {
			Tools      []json.RawMessage `json:"tools"`
			NextCursor string            `json:"nextCursor"`
		}
		if err := json.Unmarshal(res, &page); err != nil {
			return nil, 0, err
		}
		defs = append(defs, page.Tools...)
		if page.NextCursor == "" {
			return defs, started, nil
		}
		b, _ := json.Marshal(map[string]string{"cursor": page.NextCursor})
		params = string(b)
	}
}

func (c *stdioClient) read(ctx context.Context, r io.Reader) {
	defer close(c.lines)
	br := bufio.NewReaderSize(r, 1<<20)
	for {
		line, err := br.ReadBytes('\n')
		if len(line) > 0 {
			select {
			case c.lines <- line:
			case <-ctx.Done():
				_, _ = io.Copy(io.Discard, br)
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (c *stdioClient) send(m rpc) error {
	b, err := json.Marshal(struct {
		V string `json:"jsonrpc"`
		rpc
	}{"2.0", m})
	if err != nil {
		return err
	}
	_, err = c.in.Write(append(b, '\n'))
	return err
}

func (c *stdioClient) call(ctx context.Context, method, params string) (json.RawMessage, error) {
	c.next++
	id := json.RawMessage(fmt.Sprint(c.next))
	if err := c.send(rpc{ID: id, Method: method, Params: json.RawMessage(params)}); err != nil {
		return nil, err
	}
	for {
		var line []byte
		var ok bool
		select {
		case line, ok = <-c.lines:
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: no answer in time", method)
		}
		if !ok {
			return nil, fmt.Errorf("%s: the server ended", method)
		}
		var m rpc
		if json.Unmarshal(line, &m) != nil {
			continue
		}
		switch {
		case m.Method != "" && m.ID != nil: // a question of the server's
			answer := json.RawMessage(`{}`)
			if m.Method == "roots/list" {
				answer = json.RawMessage(`{"roots":[]}`)
			}
			if err := c.send(rpc{ID: m.ID, Result: answer}); err != nil {
				return nil, err
			}
		case !bytes.Equal(m.ID, id):
		case m.Error != nil:
			return nil, errors.New(method + ": " + string(m.Error))
		default:
			return m.Result, nil
		}
	}
}
