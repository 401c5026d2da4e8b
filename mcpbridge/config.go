package mcpbridge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path"
	"path/filepath"
	"regexp"
	"time"

	"github.com/sandboxd/sandboxd/mcpbridge/internal/pool"
	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/sandbox"
)

// Config is what a Registry needs from its owner. The zero value is usable:
// it serves loopback names only and logs nothing.
type Config struct {
	// Name and Version introduce the bridge to servers and clients.
	Name, Version string
	// Logger receives the registry's records; nil discards them.
	Logger *slog.Logger
	// ServerLog receives what servers write outside the protocol: stderr lines
	// and stray stdout lines (stream is stderr or stdout), cut to 16 KiB and
	// valid during the call only. It must not block. Nil logs them at debug,
	// quoted and cut.
	ServerLog func(server, stream string, line []byte)
	// OnEvent receives every Event, in order for each server. It must not
	// block. Nil drops them (the HTTP event stream has them anyway).
	OnEvent func(Event)
	// Authorize, where set, decides about each HTTP request but health: what
	// its client may see (nil: everything), or an error, which is answered with
	// 401 and never shown.
	Authorize func(*http.Request) (*Scope, error)
	// AllowedHosts are the Host names (without port) that the HTTP handler
	// answers to; nil means localhost and the loopback addresses. "*" is any.
	AllowedHosts []string
	// AllowedOrigins are the exact Origin values that browsers may come from,
	// beside loopback ones on an allowed host; nil means none.
	AllowedOrigins []string
	// Handlers are served beside the registry's own paths, behind the same
	// checks of Host, Origin and Authorize. The keys are paths without patterns.
	Handlers map[string]http.Handler
	// MaxBody bounds an HTTP request's body in bytes; 0 means 4 MiB.
	MaxBody int64
	// SessionIdle ends an MCP session that nobody used for that long; 0 means
	// 30 minutes.
	SessionIdle time.Duration
	// MaxSessions bounds the MCP sessions of each endpoint; 0 means 64. As with
	// MaxEventStreams, a client that has none gets one even beyond.
	MaxSessions int
	// MaxCalls bounds the calls that all servers together have in flight, beside
	// one for each; 0 means 512. As many can wait eightfold. Servers get their
	// places in turn.
	MaxCalls int
	// MaxEventStreams bounds the open streams of events; 0 means 32.
	MaxEventStreams int
	// EventText is how many bytes of a tool's answer its event shows, without
	// Secrets and hidden characters; 0 shows nothing of it.
	EventText int
	// Secrets are values that servers were given. They are taken out of events,
	// reasons and the server's log, however the server brings them in. Those
	// under 6 bytes are not: they would be found in everything.
	Secrets []string
	// StateDir is an absolute folder, made when it is needed, in which the
	// registry keeps what is to outlive it: tools' definitions, see PinsDir, and
	// lists of tools, see Server.CacheKey.
	// Empty keeps that in memory.
	StateDir string
}

var (
	morePath = regexp.MustCompile(`^(/[A-Za-z0-9_-]+)+$`)
	ownPath  = regexp.MustCompile(`^/(mcp|api|healthz)(/|$)`)
)

func listsDir(stateDir string) string {
	if stateDir == "" {
		return ""
	}
	return filepath.Join(stateDir, "lists")
}

// PinsDir is the folder of a registry's PinStore below its StateDir.
func PinsDir(stateDir string) string {
	if stateDir == "" {
		return ""
	}
	return filepath.Join(stateDir, "pins")
}

// Sharing says which callers of a server share a sandbox. The zero value
// starts one for each session of the raw endpoint, where every byte is its
// client's own, and gives connectors and the aggregated endpoint the one that
// the registry keeps.
type Sharing string

// The modes.
const (
	// SharingSession starts one sandbox for each session of the aggregated
	// endpoint too, when it first uses the server. Connectors have no sessions.
	SharingSession Sharing = "session"
	// SharingTenant gives everyone the registry's own sandbox.
	SharingTenant Sharing = "tenant"
	// SharingCall starts a sandbox for each call of a tool; all else is asked of
	// the registry's own.
	SharingCall Sharing = "call"
)

