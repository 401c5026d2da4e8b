// Command sandboxd runs MCP servers that nobody should have to trust: each in
// a sandbox of its own, with no way out but the guard.
//
// This folder holds commands, flags, wiring and signals. It never sandboxes,
// dials or speaks MCP by itself: sandbox, netguard and mcpbridge do.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/sandbox/wasm"
)

// version is set at link time.
var version = "dev"

// Exit statuses. A finished `run` ends with the server's own status instead.
const (
	exitFailure = 1
	exitUsage   = 2
)

// usageError marks a mistake in the command line or in a file that the user
// wrote: exit status 2.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// usagef makes a usageError.
func usagef(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

// statusError ends the program with a status and says nothing more.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func main() {
	wasm.WorkerMain() // does not return in a worker
	keeperMain()      // nor does this in a keeper
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := exitCode(newRoot().ExecuteContext(ctx))
	stop()
	os.Exit(code)
}

func exitCode(err error) int {
	var status statusError
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	case errors.As(err, &usage):
		fmt.Fprintln(os.Stderr, "sandboxd:", err)
		return exitUsage
	default:
		fmt.Fprintln(os.Stderr, "sandboxd:", err)
		return exitFailure
	}
}

// handlesHangup marks a command that has a use of its own for SIGHUP.
const handlesHangup = "handles SIGHUP"

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "sandboxd",
		Short:         "Run untrusted MCP servers safely",
		Long:          "sandboxd runs each MCP server in a sandbox of its own (WASM, container or gVisor)\nwhose only way out is a guard that checks every name and address.",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return cmd.Help()
		},
	}
	root.PersistentPreRun = func(cmd *cobra.Command, _ []string) {
		if cmd.Annotations[handlesHangup] != "" {
			return
		}
		// A terminal that goes away ends a command as politely as TERM does.
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGHUP)
		context.AfterFunc(ctx, stop)
		cmd.SetContext(ctx)
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w: see %s --help", err, cmd.CommandPath())
	})
	root.AddCommand(newRun(), newServe(), newPublish(), newCall(), newTools(), newAuth(), newEngine(), newDoctor(), newPolicy(), newImage(), newBuild(), newImport(), newInstall(), newCatalog(), newTry(), newVersion())
	return root
}

// exactly is cobra.ExactArgs with a usage error that shows the form.
func exactly(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usagef("%s takes %d argument(s), not %d: %s", cmd.CommandPath(), n, len(args), cmd.UseLine())
		}
		return nil
	}
}

// atMost is cobra.MaximumNArgs with a usage error that shows the form.
func atMost(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return usagef("%s takes at most %d argument(s), not %d: %s", cmd.CommandPath(), n, len(args), cmd.UseLine())
		}
		return nil
	}
}

// onlyCommands is for a command that does nothing but hold others.
func onlyCommands(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return unknownCommand(cmd, args[0])
	}
	return nil
}

func unknownCommand(cmd *cobra.Command, name string) error {
	cmd.SuggestionsMinimumDistance = 2 // cobra sets it in its own messages alone
	if near := cmd.SuggestionsFor(name); len(near) > 0 {
		return usagef("unknown command %q: did you mean %s? see %s --help", name, strings.Join(near, " or "), cmd.CommandPath())
	}
	return usagef("unknown command %q: see %s --help", name, cmd.CommandPath())
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "sandboxd", version)
			return err
		},
	}
}
