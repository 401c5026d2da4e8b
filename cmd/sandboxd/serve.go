package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/config"
	"github.com/sandboxd/sandboxd/mcpbridge"
)

type serveFlags struct {
	common
	files     []string
	listen    string
	tokenFile string
}

func newServe() *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve --config FILE",
		Short: "Serve sandboxed MCP servers as connectors and as one MCP endpoint",
		Long: `Serve the MCP servers of a config file, each in its own sandbox:

  GET  /api/v1/automation/connectors                              their descriptors
  POST /api/v1/automation/connectors/{name}/actions/{key}         call a tool
  /mcp                                                            all tools as one MCP endpoint
  /mcp/{server}                                                   one server, unchanged
  /mcp-outbound                                                   an engine's workflows, where the config names some

SIGHUP reads the files again: egress policies change at once, under running
servers too, and connections that they forbid end. A fault leaves everything as
it was.

Several files merge, later ones over earlier ones with the same name. Beyond
loopback a token is required: --token-file, or the config's clients.`,
		Args:        exactly(0),
		Annotations: map[string]string{handlesHangup: "yes"},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(f.files) == 0 {
				return usagef("no config file: sandboxd serve --config FILE (see docs/config.md)")
			}
			return f.serve(cmd.Context())
		},
	}
	f.flags(cmd)
	fl := cmd.Flags()
	fl.StringArrayVarP(&f.files, "config", "c", nil, "config `FILE`, YAML or TOML (repeatable)")
	fl.StringVar(&f.listen, "listen", "", "`HOST:PORT` of the HTTP API (default: the config's, else "+config.DefaultListen+")")
	fl.StringVar(&f.tokenFile, "token-file", "", "`FILE` with the bearer token that callers must send")
	return cmd
}

func (f *serveFlags) serve(ctx context.Context) error {
	if err := f.load(); err != nil {
		return err
	}
	hup, stopHangups := hangups()
	defer stopHangups()
	load := func() (*config.Config, error) {
		return config.Load(config.Options{Policies: f.policies(ctx)}, f.files...)
	}
	cfg, err := load()
	if err != nil {
		return usageError{err}
	}
	listen := cfg.Listen
	if f.listen != "" {
		listen = f.listen
	}
	token, err := readToken(f.tokenFile)
	if err != nil {
		return err
	}
	if _, _, err := net.SplitHostPort(listen); err != nil {
		return usagef("--listen %q: want HOST:PORT", listen)
	}
	if token == "" && len(cfg.Clients) == 0 && !isLoopback(listen) {
		return usagef("listening on %s lets other machines call the tools: give --token-file, or clients in the config, or listen on 127.0.0.1", listen)
	}
	lookups := slices.ContainsFunc(cfg.Servers, func(s config.Server) bool { return looksUp(s.Policy) })
	l, closeAll, err := f.open(ctx, lookups)
	if err != nil {
		return err
	}
	defer closeAll()
	for _, w := range cfg.Warnings {
		fmt.Fprintln(os.Stderr, "sandboxd:", w)
	}
	// The port comes before the servers: there is no use in starting them all
	// to find that nobody could call them.
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("cannot listen on %s: %w (choose another with --listen)", listen, err)
	}
	defer ln.Close() //nolint:errcheck // closed with the server before
	bridge := bridgeConfig(l, cfg, token)
	if bridge.StateDir, err = stateDir(cfg.Tenant); err != nil {
		return err
	}
	pub, err := newPublished(l, cfg)
	if err != nil {
		return err
	}
	defer stopAtEnd(ctx, l.log, "runs", pub.Close)
	if len(cfg.Outbound.Workflows) > 0 {
		path := cmp.Or(cfg.Outbound.Path, config.DefaultOutboundPath)
		bridge.Handlers = map[string]http.Handler{path: pub.Handler()}
		fmt.Fprintf(os.Stderr, "sandboxd: publishing %d workflow(s) at http://%s%s\n", len(cfg.Outbound.Workflows), ln.Addr(), path)
	}
	registry, err := mcpbridge.New(bridge)
	if err != nil {
		return err
	}
	defer stopAtEnd(ctx, l.log, "servers", registry.Close)
	if l.logins, err = newLogins(l.guard, cfg.Tenant, f.files, l.log); err != nil {
		return err
	}
	servers, starters, err := bridgeServers(l, registry, cfg)
	if err != nil {
		return err
	}
	if err := registry.Add(ctx, servers...); err != nil {
		return err
	}
	reloading, stopReloading := context.WithCancel(ctx)
	var background sync.WaitGroup
	background.Go(func() { reloads(reloading, hup, starters, load) })
	background.Go(func() { l.logins.watch(reloading, registry.Retry) })
	defer func() { stopReloading(); background.Wait() }()
	return serveHTTP(ctx, ln, registry, pub, len(servers), f.tokenFile)
}