// Server describes one server to Registry.Add.
type Server struct {
	// Name is the server's name in configuration. Its slug names the
	// connector, the tools' prefix and the endpoint.
	Name string
	// Label is the name for people; empty means Name.
	Label string
	// Prepare, where set, runs before each start, and no StartTimeout bounds
	// it: this is where what a start needs is fetched and built. ctx is the
	// server's life. It can be called many times, concurrently.
	Prepare func(ctx context.Context) error
	// Start starts the server in a new sandbox. ctx bounds the start. It can
	// be called many times, concurrently.
	Start func(ctx context.Context) (sandbox.Sandbox, error)
	// CacheKey, where set, names all that decides which tools the server has:
	// its image's digest, its command and arguments, the names of its variables.
	// A list that was kept under the same key answers for the server until a
	// call starts it, unless it is Required or has Autostart. It is called after
	// Prepare.
	CacheKey func(ctx context.Context) (string, error)
	// Autostart starts the server at once even so.
	Autostart bool
	// IdleStop ends the shared sandbox when nobody called it for that long, and
	// those that Warm keeps when nobody took one; the next call starts them
	// again. 0 never does.
	IdleStop time.Duration
	// Warm is how many sandboxes are kept ready (16 at most) for whoever is to
	// have one of their own; each serves one. Under SharingCall their servers are
	// initialized and have listed their tools. Otherwise nobody has spoken to
	// them: a client with a session of its own introduces itself. 0 keeps none.
	Warm int
	// ToolsAllowlist, where not nil, admits only the tools that it names.
	ToolsAllowlist []string
	// Include, where not empty, admits only tools whose names match one of the
	// patterns (as in path.Match).
	Include []string
	// Renames gives tools other names, by the names that the server has for
	// them. A tool of the server's that has such a name already is left out.
	Renames map[string]string
	// Descriptions takes the place of tools' own, by the server's names.
	Descriptions map[string]string
	// Pin says what happens to tools whose definitions change.
	Pin PinMode
	// Required makes Add fail when the server cannot be started and listed.
	Required bool
	// Sharing says who shares the server's sandboxes.
	Sharing Sharing
	// StartTimeout bounds a start up to the tool list; 0 means 60 seconds.
	StartTimeout time.Duration
	// CallTimeout bounds one call, its wait in the queue included; 0 means 60
	// seconds.
	CallTimeout time.Duration
	// RequireRootType leaves tools out whose input schema's root has no type.
	// Otherwise "type":"object" is taken to be there, and shown.
	RequireRootType bool
	// Limits bounds what the server can make the bridge hold.
	Limits Limits
}

// Limits bounds one server's use of the bridge; zero fields take defaults.
type Limits struct {
	InFlight    int // calls sent and not answered; default 64
	Queue       int // calls waiting for a place, of all callers; default 1024
	Args        int // bytes of one call's arguments; default 4 MiB
	Line        int // bytes of one message, results included; default 16 MiB
	Tools       int // admitted from one list; default 2048
	ListBytes   int // of a whole tool list; default 32 MiB
	SchemaBytes int // of one schema; default 256 KiB
	SchemaDepth int // default 64
	Sessions    int // sandboxes of the raw endpoint; default Config.MaxSessions
	Restarts    int // in a row without a good minute between; default 10
}

func or(v, d int) int {
	if v <= 0 {
		return d
	}
	return v
}

func (l Limits) withDefaults(c Config) Limits {
	return Limits{
		InFlight: or(l.InFlight, 64), Queue: or(l.Queue, 1024), Args: or(l.Args, 4<<20),
		Line: or(l.Line, relay.DefaultMaxLine), Tools: or(l.Tools, 2048), ListBytes: or(l.ListBytes, 32<<20),
		SchemaBytes: or(l.SchemaBytes, 256<<10), SchemaDepth: or(l.SchemaDepth, 64),
		Sessions: or(l.Sessions, c.MaxSessions), Restarts: or(l.Restarts, 10),
	}
}

