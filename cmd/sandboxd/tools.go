package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/internal/config"
	"github.com/sandboxd/sandboxd/mcpbridge"
)

type toolsFlags struct {
	files []string
	yes   bool
}

func newTools() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tools",
		Short: "Look at changed tools of servers, and approve them",
		Long: `sandboxd serve keeps the definition of each tool as it was when its server
first ran. With pin: strict a tool that was changed or added since is held
back until it is approved here; with pin: warn it is reported.`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newToolsDiff(), newToolsApprove())
	return cmd
}

func (f *toolsFlags) flags(cmd *cobra.Command) {
	cmd.Flags().StringArrayVarP(&f.files, "config", "c", nil, "config `FILE` that names the tenant (repeatable; default: tenant "+config.DefaultTenant+")")
}

func newToolsDiff() *cobra.Command {
	var f toolsFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "diff SERVER",
		Short: "Show how a server's tools differ from the approved ones",
		Long: `Show how the tools that a server last offered differ from the approved ones.
Exit status 1 if they do.`,
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			pins, err := f.open()
			if err != nil {
				return err
			}
			changes, err := pins.Diff(args[0])
			if err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			if asJSON {
				if changes == nil {
					changes = []mcpbridge.ToolChange{}
				}
				err = writeJSON(w, changes)
			} else if len(changes) == 0 {
				_, err = fmt.Fprintln(w, "no differences")
			} else {
				err = mcpbridge.WriteChanges(w, changes)
			}
			if err != nil {
				return err
			}
			if len(changes) > 0 {
				return statusError(exitFailure)
			}
			return nil
		},
	}
	f.flags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newToolsApprove() *cobra.Command {
	var f toolsFlags
	cmd := &cobra.Command{
		Use:   "approve SERVER [TOOL...]",
		Short: "Approve a server's tools as they are now",
		Long: `Show the differences, ask, and approve exactly what was shown: of the named
tools, or of all. A running sandboxd serve takes it up within seconds.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 1 {
				return usagef("%s needs a server: %s", cmd.CommandPath(), cmd.UseLine())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			pins, err := f.open()
			if err != nil {
				return err
			}
			return approve(cmd.OutOrStdout(), cmd.InOrStdin(), pins, args[0], args[1:], f.yes)
		},
	}
	f.flags(cmd)
	cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "do not ask")
	return cmd
}

var errNotApproved = errors.New("nothing was approved")

func approve(w io.Writer, in io.Reader, pins *mcpbridge.PinStore, server string, tools []string, yes bool) error {
	done, err := pins.Approve(server, tools, func(changes []mcpbridge.ToolChange) error {
		if err := mcpbridge.WriteChanges(w, changes); err != nil || yes {
			return err
		}
		if _, err := fmt.Fprintf(w, "approve %d change(s)? [y/N] ", len(changes)); err != nil {
			return err
		}
		answer, err := bufio.NewReader(in).ReadString('\n')
		if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" || err != nil && !errors.Is(err, io.EOF) {
			return errNotApproved
		}
		return nil
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "approved %d change(s)\n", len(done))
	return err
}

func (f *toolsFlags) open() (*mcpbridge.PinStore, error) {
	tenant := config.DefaultTenant
	if len(f.files) > 0 {
		// Only the tenant is needed, but a file with faults names none.
		cfg, err := config.Load(config.Options{}, f.files...)
		if err != nil {
			return nil, usageError{err}
		}
		tenant = cfg.Tenant
	}
	dir, err := stateDir(tenant)
	if err != nil {
		return nil, err
	}
	return mcpbridge.OpenPins(mcpbridge.PinsDir(dir)), nil
}

// stateDir is where what users approved is kept, per tenant: SANDBOXD_STATE,
// or the user's own state folder.
func stateDir(tenant string) (string, error) {
	dir := os.Getenv("SANDBOXD_STATE")
	if dir == "" {
		base := os.Getenv("XDG_STATE_HOME")
		if base == "" {
			home, err := os.UserHomeDir()
			if err != nil {
				return "", fmt.Errorf("no state folder: set SANDBOXD_STATE: %w", err)
			}
			base = filepath.Join(home, ".local", "state")
		}
		dir = filepath.Join(base, "sandboxd")
	}
	if !filepath.IsAbs(dir) {
		return "", usagef("SANDBOXD_STATE and XDG_STATE_HOME must be absolute paths")
	}
	return filepath.Join(dir, "tenants", tenant), nil
}
