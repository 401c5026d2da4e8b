package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/netguard"
	"github.com/sandboxd/sandboxd/policies"
)

func newPolicyExplain() *cobra.Command {
	var name, resolver string
	var asJSON, lookup bool
	cmd := &cobra.Command{
		Use:   "explain --policy FILE|NAME TARGET",
		Short: "Say step by step why a target is allowed or refused",
		Long: `Say step by step why a target is allowed or refused, and which rule would have
to change. TARGET is a URL, HOST:PORT or HOST (port 443). Nothing is connected
to. With --lookup the name is resolved once, where the policy lets the question
out, and its addresses are judged too. Exit status 1 where it is refused.`,
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := policies.Loader{}.Find(name, "")
			if err != nil {
				return usageError{err}
			}
			x, err := explain(cmd.Context(), p, args[0], resolver, lookup)
			if err != nil {
				return err
			}
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), x)
			} else {
				err = printExplanation(cmd.OutOrStdout(), x)
			}
			if err == nil && !x.Allow {
				err = statusError(exitFailure)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&name, "policy", "none", "a preset or a policy FILE")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the explanation as JSON")
	cmd.Flags().BoolVar(&lookup, "lookup", false, "resolve the name and judge its addresses")
	cmd.Flags().StringVar(&resolver, "resolver", "", "upstream DNS server ADDRESS:PORT for --lookup (default: the host's)")
	return cmd
}

func explain(ctx context.Context, p *policies.Policy, target, resolver string, lookup bool) (netguard.Explanation, error) {
	var compiled *netguard.Policy
	if p.Egress != nil {
		var err error
		if compiled, err = netguard.Compile(*p.Egress); err != nil {
			return netguard.Explanation{}, usageError{err}
		}
	}
	if !lookup {
		return netguard.Explain(compiled, target), nil
	}
	g, err := netguard.New(netguard.Options{Upstream: resolver})
	if err != nil {
		return netguard.Explanation{}, err
	}
	return g.Explain(ctx, compiled, target, true), nil
}

func printExplanation(w io.Writer, x netguard.Explanation) error {
	for _, s := range x.Steps {
		mark := "ok"
		if !s.Passed {
			mark = "no"
		}
		if _, err := fmt.Fprintf(w, "%s  %s: %s\n", mark, s.Check, s.Detail); err != nil {
			return err
		}
	}
	verdict := "allowed"
	if !x.Allow {
		verdict = "refused (" + string(x.Reason) + ")"
	}
	if x.Rule != "" {
		verdict += " by " + x.Rule
	}
	_, err := fmt.Fprintf(w, "\n%q is %s\n%s\n", x.Target, verdict, x.Change)
	return err
}