func (c Config) withDefaults() (Config, error) {
	if c.Name == "" {
		c.Name = "sandboxd"
	}
	if c.Version == "" {
		c.Version = "0"
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.MaxBody < 0 || c.SessionIdle < 0 || c.MaxSessions < 0 || c.MaxCalls < 0 || c.MaxEventStreams < 0 || c.EventText < 0 {
		return c, errors.New("mcpbridge: a negative limit")
	}
	for path, h := range c.Handlers {
		if h == nil || !morePath.MatchString(path) || ownPath.MatchString(path) {
			return c, fmt.Errorf("mcpbridge: Handlers: %q has no handler, is no plain path or is the registry's own", relay.Cut([]byte(path), 80))
		}
	}
	if c.StateDir != "" && !filepath.IsAbs(c.StateDir) {
		return c, errors.New("mcpbridge: StateDir is not absolute")
	}
	if c.MaxBody == 0 {
		c.MaxBody = 4 << 20
	}
	if c.SessionIdle == 0 {
		c.SessionIdle = 30 * time.Minute
	}
	c.MaxSessions, c.MaxCalls, c.MaxEventStreams = or(c.MaxSessions, 64), or(c.MaxCalls, 512), or(c.MaxEventStreams, 32)
	if c.AllowedHosts == nil {
		c.AllowedHosts = []string{"localhost", "127.0.0.1", "::1"}
	}
	return c, nil
}

func (s Server) withDefaults(c Config) (Server, error) {
	if Slug(s.Name) == "" {
		return s, fmt.Errorf("server name %q has no letter or digit", relay.Cut([]byte(s.Name), 80))
	}
	if s.Start == nil {
		return s, fmt.Errorf("server %q: no Start function", s.Name)
	}
	if s.Label == "" {
		s.Label = s.Name
	}
	switch s.Sharing {
	case "", SharingSession, SharingTenant, SharingCall:
	default:
		return s, fmt.Errorf("server %q: unknown sharing %q: use tenant, session or call", s.Name, s.Sharing)
	}
	if s.Pin == "" {
		s.Pin = PinWarn
	}
	if !s.Pin.valid() {
		return s, fmt.Errorf("server %q: unknown pin mode %q: use one of %s", s.Name, s.Pin, PinModes())
	}
	if err := s.checkRenames(); err != nil {
		return s, err
	}
	if s.StartTimeout < 0 || s.CallTimeout < 0 || s.IdleStop < 0 {
		return s, fmt.Errorf("server %q: a negative timeout", s.Name)
	}
	if s.Warm < 0 || s.Warm > pool.Most {
		return s, fmt.Errorf("server %q: %d sandboxes cannot be kept ready: from 0 to %d", s.Name, s.Warm, pool.Most)
	}
	if s.StartTimeout == 0 {
		s.StartTimeout = time.Minute
	}
	if s.CallTimeout == 0 {
		s.CallTimeout = time.Minute
	}
	for _, p := range s.Include {
		if _, err := path.Match(p, "x"); err != nil {
			return s, fmt.Errorf("server %q: include pattern %q: %w", s.Name, p, err)
		}
	}
	s.Limits = s.Limits.withDefaults(c)
	return s, nil
}

func (s Server) checkRenames() error {
	from := map[string]string{}
	for wire, to := range s.Renames {
		if !toolNameOK(to) {
			return fmt.Errorf("server %q: rename of %q: %q is not 1 to 128 characters of A-Z a-z 0-9 _ - . /", s.Name, wire, to)
		}
		if other, twice := from[to]; twice {
			return fmt.Errorf("server %q: tools %q and %q are both renamed to %q", s.Name, min(wire, other), max(wire, other), to)
		}
		from[to] = wire
	}
	return nil
}

// logWriter sends whole or cut lines to a line function.
type logWriter struct {
	line func([]byte)
	buf  []byte
}

var _ io.Writer = (*logWriter)(nil)

// Write splits what relay.CopyLines writes into lines.
func (w *logWriter) Write(p []byte) (int, error) {
	for _, c := range p {
		if c == '\n' {
			w.line(w.buf)
			w.buf = w.buf[:0]
		} else if len(w.buf) < 16<<10 {
			w.buf = append(w.buf, c)
		}
	}
	return len(p), nil
}
