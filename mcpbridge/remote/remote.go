package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/sandbox"
)

// Transport is how a server is spoken to.
type Transport string

// The transports. The zero value is Streamable HTTP.
const (
	StreamableHTTP Transport = ""
	SSE            Transport = "sse"       // the older HTTP+SSE, which begins with a GET
	WebSocket      Transport = "websocket" // one message a text frame, subprotocol mcp
)

// Config describes one server.
type Config struct {
	// URL is where it is: http or https, and ws or wss for a WebSocket.
	URL       string
	Transport Transport
	// Header is sent with each request; it may hold secrets.
	Header http.Header
	// Credentials give the Authorization field, in place of Header's; nil means
	// none.
	Credentials Credentials
	// Client sends the requests. It must not follow redirects but under a
	// policy. Idle connections of it are closed at the end.
	Client *http.Client
	// MaxMessage bounds one message in bytes; 0 means relay.DefaultMaxLine.
	MaxMessage int
	// PingEvery is how often a WebSocket is asked for a sign of life, and how
	// long it gets to give one; 0 means 30 seconds.
	PingEvery time.Duration
}

// Credentials are what a server that wants a login is shown.
type Credentials interface {
	// Token returns the bearer token to send now. Its error is shown to whoever
	// called: it names the next step and holds no secret.
	Token(ctx context.Context) (string, error)
	// Refused says that a server did not take a token: with which status and
	// WWW-Authenticate fields. It returns true where there is another to try,
	// once; otherwise its error, like Token's, or nil where it knows no more.
	Refused(ctx context.Context, token string, status int, challenges []string) (again bool, err error)
}

const (
	maxOpen     = 1024 // requests that are under way
	notifyWait  = 30 * time.Second
	listenWait  = 500 * time.Millisecond // for the stream of what a server says unasked
	endWait     = 2 * time.Second        // for the DELETE that ends a session
	maxFailures = 3                      // to open a stream again, one after another
	minRetry    = 100 * time.Millisecond
	maxRetry    = 30 * time.Second
	endpointMax = 30 * time.Second // until the older transport names its endpoint
)

// Server is one session with a remote server. It is a sandbox.Sandbox.
type Server struct {
	cfg    Config
	id     string
	inR    *io.PipeReader
	inW    *io.PipeWriter
	outR   *io.PipeReader
	outW   *io.PipeWriter
	errR   *io.PipeReader
	errW   *io.PipeWriter
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
	done   chan struct{}
	exit   sandbox.Exit
	places chan struct{}

	outMu sync.Mutex // one line at a time

	mu       sync.Mutex
	session  string
	version  string // negotiated, for the header
	endpoint string // where messages go
	open     map[string]context.CancelFunc
	params   params
	past     past // what a new session needs of the old one

	renewing chan struct{} // held while a session is replaced
	secrets  atomic.Pointer[[][]byte]
	socket   *socket // nil but for a WebSocket
}

var serial atomic.Int64

var errEnded = errors.New("the session was closed")

// Start begins a session. Nothing is sent before the first message, but with
// the older transport, whose GET ctx bounds.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	schemes := []string{"http", "https"}
	if cfg.Transport == WebSocket {
		schemes = []string{"ws", "wss"}
	}
	u, err := url.Parse(cfg.URL)
	if err != nil || !slices.Contains(schemes, u.Scheme) || u.Host == "" {
		return nil, fmt.Errorf("a remote server needs an %s or %s url", schemes[0], schemes[1])
	}
	if cfg.Client == nil {
		return nil, errors.New("a remote server needs an HTTP client")
	}
	if cfg.MaxMessage <= 0 {
		cfg.MaxMessage = relay.DefaultMaxLine
	}
	if cfg.PingEvery <= 0 {
		cfg.PingEvery = 30 * time.Second
	}
	s := &Server{
		cfg: cfg, id: fmt.Sprintf("remote-%d", serial.Add(1)), done: make(chan struct{}), endpoint: cfg.URL,
		places: make(chan struct{}, maxOpen), open: map[string]context.CancelFunc{},
		renewing: make(chan struct{}, 1),
	}
	s.inR, s.inW = io.Pipe()
	s.outR, s.outW = io.Pipe()
	s.errR, s.errW = io.Pipe()
	// A session outlives its start.
	s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	s.hide(bearer(cfg.Header))
	if err := s.begin(ctx); err != nil {
		s.cancel(err)
		s.wg.Wait()
		cfg.Client.CloseIdleConnections()
		return nil, err
	}
	s.wg.Go(s.read)
	go s.own() //nolint:contextcheck // the end has a context of its own
	return s, nil
}

