package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/sandbox"
)

// Versions are the protocol revisions that Connect accepts, newest first.
func Versions() []string {
	return []string{"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}
}

// Options tune a Client. The zero value is usable.
type Options struct {
	// Name and Version introduce the client to the server.
	Name, Version string
	// MaxLine bounds one message in bytes; 0 means relay.DefaultMaxLine.
	MaxLine int
	// MaxDepth bounds the nesting of a result; 0 means 1000.
	MaxDepth int
	// Capabilities is the JSON object of client capabilities to declare; empty
	// declares roots alone.
	Capabilities json.RawMessage
	// Discover asks for server/discover (2026-07-28) before anything else, and
	// falls back to initialize. It is for transports on which a server cannot
	// end of a request that it does not know. Otherwise initialize comes first,
	// and server/discover only after a server that refused it.
	Discover bool
	// Notify receives each notification but progress, from the reading
	// goroutine: it must not block. params may be nil.
	Notify func(method string, params json.RawMessage)
	// Request receives each request of the server but ping, from the reading
	// goroutine: it must not block. Where it returns true it has taken the
	// request and answers by Respond; otherwise, and where it is nil, the
	// client answers: a list of roots that is empty, and no method.
	Request func(c *Client, method string, id, params json.RawMessage) bool
	// Stray receives each line that is no JSON-RPC, valid during the call.
	Stray func(line []byte)
	// Stderr receives the server's stderr; nil drops it.
	Stderr io.Writer
	// Stop bounds the sandbox's stop ladder; 0 means 15 seconds.
	Stop time.Duration
	// Logger receives the client's own records; nil discards them.
	Logger *slog.Logger
}

// Init is what a server said when it was initialized.
type Init struct {
	ProtocolVersion string
	Capabilities    map[string]json.RawMessage
	// Raw is the whole result, byte for byte.
	Raw json.RawMessage
}

type reply struct {
	result json.RawMessage
	err    error
}

type call struct {
	done     chan reply // buffered, answered at most once
	progress func(params json.RawMessage)
}

// Client is one initialized session. It owns the sandbox and is safe for
// concurrent use.
type Client struct {
	opts   Options
	conn   *relay.Conn
	init   Init
	modern bool // the server speaks 2026-07-28; set before Connect returns
	life   context.Context
	stop   context.CancelFunc

	mu      sync.Mutex
	nextID  int64
	pending map[int64]*call
	gone    bool
	level   string                  // of log messages, asked for with each request
	inputs  map[string]chan []byte  // answers that requests wait for, by IDKey
	acks    map[int64]chan struct{} // closed when a subscription is acknowledged
	subs    map[string]context.CancelFunc

	orphans atomic.Int64 // answers to nothing
	watcher sync.WaitGroup
}

// Connect initializes the server in sb and takes sb over, whatever it
// returns: after an error the sandbox is closed. ctx bounds the handshake,
// not the session.
func Connect(ctx context.Context, sb sandbox.Sandbox, opts Options) (*Client, error) {
	if opts.Name == "" {
		opts.Name = "sandboxd"
	}
	if opts.Version == "" {
		opts.Version = "0"
	}
	if opts.MaxDepth <= 0 {
		opts.MaxDepth = 1000
	}
	if len(opts.Capabilities) == 0 {
		// Some servers hide tools from a client without roots; this one has none
		// to show, and says so when it is asked.
		opts.Capabilities = json.RawMessage(`{"roots":{}}`)
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Client{
		opts: opts, pending: map[int64]*call{}, inputs: map[string]chan []byte{},
		acks: map[int64]chan struct{}{}, subs: map[string]context.CancelFunc{},
	}
	c.life, c.stop = context.WithCancel(context.WithoutCancel(ctx))
	ready := make(chan struct{})
	c.conn = relay.NewConn(sb, relay.ConnOptions{ //nolint:contextcheck // the connection outlives the handshake
		MaxLine: opts.MaxLine, Stray: opts.Stray, Stderr: opts.Stderr, Stop: opts.Stop, Logger: opts.Logger,
		Handle:   func(m relay.Message, line []byte) { <-ready; c.handle(m, line) },
		Oversize: func(m relay.Message, skel []byte, n int64) { <-ready; c.oversize(m, skel, n) },
	})
	close(ready) // c.conn is set
	c.watcher.Go(c.watch)
	if err := c.handshake(ctx); err != nil {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		return nil, errors.Join(err, c.Close(cctx))
	}
	return c, nil
}

func (c *Client) initialize(ctx context.Context) error {
	params, err := json.Marshal(map[string]any{
		"protocolVersion": Versions()[0],
		"capabilities":    c.opts.Capabilities,
		"clientInfo":      map[string]string{"name": c.opts.Name, "version": c.opts.Version},
	})
	if err != nil {
		return err
	}
	raw, err := c.exchange(ctx, "initialize", params, nil)
	if err != nil {
		return fmt.Errorf("initialize: %w", err)
	}
	c.init.Raw = raw
	var res struct {
		ProtocolVersion string                     `json:"protocolVersion"`
		Capabilities    map[string]json.RawMessage `json:"capabilities"`
	}
	if err := json.Unmarshal(raw, &res); err != nil {
		return fmt.Errorf("initialize: %w: result is no initialize result", ErrProtocol)
	}
	if !slices.Contains(Versions(), res.ProtocolVersion) {
		return fmt.Errorf("initialize: %w: protocol version %q is not supported", ErrProtocol, relay.Cut([]byte(res.ProtocolVersion), 40))
	}
	c.init.ProtocolVersion, c.init.Capabilities = res.ProtocolVersion, res.Capabilities
	return c.Notify(ctx, "notifications/initialized", nil)
}

// Init is what the server said at initialize, or in the same form what it said
// at server/discover.
func (c *Client) Init() Init { return c.init }

// Done is closed when the server and its sandbox are gone.
func (c *Client) Done() <-chan struct{} { return c.conn.Done() }

// Exit says how the sandbox ended; it waits for that.
func (c *Client) Exit() sandbox.Exit { return c.conn.Exit() }

// Stats counts stray lines and answers that nothing waited for.
func (c *Client) Stats() (strays, orphans int64) { return c.conn.Strays(), c.orphans.Load() }

// Close stops the sandbox by its ladder and fails what is pending.
func (c *Client) Close(ctx context.Context) error {
	c.stop()
	err := c.conn.Close(ctx)
	if err == nil {
		c.watcher.Wait()
	}
	return err
}

// Call sends one request with raw params (nil for none) and returns the raw
// result. When ctx ends first the server is sent notifications/cancelled and
// the error is ctx's; a dead server fails the call at once with
// *relay.ExitError; a JSON-RPC error is *RPCError. progress, where set,
// receives the params of each progress notification for the request, from the
// reading goroutine; params must then carry the request's token, which Token
// makes.
//
// What the older revisions have methods for (subscriptions, the log level, ping)
// is asked of a server of the newest in its own way.
func (c *Client) Call(ctx context.Context, method string, params []byte, progress *Progress) (json.RawMessage, error) {
	return c.CallFor(ctx, Caller{}, method, params, progress)
}

// exchange sends one request and waits for its answer.
func (c *Client) exchange(ctx context.Context, method string, params []byte, progress *Progress) (json.RawMessage, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	w := &call{done: make(chan reply, 1)}
	id, err := c.register(w, progress)
	if err != nil {
		return nil, err
	}
	defer c.forget(id)
	msg := make([]byte, 0, len(params)+len(method)+64)
	msg = append(msg, `{"jsonrpc":"2.0","id":`...)
	msg = strconv.AppendInt(msg, id, 10)
	msg = append(msg, `,"method":"`...)
	msg = append(msg, method...)
	msg = append(msg, '"')
	if params != nil {
		msg = append(append(msg, `,"params":`...), params...)
	}
	msg = append(msg, '}')
	if err := c.conn.Send(ctx, msg); err != nil {
		if errors.Is(err, relay.ErrClosed) {
			return nil, &relay.ExitError{Exit: c.conn.Exit()}
		}
		return nil, err
	}
	select {
	case r := <-w.done:
		return r.result, r.err
	case <-ctx.Done():
		if method != "initialize" { // the specification forbids cancelling it
			c.cancel(ctx, id)
		}
		return nil, context.Cause(ctx)
	}
}

func (c *Client) cancel(ctx context.Context, id int64) {
	reason := "cancelled by the caller"
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		reason = "timed out"
	}
	c.conn.TrySend(fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d,"reason":%q}}`, id, reason))
}

// Respond sends the answer to a request that Options.Request took. It is
// false where the server is gone or does not read.
func (c *Client) Respond(line []byte) bool {
	if c.modern {
		return c.fulfilled(line)
	}
	return c.conn.TrySend(line)
}

// Notify sends a notification with raw params, nil for none.
func (c *Client) Notify(ctx context.Context, method string, params []byte) error {
	msg := append([]byte(`{"jsonrpc":"2.0","method":"`), method...)
	msg = append(msg, '"')
	if params != nil {
		msg = append(append(msg, `,"params":`...), params...)
	}
	return c.conn.Send(ctx, append(msg, '}'))
}

func (c *Client) register(w *call, p *Progress) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return 0, &relay.ExitError{Exit: c.conn.Exit()}
	}
	c.nextID++
	id := c.nextID
	if p != nil {
		id, w.progress = p.id, p.receive
	}
	c.pending[id] = w
	return id, nil
}

func (c *Client) forget(id int64) {
	c.mu.Lock()
	delete(c.pending, id)
	c.mu.Unlock()
}

// Progress ties progress notifications to one Call.
type Progress struct {
	id      int64
	receive func(params json.RawMessage)
}

// NewProgress reserves the next Call's token. receive must not block.
func (c *Client) NewProgress(receive func(params json.RawMessage)) *Progress {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nextID++
	return &Progress{id: c.nextID, receive: receive}
}

// Token is the progressToken to put into the request's _meta, as JSON.
func (p *Progress) Token() []byte { return strconv.AppendInt(nil, p.id, 10) }
