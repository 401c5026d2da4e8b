package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/config"
	"github.com/sandboxd/sandboxd/netguard"
)

type publishFlags struct {
	common
	files        []string
	list, asJSON bool
}

func newPublish() *cobra.Command {
	var f publishFlags
	cmd := &cobra.Command{
		Use:   "publish --config FILE",
		Short: "Publish an engine's workflows as MCP tools over stdin and stdout",
		Long: `Publish the workflows that the outbound section of a config names as the tools
of an MCP server on stdin and stdout, for an MCP client to start. A call runs
the workflow on its engine and waits for its end. sandboxd serve publishes them
over HTTP and WebSocket.`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(f.files) == 0 {
				return usagef("no config file: sandboxd publish --config FILE (see docs/outbound.md)")
			}
			if f.asJSON && !f.list {
				return usagef("--json is for --list")
			}
			return f.publish(cmd.Context(), cmd.OutOrStdout())
		},
	}
	fl := cmd.Flags()
	f.operator.flags(fl)
	fl.StringVar(&f.records, "records", "", "append decision records as JSON lines to `FILE` (- for stderr; default: the operator's, else none)")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "say more on stderr")
	fl.StringArrayVarP(&f.files, "config", "c", nil, "config `FILE`, YAML or TOML (repeatable)")
	fl.BoolVar(&f.list, "list", false, "print what would be published, and end")
	fl.BoolVar(&f.asJSON, "json", false, "with --list: the tools as MCP clients see them")
	return cmd
}

func (f *publishFlags) publish(ctx context.Context, w io.Writer) error {
	if err := f.load(); err != nil {
		return err
	}
	cfg, err := config.Load(config.Options{Policies: f.policies(ctx)}, f.files...)
	if err != nil {
		return usageError{err}
	}
	if len(cfg.Outbound.Workflows) == 0 {
		return usagef("the config publishes nothing: name workflows in its outbound section (see docs/outbound.md)")
	}
	rec, err := openRecords(f.records, f.log)
	if err != nil {
		return err
	}
	defer rec.Close() //nolint:errcheck // its own failures it has reported
	guard, err := f.guard(ctx, true, netguard.Options{Record: rec.add, Logger: f.log})
	if err != nil {
		return err
	}
	p, err := newPublished(&launcher{guard: guard, log: f.log}, cfg)
	if err != nil {
		return err
	}
	defer stopAtEnd(ctx, f.log, "runs", p.Close)
	if f.list {
		return printTools(w, p.Tools(), f.asJSON)
	}
	// A client that has gone must be an error, not a signal: runs are cancelled.
	gone := make(chan os.Signal, 1)
	signal.Notify(gone, syscall.SIGPIPE)
	defer signal.Stop(gone)
	return p.ServeStdio(ctx, os.Stdin, os.Stdout)
}

func printTools(w io.Writer, tools []json.RawMessage, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(tools)
	}
	for _, raw := range tools {
		var t struct{ Name, Title, Description string }
		if err := json.Unmarshal(raw, &t); err != nil {
			return err
		}
		if t.Title == "" {
			t.Title = t.Description
		}
		if _, err := fmt.Fprintf(w, "%s\t%q\n", t.Name, t.Title); err != nil {
			return err
		}
	}
	return nil
}