// begin does what comes before the first message.
func (s *Server) begin(ctx context.Context) error {
	switch s.cfg.Transport {
	case SSE:
		return s.startSSE(ctx)
	case WebSocket:
		return s.startSocket(ctx)
	case StreamableHTTP:
	}
	if s.cfg.Credentials == nil {
		return nil
	}
	// A login that is missing is said now, and in its own words.
	_, err := s.cfg.Credentials.Token(ctx)
	return err
}

// own waits for the session's end and publishes it.
func (s *Server) own() {
	<-s.ctx.Done()
	// Who waits on a stream is told first.
	_ = s.inR.CloseWithError(io.ErrClosedPipe)
	if s.socket != nil {
		s.socket.end(context.Cause(s.ctx))
	}
	s.wg.Wait()
	s.endSession()
	s.cfg.Client.CloseIdleConnections()
	s.exit = sandbox.Exit{Cause: sandbox.Exited}
	if err := context.Cause(s.ctx); !errors.Is(err, errEnded) {
		s.exit.Detail = err.Error()
	}
	_ = s.outW.Close()
	_ = s.errW.Close()
	close(s.done)
}

// ID is unique in this process.
func (s *Server) ID() string { return s.id }

// Stdio returns the streams of the server that this stands for.
func (s *Server) Stdio() sandbox.Stdio {
	return sandbox.Stdio{In: s.inW, Out: s.outR, Err: s.errR}
}

// Wait waits for the session's end.
func (s *Server) Wait(ctx context.Context) (sandbox.Exit, error) {
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

// Close ends the session: what is under way is cut off, and the server told.
func (s *Server) Close(ctx context.Context) error {
	s.cancel(errEnded)
	_ = s.inW.Close()
	// A write that nobody reads ends too.
	_ = s.outR.CloseWithError(io.ErrClosedPipe)
	_ = s.errR.CloseWithError(io.ErrClosedPipe)
	_, err := s.Wait(ctx)
	return err
}

// read sends each line on until stdin ends.
func (s *Server) read() {
	lines := relay.NewReader(s.inR, s.cfg.MaxMessage)
	for {
		l, err := lines.Next()
		if err != nil {
			s.cancel(errEnded)
			return
		}
		m, perr := relay.Peek(l.Text)
		if perr != nil || m.Kind == relay.Stray || l.Oversize > 0 {
			continue // the bridge sends none
		}
		if s.socket != nil {
			s.write(lines.Take(l))
			continue
		}
		s.message(m, lines.Take(l))
	}
}

// message sends one message of the client.
func (s *Server) message(m relay.Message, line []byte) {
	if m.Kind != relay.Request {
		if m.Method == "notifications/initialized" {
			s.send(m, line) // before whatever follows it
			return
		}
		s.spawn(func() {
			s.send(m, line)
			if m.Method == "notifications/cancelled" {
				s.cutOff(m.Params.Of(line))
			}
		}, func() { s.log("too many messages are under way: one was dropped") })
		return
	}
	id := m.ID.Of(line)
	k, _ := relay.IDKey(id)
	ctx, cancel := context.WithCancel(s.ctx)
	s.mu.Lock()
	s.open[k] = cancel
	s.mu.Unlock()
	end := func() {
		cancel()
		s.mu.Lock()
		delete(s.open, k)
		s.mu.Unlock()
	}
	s.spawn(func() {
		defer end()
		s.request(ctx, m, line)
	}, func() {
		end()
		s.fail(id, "too many requests are under way")
	})
}

// spawn runs f in a goroutine of the session's, or full if there are too many.
func (s *Server) spawn(f, full func()) {
	select {
	case s.places <- struct{}{}:
		s.wg.Go(func() {
			defer func() { <-s.places }()
			f()
		})
	default:
		full()
	}
}

// cutOff ends the HTTP request of a call that the client cancelled.
func (s *Server) cutOff(params []byte) {
	id, ok := relay.Member(params, "requestId")
	if !ok {
		return
	}
	k, _ := relay.IDKey(id.Of(params))
	s.mu.Lock()
	cancel := s.open[k]
	s.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// emit writes one message of the server's as a line. What is no message is
// for the log, as on any server's stdout.
func (s *Server) emit(raw []byte) {
	for i, c := range raw { // outside of strings these are white space
		if c == '\n' || c == '\r' {
			raw[i] = ' '
		}
	}
	raw = s.redact(raw)
	s.outMu.Lock()
	defer s.outMu.Unlock()
	if _, err := s.outW.Write(append(raw, '\n')); err != nil {
		s.cancel(errEnded)
	}
}

func (s *Server) fail(id []byte, why string) { s.emit(relay.ErrorLine(id, -32000, why)) }

// log writes a line to the server's stderr.
func (s *Server) log(why string) { _, _ = s.errW.Write(append(s.redact([]byte(why)), '\n')) }
