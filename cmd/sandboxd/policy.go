package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/netguard"
	"github.com/sandboxd/sandboxd/netguard/casefile"
	"github.com/sandboxd/sandboxd/policies"
	"github.com/sandboxd/sandboxd/policies/strict"
)

func newPolicy() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Check, explain and test egress policies",
		Args:  onlyCommands,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPolicyCheck(), newPolicyExplain(), newPolicyTest(), newPolicyShow())
	return cmd
}

// fault is one remark of `policy check --json`.
type fault struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Path    string `json:"path,omitempty"`
	Message string `json:"message"`
	Warning bool   `json:"warning,omitempty"`
}

func newPolicyCheck() *cobra.Command {
	var asJSON, werror bool
	var o operator
	cmd := &cobra.Command{
		Use:   "check FILE…",
		Short: "Report every fault of policy files, with line and column",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("no policy file given: %s", cmd.UseLine())
			}
			if err := o.load(plainLog(cmd.ErrOrStderr())); err != nil {
				return err
			}
			return policyCheck(cmd.OutOrStdout(), o.policies(cmd.Context()), args, asJSON, werror)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the faults as a JSON list")
	cmd.Flags().BoolVar(&werror, "strict", false, "let warnings fail too")
	o.fileFlag(cmd.Flags())
	return cmd
}

func policyCheck(w io.Writer, l policies.Loader, files []string, asJSON, werror bool) error {
	faults := []fault{}
	bad := false
	for _, file := range files {
		p, err := l.Load(file)
		var found strict.Faults
		switch {
		case err == nil:
			found = p.Warnings
		case !errors.As(err, &found):
			return usageError{err}
		}
		for _, f := range found {
			bad = bad || !f.Warning || werror
			faults = append(faults, fault{f.File, f.Line, f.Col, f.Path, f.Msg, f.Warning})
			if !asJSON {
				fmt.Fprintln(w, f)
			}
		}
		if len(found) == 0 && !asJSON {
			fmt.Fprintf(w, "%s: ok\n", file)
		}
	}
	if asJSON {
		if err := writeJSON(w, faults); err != nil {
			return err
		}
	}
	if bad {
		return statusError(exitFailure)
	}
	return nil
}

func newPolicyTest() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "test FILE.jsonl",
		Short: "Run a file of cases through the guard that decides in production",
		Long: `Run a file of cases, one JSON object a line, through the very code that decides
in production. Each case that differs is printed with both verdicts and
reasons; the last line says how many passed and failed. Exit status 1 if any
failed.`,
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return policyTest(cmd.OutOrStdout(), args[0], asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON")
	return cmd
}

func newPolicyShow() *cobra.Command {
	var expanded bool
	var o operator
	cmd := &cobra.Command{
		Use:   "show [PRESET]",
		Short: "Print a shipped policy, or the list of them",
		Long: `Print a shipped policy, or the list of them. With --expanded, print the egress
section that a preset or a policy FILE comes to here, as JSON: each
{{registry.NAME}} replaced by the hosts that this user's clients are configured
with. It can serve as the policy of a cases file.`,
		Args: atMost(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case expanded && len(args) == 0:
				return usagef("no policy to expand: sandboxd policy show registries --expanded")
			case expanded:
				if err := o.load(plainLog(cmd.ErrOrStderr())); err != nil {
					return err
				}
				return policyExpand(cmd.OutOrStdout(), cmd.ErrOrStderr(), o.policies(cmd.Context()), args[0])
			case len(args) == 0:
				_, err := fmt.Fprintln(cmd.OutOrStdout(), strings.Join(policies.Presets(), "\n"))
				return err
			}
			doc, err := policies.PresetSource(args[0])
			if err != nil {
				return usageError{err}
			}
			_, err = cmd.OutOrStdout().Write(doc)
			return err
		},
	}
	cmd.Flags().BoolVar(&expanded, "expanded", false, "put the registries' hosts in")
	o.fileFlag(cmd.Flags())
	return cmd
}

func policyExpand(w, remarks io.Writer, l policies.Loader, ref string) error {
	p, err := l.Find(ref, "")
	if err != nil {
		return usageError{err}
	}
	for _, warning := range p.Warnings {
		fmt.Fprintln(remarks, "sandboxd:", warning)
	}
	if p.Egress == nil {
		return usagef("%s has no egress section: a server under it gets no network", ref)
	}
	return writeJSON(w, struct {
		netguard.Config
		PinTTL string `json:"pin_ttl,omitempty"` // as policies write it
	}{*p.Egress, duration(p.Egress.PinTTL)})
}

func duration(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

// plainLog is for commands that start nothing.
func plainLog(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

func policyTest(w io.Writer, path string, asJSON bool) error {
	f, err := os.Open(path)
	if err != nil {
		return usageError{err}
	}
	defer f.Close() //nolint:errcheck // read only
	report, err := casefile.Run(f, casefile.Options{})
	if err != nil {
		return usageError{fmt.Errorf("%s: %w", path, err)}
	}
	if asJSON {
		err = writeJSON(w, report)
	} else {
		err = report.Print(w)
	}
	if err != nil {
		return err
	}
	if report.Failed > 0 {
		return statusError(exitFailure)
	}
	return nil
}
