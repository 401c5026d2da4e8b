package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/netguard/casefile"
	"github.com/sandboxd/sandboxd/policies"
	"github.com/sandboxd/sandboxd/policies/strict"
)

func newPolicy() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Check, explain and test egress policies",
		Args:  exactly(0),
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
	cmd := &cobra.Command{
		Use:   "check FILE…",
		Short: "Report every fault of policy files, with line and column",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("no policy file given: %s", cmd.UseLine())
			}
			return policyCheck(cmd.OutOrStdout(), args, asJSON, werror)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the faults as a JSON list")
	cmd.Flags().BoolVar(&werror, "strict", false, "let warnings fail too")
	return cmd
}

func policyCheck(w io.Writer, files []string, asJSON, werror bool) error {
	faults := []fault{}
	bad := false
	for _, file := range files {
		p, err := policies.Loader{}.Load(file)
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
	return &cobra.Command{
		Use:   "show [PRESET]",
		Short: "Print a shipped policy, or the list of them",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
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
}

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
	defer f.Close()
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
