// Package fake is a sandbox in memory for the bridge's tests: the "guest" is a
// function over three pipes. It may never be imported by anything but tests.
package fake

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/sandbox"
)

// Guest is what runs in the sandbox. Its streams fail once it is killed.
type Guest func(in io.Reader, out, errs io.Writer) sandbox.Exit

// Sandbox runs one Guest.
type Sandbox struct {
	id              string
	inR, outR, errR *io.PipeReader
	inW, outW, errW *io.PipeWriter
	done            chan struct{}
	exit            sandbox.Exit
	killed          atomic.Bool
	closeOnce       sync.Once
	Closed          atomic.Bool
}

var serial atomic.Int64

// Start runs a guest.
func Start(g Guest) *Sandbox {
	s := &Sandbox{id: fmt.Sprintf("fake-%d", serial.Add(1)), done: make(chan struct{})}
	s.inR, s.inW = io.Pipe()
	s.outR, s.outW = io.Pipe()
	s.errR, s.errW = io.Pipe()
	go func() {
		exit := g(s.inR, s.outW, s.errW)
		if s.killed.Load() {
			exit = sandbox.Exit{Cause: sandbox.Killed, Code: 137, Signal: 9}
		}
		s.exit = exit
		_ = s.inR.Close()
		_ = s.outW.Close()
		_ = s.errW.Close()
		close(s.done)
	}()
	return s
}

// ID is the sandbox's id.
func (s *Sandbox) ID() string { return s.id }

// Stdio returns the host's ends.
func (s *Sandbox) Stdio() sandbox.Stdio {
	return sandbox.Stdio{In: s.inW, Out: s.outR, Err: s.errR}
}

// Wait waits for the guest.
func (s *Sandbox) Wait(ctx context.Context) (sandbox.Exit, error) {
	select {
	case <-s.done:
		return s.exit, nil
	default:
	}
	select {
	case <-s.done:
		return s.exit, nil
	case <-ctx.Done():
		return sandbox.Exit{}, ctx.Err()
	}
}

// Grace is how long Close waits for a guest whose stdin was closed.
const Grace = 300 * time.Millisecond

// Close closes stdin, and the guest's streams if it has not ended in time.
func (s *Sandbox) Close(ctx context.Context) error {
	s.Closed.Store(true)
	_ = s.inW.Close()
	select {
	case <-s.done:
	case <-ctx.Done():
	case <-time.After(Grace):
	}
	s.closeOnce.Do(func() {
		// A guest in the middle of a write that nobody reads must end too.
		select {
		case <-s.done:
		default:
			s.killed.Store(true)
		}
		_ = s.outR.CloseWithError(io.ErrClosedPipe)
		_ = s.errR.CloseWithError(io.ErrClosedPipe)
	})
	_, err := s.Wait(ctx)
	return err
}

// Kill ends the guest as the kernel would.
func (s *Sandbox) Kill() {
	s.killed.Store(true)
	_ = s.inR.CloseWithError(io.ErrClosedPipe)
	_ = s.outW.CloseWithError(io.EOF)
	_ = s.errW.CloseWithError(io.EOF)
}

// Request is one message that a Server's function is asked to answer.
type Request struct {
	Method     string
	ID, Params json.RawMessage // ID is nil for a notification
	Raw        json.RawMessage // the whole line
	srv        *Server
}

// Tool looks at a tools/call.
func (r *Request) Tool() (name string, args json.RawMessage) {
	var p struct {
		Name      string
		Arguments json.RawMessage
	}
	_ = json.Unmarshal(r.Params, &p)
	return p.Name, p.Arguments
}

// Write writes one line as it is.
func (r *Request) Write(line string) { r.srv.write([]byte(line + "\n")) }

// Server is an MCP server whose answers a test decides.
type Server struct {
	Version string // negotiated; default: what the client asks
	Tools   string // the array of tools/list
	// Capabilities is declared; default: tools with listChanged.
	Capabilities string
	// NoInitialize leaves initialize to Handle.
	NoInitialize bool
	// Handle answers what is not initialize, ping or tools/list. It returns a
	// result, or an error object with Error; nil and nil answers nothing.
	Handle func(*Request) (result json.RawMessage, err *Error)
	// Each request runs in a goroutine of its own.
	Concurrent bool
	// Init are lines written before anything else.
	Init []string

	mu  sync.Mutex
	out io.Writer
}

// Error is a JSON-RPC error.
type Error struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (s *Server) write(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = s.out.Write(b)
}

// Guest is the server as a guest.
func (s *Server) Guest(in io.Reader, out, _ io.Writer) sandbox.Exit {
	s.out = out
	for _, l := range s.Init {
		s.write([]byte(l + "\n"))
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	lines := relay.NewReader(in, 64<<20)
	for {
		l, err := lines.Next()
		if err != nil {
			return sandbox.Exit{Cause: sandbox.Exited}
		}
		m, err := relay.Peek(l.Text)
		if err != nil {
			return sandbox.Exit{Cause: sandbox.Exited, Code: 65, Detail: "client sent no JSON"}
		}
		raw := bytes.Clone(l.Text)
		req := &Request{Method: m.Method, ID: m.ID.Of(raw), Params: m.Params.Of(raw), Raw: raw, srv: s}
		if s.Concurrent {
			wg.Go(func() { s.serve(m, req) })
		} else {
			s.serve(m, req)
		}
	}
}

func (s *Server) serve(m relay.Message, req *Request) {
	var res json.RawMessage
	var rerr *Error
	switch {
	case m.Method == "initialize" && !s.NoInitialize:
		v := s.Version
		if v == "" {
			var p struct{ ProtocolVersion string }
			_ = json.Unmarshal(req.Params, &p)
			v = p.ProtocolVersion
		}
		caps := s.Capabilities
		if caps == "" {
			caps = `{"tools":{"listChanged":true}}`
		}
		res = json.RawMessage(fmt.Sprintf(`{"protocolVersion":%q,"capabilities":%s,"serverInfo":{"name":"fake","version":"1"}}`, v, caps))
	case m.Method == "ping":
		res = json.RawMessage(`{}`)
	case m.Method == "tools/list" && s.Tools != "":
		res = json.RawMessage(`{"tools":` + s.Tools + `}`)
	case s.Handle != nil:
		res, rerr = s.Handle(req)
	case m.Kind == relay.Request:
		rerr = &Error{-32601, "method not found"}
	}
	if m.Kind != relay.Request {
		return
	}
	if rerr != nil {
		s.write(append(relay.ErrorLine(req.ID, rerr.Code, rerr.Message), '\n'))
	} else if res != nil {
		b := append([]byte(`{"jsonrpc":"2.0","id":`), req.ID...)
		b = append(append(b, `,"result":`...), res...)
		s.write(append(b, "}\n"...))
	}
}

// Drip writes bytes without a newline.
func (r *Request) Drip(b ...byte) { r.srv.write(b) }
