package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/mcpbridge/relay"
	"github.com/sandboxd/sandboxd/policies"
	"github.com/sandboxd/sandboxd/sandbox"
)

type runFlags struct {
	common
	policy, isolation, tenant, name string
	env, mounts                     []string
	files                           []string // config files that have the server
	server                          string   // its id there
}

func newRun() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARGS…]",
		Short: "Run one MCP server sandboxed, on stdin and stdout",
		Long: `Run one MCP server sandboxed. Put it in front of the command that a client
already has:

  sandboxd run -- npx -y @modelcontextprotocol/server-memory
  sandboxd run --mount ~/notes:/notes:rw -- npx -y @modelcontextprotocol/server-filesystem /notes
  sandboxd run --policy egress.yaml -- ./server.wasm

MCP passes on stdin and stdout, byte for byte; all else goes to stderr. Without
a policy the server has no network. The exit status is the server's own, or 1
for a failure and 2 for a mistake in the command.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(cmd, args); err != nil {
				return err
			}
			if err := f.load(); err != nil {
				return err
			}
			find := func(ctx context.Context) (server, error) { return f.given(ctx, args) }
			if len(f.files) > 0 {
				find = f.configured
			}
			s, err := find(cmd.Context())
			if err != nil {
				return err
			}
			return run(cmd.Context(), &f.common, s)
		},
	}
	f.flags(cmd)
	fl := cmd.Flags()
	fl.SetInterspersed(false) // the server's own flags are not ours
	fl.StringVar(&f.policy, "policy", "none", "a preset (none, registries, public-web) or a policy `FILE`")
	fl.StringVar(&f.isolation, "isolation", "", "wasm-inprocess, wasm, container or gvisor (default: by kind of server)")
	fl.StringArrayVar(&f.env, "env", nil, "`NAME=VALUE` for the server, or NAME to pass a variable on (repeatable)")
	fl.StringArrayVar(&f.mounts, "mount", nil, "`SRC:DST[:rw]` shows a file or folder to the server (repeatable)")
	fl.StringArrayVarP(&f.files, "config", "c", nil, "run a server of this config `FILE`, as --server names it (repeatable)")
	fl.StringVar(&f.server, "server", "", "id of the server in --config")
	fl.StringVar(&f.tenant, "tenant", "local", "tenant name for records")
	fl.StringVar(&f.name, "name", "", "server name for records (default: from the command)")
	_ = cmd.RegisterFlagCompletionFunc("server", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return completeServers(f.files), cobra.ShellCompDirectiveNoFileComp
	})
	_ = cmd.RegisterFlagCompletionFunc("isolation", cobra.FixedCompletions(
		[]string{"wasm-inprocess", "wasm", "container", "gvisor"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("policy", cobra.FixedCompletions(policies.Presets(), cobra.ShellCompDirectiveDefault))
	return cmd
}

// check tells the two ways to name a server apart.
func (f *runFlags) check(cmd *cobra.Command, args []string) error {
	switch {
	case len(f.files) == 0 && f.server != "":
		return usagef("--server names a server of a config: give --config FILE too")
	case len(f.files) == 0 && len(args) == 0:
		return usagef("no server to run: sandboxd run -- npx -y PACKAGE")
	case len(f.files) == 0:
		return nil
	case f.server == "" || len(args) > 0:
		return usagef("with --config, --server names the one to run, and no command follows")
	}
	for _, name := range []string{"policy", "isolation", "env", "mount", "tenant", "name"} {
		if cmd.Flags().Changed(name) {
			return usagef("with --config the config says how the server runs: leave --%s out", name)
		}
	}
	return nil
}

// given turns the flags into what to start.
func (f *runFlags) given(ctx context.Context, command []string) (server, error) {
	s := server{tenant: f.tenant, name: f.name, command: command, passed: os.LookupEnv}
	if s.name == "" {
		s.name = serverName(command)
	}
	var err error
	if s.policy, err = f.policies(ctx).Find(f.policy, ""); err != nil {
		return s, usageError{err}
	}
	if f.isolation != "" {
		if s.isolation, err = sandbox.ParseIsolation(f.isolation); err != nil {
			return s, usageError{err}
		}
	}
	for _, m := range f.mounts {
		spec, err := parseMount(m)
		if err != nil {
			return s, err
		}
		s.mounts = append(s.mounts, spec)
	}
	s.env, err = envList(f.env)
	return s, err
}

func run(ctx context.Context, c *common, s server) error {
	l, closeAll, err := c.open(ctx, looksUp(s.policy))
	if err != nil {
		return err
	}
	defer closeAll()
	for _, w := range s.policy.Warnings {
		fmt.Fprintln(os.Stderr, "sandboxd:", w)
	}
	p, err := l.prepare(ctx, s)
	if err != nil {
		return err
	}
	sb, err := p.start(ctx)
	if err != nil {
		return err
	}
	// A client that has gone must be an error that the stop ladder follows, not
	// a signal that ends this program in the middle of it.
	gone := make(chan os.Signal, 1)
	signal.Notify(gone, syscall.SIGPIPE)
	defer signal.Stop(gone)
	exit, err := relay.RelayStdio(ctx, os.Stdin, os.Stdout, sb, relay.StdioOptions{Stderr: os.Stderr, Logger: l.log})
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("relay: %w", err)
	}
	return exitStatus(exit)
}

// exitStatus hands the server's own status on, and says why it ended where
// that was not plainly well.
func exitStatus(exit sandbox.Exit) error {
	why := ""
	switch exit.Cause {
	case sandbox.Exited:
		if exit.Code != 0 {
			why = fmt.Sprintf("ended with status %d", exit.Code)
		}
	case sandbox.Killed:
		why = fmt.Sprintf("was ended by signal %d (%s)", exit.Signal, syscall.Signal(exit.Signal))
	case sandbox.HostFault:
		return fmt.Errorf("the sandbox failed: %s", exit.Detail)
	default:
		why = fmt.Sprintf("was ended (%s): %s", exit.Cause, exit.Detail)
	}
	if why != "" {
		if use := exit.Use(); use != "" {
			why += "; it used at most " + use
		}
		fmt.Fprintln(os.Stderr, "sandboxd: the server", why)
	}
	if exit.Code == 0 {
		return nil
	}
	return statusError(exit.Code)
}
