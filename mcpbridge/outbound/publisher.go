package outbound

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/mcpbridge/schema"
	"github.com/sandboxd/sandboxd/mcpbridge/streamhttp"
)

// DefaultPrefix begins the names of published tools.
const DefaultPrefix = "relavium_"

// DefaultTimeout bounds a run whose workflow names no other bound.
const DefaultTimeout = 10 * time.Minute

// Config is what a Publisher needs from its owner. The zero value is usable
// and publishes nothing.
type Config struct {
	// Name and Version introduce the publisher to clients.
	Name, Version string
	// Prefix begins every tool's name; empty means DefaultPrefix. It has
	// letters, digits, _ and -, 32 at most.
	Prefix string
	// Logger receives the publisher's records; nil discards them.
	Logger *slog.Logger
	// MaxBody bounds one message of a client in bytes; 0 means 4 MiB.
	MaxBody int64
	// MaxOutput bounds the outputs of one run in bytes; 0 means 4 MiB.
	MaxOutput int
	// MaxSessions bounds the clients of each transport; 0 means 64.
	MaxSessions int
	// MaxCalls bounds the runs that are under way at once; 0 means 64. A call
	// beyond is refused, not queued: runs are long.
	MaxCalls int
	// SessionIdle ends an HTTP session that nobody used for that long; 0 means
	// 30 minutes.
	SessionIdle time.Duration
	// AskTimeout bounds the wait for a person's answer; 0 means 30 minutes.
	AskTimeout time.Duration
	// OriginChecked says that who serves Handler has checked the Origin of
	// WebSocket requests. Otherwise only pages of the same host may connect.
	OriginChecked bool
	// Owner, where set, names who sent a request to Handler: an HTTP session is
	// known to the one that opened it alone.
	Owner func(*http.Request) string
}

// LeftOut is a workflow that is not published.
type LeftOut struct{ ID, Reason string }

// Publisher serves published workflows. Close it when done.
type Publisher struct {
	cfg   Config
	http  *streamhttp.Handler
	calls chan struct{} // one element for each run under way

	mu       sync.Mutex
	table    *table
	sessions map[*session]struct{}
	sockets  map[*socket]struct{}
	closed   bool
	wg       sync.WaitGroup // one for each socket
}

// table is one state of what is published.
type table struct {
	list  [][]byte // as tools/list has them
	tools map[string]*tool
}

type tool struct {
	Workflow
	name    string
	in, out *schema.Schema // out is nil without an output schema
}