// stopAtEnd stops something within a bound, although ctx has ended.
func stopAtEnd(ctx context.Context, log *slog.Logger, what string, stop func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopBound)
	defer cancel()
	if err := stop(ctx); err != nil {
		log.Error("not everything could be stopped", "what", what, "error", err)
	}
}

// serveHTTP serves until ctx ends, then lets calls under way finish.
func serveHTTP(ctx context.Context, ln net.Listener, registry *mcpbridge.Registry, pub *published, n int, tokenFile string) error {
	srv := &http.Server{Handler: registry.Handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	srv.RegisterOnShutdown(registry.Drain) // event streams never end by themselves
	srv.RegisterOnShutdown(pub.Drain)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	base := "http://" + ln.Addr().String()
	fmt.Fprintf(os.Stderr, "sandboxd: serving %d server(s) at %s\n", n, base)
	fmt.Fprintf(os.Stderr, "  connectors: %s/api/v1/automation/connectors\n  MCP:        %s/mcp\n", base, base)
	server := base
	if tokenFile != "" {
		server += " --token-file " + tokenFile
	}
	go tryThis(ctx, registry, server)
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := srv.Shutdown(stop); err != nil {
		_ = srv.Close() // calls that did not end in time
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// tryThis prints one call to try, once a server has come up. server is the URL,
// with what else a call needs.
func tryThis(ctx context.Context, registry *mcpbridge.Registry, server string) {
	if err := registry.Ready(ctx); err != nil && ctx.Err() != nil {
		return
	}
	for _, c := range registry.Connectors() {
		d := c.Descriptor()
		if key, args, ok := example(d.Actions); ok {
			fmt.Fprintf(os.Stderr, "  try:        %s call --server %s %s %s '%s'\n", os.Args[0], server, d.Name, key, args)
			return
		}
	}
}

// example finds a call that one can make without knowing the tool: an echo, or
// one that needs no arguments.
func example(actions []mcpbridge.Action) (key, args string, ok bool) {
	for _, a := range actions {
		var schema struct {
			Required []string `json:"required"`
		}
		if json.Unmarshal(a.InputSchema, &schema) != nil {
			continue
		}
		switch {
		case a.Key == "echo" && len(schema.Required) == 1 && plainName.MatchString(schema.Required[0]):
			return a.Key, `{"` + schema.Required[0] + `":"hello"}`, true
		case len(schema.Required) == 0 && plainName.MatchString(a.Key) && !ok:
			key, args, ok = a.Key, `{}`, true
		}
	}
	return key, args, ok
}

// plainName is what can stand in a shell's line as it is: the names are a
// stranger's.
var plainName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$`)

// eventText is how many bytes of a result an event shows.
const eventText = 2000

func bridgeConfig(l *launcher, c *config.Config, token string) mcpbridge.Config {
	cfg := mcpbridge.Config{Name: "sandboxd", Version: version, Logger: l.log, MaxCalls: c.InFlight}
	if c.EventResults {
		cfg.EventText = eventText
	}
	for _, s := range c.Secrets {
		cfg.Secrets = append(cfg.Secrets, s.Reveal())
	}
	if token != "" || len(c.Clients) > 0 {
		cfg.AllowedHosts = []string{"*"} // the token, not the name, is the proof
		cfg.Authorize = authorize(token, c.Clients)
	}
	return cfg
}

// authorize knows who sends a request by its bearer token: whoever has that of
// --token-file sees everything, a client of the config what it names there.
func authorize(token string, clients []config.Client) func(*http.Request) (*mcpbridge.Scope, error) {
	type known struct {
		sum   [sha256.Size]byte
		scope *mcpbridge.Scope
	}
	var all []known
	if token != "" {
		all = append(all, known{sha256.Sum256([]byte(token)), nil})
	}
	for _, c := range clients {
		all = append(all, known{c.TokenSHA256, &mcpbridge.Scope{Name: c.Name, Servers: c.Servers, Tools: c.Tools}})
	}
	return func(r *http.Request) (*mcpbridge.Scope, error) {
		got, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		sum := sha256.Sum256([]byte(got))
		found := -1
		for i, k := range all { // all of them, so that the time says nothing
			if subtle.ConstantTimeCompare(sum[:], k.sum[:]) == 1 {
				found = i
			}
		}
		if !ok || found < 0 {
			return nil, errors.New("no valid bearer token")
		}
		return all[found].scope, nil
	}
}

// readToken reads a token file that others must not be able to read.
func readToken(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	fi, err := os.Stat(path)
	if err != nil {
		return "", usageError{fmt.Errorf("--token-file: %w", err)}
	}
	if fi.Mode().Perm()&0o077 != 0 {
		return "", usagef("--token-file %s can be read by others: chmod 600 it", path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", usageError{fmt.Errorf("--token-file: %w", err)}
	}
	token := strings.TrimSpace(string(b))
	if len(token) < 16 {
		return "", usagef("--token-file %s: a token has at least 16 characters", path)
	}
	return token, nil
}

func isLoopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}