var prefixOK = regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}$`)

// New checks the configuration. Publish says what there is to call.
func New(cfg Config) (*Publisher, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &Publisher{
		cfg: cfg, calls: make(chan struct{}, cfg.MaxCalls), table: &table{tools: map[string]*tool{}},
		sessions: map[*session]struct{}{}, sockets: map[*socket]struct{}{},
	}
	p.http, err = streamhttp.New(streamhttp.Config{
		Open: func(_ context.Context, _ *http.Request, emit streamhttp.Emit) (streamhttp.Session, error) {
			return p.open(emit), nil
		},
		Owner: cfg.Owner, Stateless: true, MaxBody: cfg.MaxBody, MaxSessions: cfg.MaxSessions,
		// A question that waits for its answer must not lose its session.
		Idle: max(cfg.SessionIdle, cfg.AskTimeout+time.Minute), Logger: cfg.Logger,
	})
	return p, err
}

func (c Config) withDefaults() (Config, error) {
	if c.MaxBody < 0 || c.MaxOutput < 0 || c.MaxSessions < 0 || c.MaxCalls < 0 || c.SessionIdle < 0 || c.AskTimeout < 0 {
		return c, errors.New("outbound: a negative limit")
	}
	if c.Prefix == "" {
		c.Prefix = DefaultPrefix
	}
	if !prefixOK.MatchString(c.Prefix) {
		return c, fmt.Errorf("outbound: prefix %q: want letters, digits, _ and -, 32 at most", relay.Cut([]byte(c.Prefix), 80))
	}
	if c.Name == "" {
		c.Name = "sandboxd"
	}
	if c.Version == "" {
		c.Version = "0"
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.MaxBody == 0 {
		c.MaxBody = 4 << 20
	}
	if c.MaxOutput == 0 {
		c.MaxOutput = 4 << 20
	}
	if c.MaxSessions == 0 {
		c.MaxSessions = 64
	}
	if c.MaxCalls == 0 {
		c.MaxCalls = 64
	}
	if c.SessionIdle == 0 {
		c.SessionIdle = 30 * time.Minute
	}
	if c.AskTimeout == 0 {
		c.AskTimeout = 30 * time.Minute
	}
	return c, nil
}

// Publish makes these workflows, and no others, the published ones; runs under
// way go on. What cannot be published is left out and reported: one without a
// Runner or with a schema that does not compile, and every one of those whose
// tools would have the same name, so that none can stand in for another.
func (p *Publisher) Publish(workflows ...Workflow) []LeftOut {
	var leftOut []LeftOut
	leave := func(id, reason string) {
		id = relay.Cut([]byte(id), 80)
		leftOut = append(leftOut, LeftOut{id, reason})
		p.cfg.Logger.Warn("workflow not published", "workflow", id, "reason", reason)
	}
	names := map[string]int{}
	for _, w := range workflows {
		names[mcpbridge.PublishedName(p.cfg.Prefix, w.ID)]++
	}
	t := &table{tools: map[string]*tool{}}
	for _, w := range workflows {
		name := mcpbridge.PublishedName(p.cfg.Prefix, w.ID)
		if names[name] > 1 {
			leave(w.ID, "another workflow's tool would have the name "+name+" too: give one of them another id")
			continue
		}
		tl, err := compile(w, name)
		if err != nil {
			leave(w.ID, err.Error())
			continue
		}
		t.tools[name] = tl
		t.list = append(t.list, tl.definition())
	}
	p.mu.Lock()
	p.table = t
	told := make([]*session, 0, len(p.sessions))
	for s := range p.sessions {
		told = append(told, s)
	}
	p.mu.Unlock()
	for _, s := range told {
		s.listChanged()
	}
	return leftOut
}

func (p *Publisher) now() *table {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.table
}

// Tools returns the published tools' definitions as clients see them.
func (p *Publisher) Tools() []json.RawMessage {
	var out []json.RawMessage
	for _, raw := range p.now().list {
		out = append(out, slices.Clone(raw))
	}
	return out
}

func compile(w Workflow, name string) (*tool, error) {
	if w.ID == "" || len(w.ID) > 256 {
		return nil, errors.New("its id has not 1 to 256 bytes")
	}
	if w.Runner == nil || w.Timeout < 0 {
		return nil, errors.New("it has no Runner, or a negative Timeout")
	}
	if w.Timeout == 0 {
		w.Timeout = DefaultTimeout
	}
	if len(w.Inputs) > 0 && len(w.InputSchema) > 0 {
		return nil, errors.New("it has both inputs and an input schema")
	}
	if len(w.InputSchema) == 0 {
		var err error
		if w.InputSchema, err = InputSchema(w.Inputs); err != nil {
			return nil, err
		}
	}
	t := &tool{Workflow: w, name: name}
	var err error
	// Clients insist on a root type, so it has to be written.
	if t.in, err = schema.Compile(w.InputSchema, schema.Bounds{RequireRootType: true}); err != nil {
		return nil, fmt.Errorf("input schema: %w", err)
	}
	if len(w.OutputSchema) > 0 {
		if t.out, err = schema.Compile(w.OutputSchema, schema.Bounds{RequireRootType: true}); err != nil {
			return nil, fmt.Errorf("output schema: %w", err)
		}
	}
	return t, nil
}

// definition is the tool as tools/list has it.
func (t *tool) definition() []byte {
	b, err := json.Marshal(struct {
		Name        string          `json:"name"`
		Title       string          `json:"title,omitempty"`
		Description string          `json:"description,omitempty"`
		Input       json.RawMessage `json:"inputSchema"`
		Output      json.RawMessage `json:"outputSchema,omitempty"`
	}{t.name, t.Title, t.Description, t.InputSchema, t.OutputSchema})
	if err != nil { // both schemas were compiled
		return []byte(`{}`)
	}
	return bytes.TrimSpace(b)
}

// Handler serves MCP's Streamable HTTP, of both eras, and on the same path
// WebSocket: a GET that asks for an upgrade to the subprotocol mcp.
func (p *Publisher) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isUpgrade(r) {
			p.serveSocket(w, r)
			return
		}
		p.http.ServeHTTP(w, r)
	})
}

// Drain ends what never ends by itself, the general streams and the sockets,
// now and from now on. HTTP requests go on.
func (p *Publisher) Drain() {
	p.http.Drain()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for s := range p.sockets {
		s.drop(errClosing)
	}
}

// Close ends every session and with it every run, and waits.
func (p *Publisher) Close(ctx context.Context) error {
	p.Drain()
	err := p.http.Close(ctx)
	done := make(chan struct{})
	go func() { p.wg.Wait(); close(done) }()
	select {
	case <-done:
		return err
	case <-ctx.Done():
		return errors.Join(err, context.Cause(ctx))
	}
}
